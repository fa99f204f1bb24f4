"""What is carried to the GPU host: graphs that are quantized and cast already, inputs, reference outputs.

Made where ONNX Runtime is; on the GPU host numpy, onnx and msgspec are enough beside TensorRT. The outputs
are ONNX Runtime's, so what differs is the arithmetic of the GPU. Random weights and large inputs do not
travel: they are drawn again.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import random_weights
from placement import residual_convolutions

FORMAT = 2
NETWORKS = ("resnet50", "bert_base", "mobilenetv2")
"""Those of `gpu_models.py`; the first two are measured by `gpu-day`, all by `gpu-day-more`."""
MODELS = Path(__file__).resolve().parents[1] / "gpu_models.py"
SIZES = ((4, 4), (5, 12), (16, 16))  # values of the shape tensor: height and width
ROWS = 32
_FEW_ROWS = 4

Feeds = Mapping[str, Any]


def prepare(folder: Path, networks: Sequence[str], say: Callable[[str], None]) -> None:
    """Write the kit."""
    import qcompile

    random_weights.forms = {}
    folder.mkdir(parents=True, exist_ok=True)
    residual = graphs.residual()
    plain = {
        "group_norm": graphs.group_norm(),
        "integers": graphs.integers(),
        "residual": residual,
        "residual.retrained": graphs.residual(scale=1.25),
    }
    for name, model in plain.items():
        onnx.save(model, folder / f"{name}.onnx")
        write_reference(folder, name, feeds_of(model))
    for name, opset in (("bert", 17), ("bert.opset16", 16)):
        _export("bert_small", folder / f"{name}.onnx", opset)
        write_reference(folder, name, feeds_of(onnx.load(folder / f"{name}.onnx")))
    for kind in ("int64", "int32"):
        onnx.save(graphs.shaped(kind), folder / f"shaped.{kind}.onnx")
        for height, width in SIZES:
            feeds = {"x": _images(8, 3), "size": np.array([height, width], kind)}
            write_reference(folder, f"shaped.{kind}", feeds, f".{height}x{width}")
    for name in ("bert", "group_norm", "residual"):
        half = folder / f"{name}.fp16.onnx"
        qcompile.quantize(folder / f"{name}.onnx", half, precision="fp16", target="tensorrt")
        write_reference(folder, f"{name}.fp16", feeds_of(onnx.load(folder / f"{name}.onnx")))
    tokens = np.random.default_rng(1).integers(0, graphs.VOCABULARY, (32, 16))
    np.savez_compressed(folder / "integers.samples.npz", tokens=tokens)
    samples = np.concatenate([_images(16, 16) * (1 + 0.1 * index) for index in range(4)])
    _quantize(folder, "residual", {"x": samples}, feeds_of(residual))
    say("small graphs")
    described = {}
    for name in networks:
        described[name] = _network(folder, name, say)
    for path in folder.glob("*.onnx"):
        model = onnx.load(path)
        random_weights.strip(model)
        onnx.save(model, path)
        path.with_suffix(".onnx.json").unlink(missing_ok=True)  # of the whole file
    _write_index(folder, described)


def feeds_of(model: onnx.ModelProto, rows: int = _FEW_ROWS) -> Feeds:
    """Return one batch for a graph of `graphs`."""
    generator = np.random.default_rng(graphs.SEED)
    feeds: dict[str, Any] = {}
    for value in model.graph.input:
        shape = (rows, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]))
        if value.name == "mask":
            lengths = np.array([[32], [25], [16], [9]])[:rows]
            feeds[value.name] = (np.arange(shape[1]) < lengths).astype(np.int64)
        elif value.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            feeds[value.name] = generator.integers(0, graphs.VOCABULARY, shape)
        else:
            feeds[value.name] = generator.standard_normal(shape).astype(np.float32)
    return feeds


def network_feeds(inputs: Mapping[str, Sequence[int]], words: int) -> Feeds:
    """Draw 32 samples for a network: images, or tokens below `words` that are all attended to."""
    feeds = {}
    for name, extents in inputs.items():
        shape = (ROWS, *extents)
        if name == "mask":
            feeds[name] = np.ones(shape, np.int64)
        elif words:
            feeds[name] = ((random_weights.draw(name, shape, 0.5) + 0.5) * (words - 1)).astype(np.int64)
        else:
            feeds[name] = random_weights.draw(name, shape, 3**0.5)
    return feeds


def write_reference(folder: Path, name: str, feeds: Feeds, suffix: str = "", *, drawn: bool = False) -> None:
    """Write what ONNX Runtime computes as `NAME.outputs.npz`, and the batch, unless it can be drawn."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), options)
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, dict(feeds)), strict=True))
    np.savez_compressed(folder / f"{name}{suffix}.outputs.npz", **outputs)
    if not drawn:
        np.savez_compressed(folder / f"{name}{suffix}.feeds.npz", **feeds)


