"""What is carried to the GPU host: graphs that are quantized and cast already, inputs, reference outputs.

Made where ONNX Runtime is; on the GPU host numpy, onnx, msgspec and cuda-bindings are enough beside TensorRT.
The outputs are ONNX Runtime's on the same file, so what differs is TensorRT's arithmetic. About 50 MB, of
which `unpack` makes twice as much: weights travel in 8 bits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
from packing import packed, unpacked
from placement import residual_convolutions

FORMAT = 1
SIZES = ((4, 4), (5, 12), (16, 16))
"""Values of the shape tensor: height and width."""
_ROWS = 4

Feeds = Mapping[str, Any]


def prepare(folder: Path, say: Callable[[str], None], *, resnet50: bool = True) -> None:
    """Write the kit; ResNet-50 is nearly all of its size."""
    import qcompile

    folder.mkdir(parents=True, exist_ok=True)
    for name, model in _plain().items():
        onnx.save(model, folder / f"{name}.onnx")
        write_reference(folder, name, feeds_of(model))
        say(name)
    for kind in ("int64", "int32"):
        onnx.save(graphs.shaped(kind=kind), folder / f"shaped.{kind}.onnx")
        for height, width in SIZES:
            feeds = {"x": _images(8, 3), "size": np.array([height, width], kind)}
            write_reference(folder, f"shaped.{kind}", feeds, f".{height}x{width}")
    for name in ("bert", "group_norm", "residual"):
        half = folder / f"{name}.fp16.onnx"
        qcompile.quantize(folder / f"{name}.onnx", half, precision="fp16", target="tensorrt")
        write_reference(folder, f"{name}.fp16", feeds_of(onnx.load(folder / f"{name}.onnx")))
        say(f"{name} in float16")
    tokens = np.random.default_rng(1).integers(0, graphs.VOCABULARY, (32, 16))
    np.savez_compressed(folder / "integers.samples.npz", tokens=tokens)
    _quantized(folder, "residual", graphs.residual(), samples=16)
    say("residual in INT8")
    if resnet50:
        _quantized(folder, "resnet50", graphs.resnet50(), samples=4)
        say("ResNet-50 in INT8")
    _write_index(folder)


def read_index(folder: Path) -> dict[str, Any]:
    """Return the kit's index.

    Raises:
        ValueError: If a file is missing or was changed on the way.
    """
    index: dict[str, Any] = json.loads((folder / "kit.json").read_text())
    for name, about in index["files"].items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != about["sha256"]:
            raise ValueError(f"{path}: missing, or not the file that was prepared")
    return index


def unpack(folder: Path, output: Path) -> None:
    """Write the packed graphs of a kit as ONNX files."""
    for path in sorted(folder.glob("*.packed")):
        onnx.save(unpacked(onnx.load(path)), output / path.with_suffix(".onnx").name)


def feeds_of(model: onnx.ModelProto, rows: int = _ROWS) -> Feeds:
    """Return one batch for a graph of `graphs`."""
    generator = np.random.default_rng(graphs.SEED)
    feeds: dict[str, Any] = {}
    for value in model.graph.input:
        shape = (rows, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]))
        if value.name == "mask":
            feeds[value.name] = (np.arange(shape[1]) < np.array([[128], [100], [64], [9]])[:rows]).astype(
                np.int64
            )
        elif value.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            feeds[value.name] = generator.integers(0, graphs.VOCABULARY, shape)
        else:
            feeds[value.name] = generator.standard_normal(shape).astype(np.float32)
    return feeds


def write_reference(folder: Path, name: str, feeds: Feeds, suffix: str = "") -> None:
    """Write a batch, and what ONNX Runtime computes of it, as `NAME.feeds.npz` and `NAME.outputs.npz`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), options)
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, dict(feeds)), strict=True))
    np.savez_compressed(folder / f"{name}{suffix}.feeds.npz", **feeds)
    np.savez_compressed(folder / f"{name}{suffix}.outputs.npz", **outputs)


def _plain() -> dict[str, onnx.ModelProto]:
    return {
        "bert": graphs.bert(),
        "bert.opset16": graphs.bert(opset=16),
        "group_norm": graphs.group_norm(),
        "integers": graphs.integers(),
        "residual": graphs.residual(),
        "residual.retrained": graphs.residual(scale=1.25),
    }


def _quantized(folder: Path, name: str, model: onnx.ModelProto, samples: int) -> None:
    """Write NAME.int8.packed, its reference, and the largest output of each convolution before an add."""
    import qcompile

    source, data, ranges = (folder / f"{name}.{end}" for end in ("float.onnx", "data.npz", "ranges"))
    onnx.save(model, source)
    feeds = dict(feeds_of(model))
    batches = [
        feeds_of(model)["image" if name == "resnet50" else "x"] * (1 + 0.1 * i) for i in range(samples // 4)
    ]
    np.savez(data, **{next(iter(feeds)): np.concatenate(batches)})
    qcompile.calibrate(source, str(data), ranges, method="minmax", targets=["tensorrt"])
    qcompile.quantize(source, folder / f"{name}.int8.onnx", ranges=ranges, target="tensorrt")
    write_reference(folder, f"{name}.int8", feeds)
    (folder / f"{name}.amax.json").write_text(json.dumps(_amax(model, feeds)))
    graph = folder / f"{name}.int8.onnx"
    onnx.save(packed(onnx.load(graph)), graph.with_suffix(".packed"))
    for path in (source, data, graph, *folder.glob(f"{name}.ranges*")):
        path.unlink()


def _amax(model: onnx.ModelProto, feeds: Feeds) -> dict[str, float]:
    import onnxruntime

    convolutions = [conv for _, _, conv in residual_convolutions(model)]
    for conv in convolutions:
        model.graph.output.append(onnx.ValueInfoProto(name=conv.output[0]))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found = session.run([conv.output[0] for conv in convolutions], dict(feeds))
    return {conv.name: float(np.abs(one).max()) for conv, one in zip(convolutions, found, strict=True)}


def _images(side: int, channels: int) -> Any:
    shape = (_ROWS, channels, side, side)
    return np.random.default_rng(graphs.SEED).standard_normal(shape).astype(np.float32)


def _write_index(folder: Path) -> None:
    from qcompile import __version__

    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(folder.iterdir())
        if path.suffix in (".onnx", ".packed", ".npz") or path.name.endswith("amax.json")
    }
    (folder / "kit.json").write_text(
        json.dumps({"kit": FORMAT, "qcompile": __version__, "files": files}, indent=1)
    )