def _network(folder: Path, name: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Write NAME.onnx, NAME.fp16.onnx and NAME.int8.onnx with their references; return its inputs."""
    import qcompile

    source = folder / f"{name}.onnx"
    inputs, words = _export(name, source, 17)
    feeds = network_feeds(inputs, words)
    qcompile.quantize(source, folder / f"{name}.fp16.onnx", precision="fp16", target="tensorrt")
    write_reference(folder, name, feeds, drawn=True)
    few = {key: array[:_FEW_ROWS] for key, array in feeds.items()}
    _quantize(folder, name, feeds, few, drawn=True)
    say(f"{name}: INT8 {_snr_db(folder, name):.1f} dB from FP32")
    return {"inputs": inputs, "words": words}


def _export(name: str, output: Path, opset: int) -> tuple[dict[str, Any], int]:
    """Export a network of `gpu_models`; return the extents of its inputs, and its number of words."""
    import gpu_models

    import qcompile

    recipe = gpu_models.RECIPES[name]
    exported = qcompile.export(f"{MODELS}:{name}", output, inputs=recipe.inputs, opset_version=opset)
    assert exported.manifest.io is not None
    return {tensor.name: tensor.shape[1:] for tensor in exported.manifest.io.inputs}, recipe.words


def _quantize(folder: Path, name: str, samples: Feeds, batch: Feeds, *, drawn: bool = False) -> None:
    """Write NAME.int8.onnx, its reference, its ranges, and the largest output of each convolution in front
    of a residual add."""
    import qcompile

    source, data, ranges = (folder / f"{name}.{end}" for end in ("onnx", "data.npz", "ranges"))
    np.savez(data, **samples)
    qcompile.calibrate(source, str(data), ranges, targets=["tensorrt"])
    qcompile.quantize(source, folder / f"{name}.int8.onnx", ranges=ranges, target="tensorrt")
    ranges.with_suffix(".ranges.gz").write_bytes(gzip.compress(ranges.read_bytes(), mtime=0))
    write_reference(folder, f"{name}.int8", batch, drawn=drawn)
    (folder / f"{name}.amax.json").write_text(json.dumps(_amax(onnx.load(source), batch)))
    for path in (data, ranges, ranges.with_suffix(".ranges.json")):
        path.unlink()


def _amax(model: onnx.ModelProto, feeds: Feeds) -> dict[str, float]:
    import onnxruntime

    convolutions = [conv for _, _, conv in residual_convolutions(model)]
    for conv in convolutions:
        model.graph.output.append(onnx.ValueInfoProto(name=conv.output[0]))
    if not convolutions:
        return {}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found = session.run([conv.output[0] for conv in convolutions], dict(feeds))
    return {conv.name: float(np.abs(one).max()) for conv, one in zip(convolutions, found, strict=True)}


def _snr_db(folder: Path, name: str) -> float:
    from qcompile.model.outputs.judgement import output_error

    with (
        np.load(folder / f"{name}.outputs.npz") as whole,
        np.load(folder / f"{name}.int8.outputs.npz") as int8,
    ):
        return float(output_error(whole[whole.files[0]][:_FEW_ROWS], int8[int8.files[0]]).snr_db)


def _images(side: int, channels: int) -> Any:
    shape = (_FEW_ROWS, channels, side, side)
    return np.random.default_rng(graphs.SEED).standard_normal(shape).astype(np.float32)


def _write_index(folder: Path, networks: Mapping[str, Any]) -> None:
    from qcompile import __version__

    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(folder.iterdir())
        if path.name != "kit.json"
    }
    about = {"kit": FORMAT, "qcompile": __version__, "networks": networks, "files": files}
    (folder / "kit.json").write_text(json.dumps(about, indent=1))
