"""Commands of public issues, small networks with the inputs of their models, and what lies beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qcompile.pipeline.migrate.intent import tomllib
from qcompile.pipeline.migrate.migration import Migration

Extents = Sequence[int | str]
_OUT = 8
_TYPES = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32, "int64": TensorProto.INT64}

LOADER = """
import numpy as np


def load_data():
    random = np.random.default_rng(0)
    for _ in range(4):
        yield {{name: random.standard_normal(shape).astype(np.float32) for name, shape in {shapes!r}.items()}}
"""


def issue_model(
    inputs: Mapping[str, Extents], *, types: Mapping[str, str] | None = None, layers: Sequence[str] = ()
) -> onnx.ModelProto:
    """One branch for each input, to an output NAME_out.

    An image goes through a convolution for each of `layers` (two where there are none); anything else through
    a product over its last axis, which must be a number, or a multiplication where it has one axis.
    """
    types = types or {}
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    outputs = []
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> str:
        values = (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    for name, shape in inputs.items():
        last = name
        if types.get(name, "float32") != "float32":
            nodes.append(helper.make_node("Cast", [last], [f"{name}_float"], f"{name}/Cast", to=1))
            last = f"{name}_float"
        result = f"{name}_out"
        if len(shape) == 4:
            channels = int(shape[1])
            for index, layer in enumerate(layers or ("conv1", "conv2")):
                given = weight(f"{name}_w{index}", _OUT, channels, 1, 1)
                made, channels = f"{name}_{index}", _OUT
                nodes.append(
                    helper.make_node(
                        "Conv",
                        [last, given],
                        [f"{made}_c"],
                        _unique(layer, name, inputs),
                        kernel_shape=[1, 1],
                    )
                )
                nodes.append(helper.make_node("Relu", [f"{made}_c"], [made], f"{made}/Relu"))
                last = made
            nodes.append(helper.make_node("GlobalAveragePool", [last], [result], f"{name}/Pool"))
            extents: list[int | str] = [shape[0], _OUT, 1, 1]
        elif len(shape) > 1:
            given = weight(f"{name}_w", int(shape[-1]), _OUT)
            nodes.append(helper.make_node("MatMul", [last, given], [result], f"{name}/MatMul"))
            extents = [*shape[:-1], _OUT]
        else:
            weights.append(numpy_helper.from_array(np.full(1, 2, np.float32), f"{name}_w"))
            nodes.append(helper.make_node("Mul", [last, f"{name}_w"], [result], f"{name}/Mul"))
            extents = list(shape)
        outputs.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, extents))
    values = [
        helper.make_tensor_value_info(name, _TYPES[types.get(name, "float32")], list(shape))
        for name, shape in inputs.items()
    ]
    graph = helper.make_graph(nodes, "issue", values, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def _unique(layer: str, name: str, inputs: Mapping[str, Extents]) -> str:
    images = [one for one, shape in inputs.items() if len(shape) == 4]
    return layer if images == [name] else f"{name}/{layer}"


def write_samples(model: onnx.ModelProto, path: Path, extent: int = 2) -> Path:
    """Write random samples of a model as .npz; a dynamic axis has this extent."""
    random = np.random.default_rng(1)
    values = {
        value.name: random.standard_normal(
            (4, *(dim.dim_value or extent for dim in value.type.tensor_type.shape.dim[1:]))
        ).astype(np.float32)
        for value in model.graph.input
    }
    np.savez(path, **values)
    return path


def write_loader(model: onnx.ModelProto, path: Path, extent: int = 2) -> Path:
    """Write a script with Polygraphy's `load_data`."""
    shapes = {
        value.name: tuple(dim.dim_value or extent for dim in value.type.tensor_type.shape.dim)
        for value in model.graph.input
    }
    path.write_text(LOADER.format(shapes=shapes))
    return path


def write_cache(model: onnx.ModelProto, path: Path) -> Path:
    """Write TensorRT's calibration cache: a scale for every tensor, and one for a layer of TensorRT's own."""
    names = [value.name for value in model.graph.input]
    names += [name for node in model.graph.node for name in node.output]
    lines = [f"{name}: {(0x3D000000 + index).to_bytes(4, 'big').hex()}" for index, name in enumerate(names)]
    lines.append("(Unnamed Layer* 7) [Shuffle]_output: 3c010a14")
    path.write_text("\n".join(["TRT-8503-EntropyCalibration2", *lines]) + "\n")
    return path


def assert_keys_are_there(done: Migration) -> None:
    """Every option that became a key has it in the recipe."""
    recipe = tomllib.loads(done.recipe.read_text())
    for one in done.outcomes:
        if one.fate != "kept" or "." not in one.to:
            continue
        values = recipe
        for step in one.to.split("."):
            assert step in values, f"{one.flag} became {one.to}"
            values = values[step][0] if step == "artifact" else values[step]


@dataclass(frozen=True)
class IssueCommand:
    """One command line; the head of `issue_commands.toml` says what its fields mean."""

    source: str
    command: str
    model: str
    precision: str
    inputs: Mapping[str, Extents] = field(default_factory=lambda: {"images": (1, 3, 32, 32)})
    types: Mapping[str, str] = field(default_factory=dict)
    layers: Sequence[str] = ()
    floats: str = "fp32"
    missing: Sequence[str] = ()
    data: bool = False
    cache: str = ""
    loader: str = ""
    quantized: bool = False
    paths: Sequence[str] = ()
    compares: Sequence[str] | None = None
    by_layer: Mapping[str, str] = field(default_factory=dict)


_TABLES = tomllib.loads(Path(__file__).with_name("issue_commands.toml").read_text(encoding="utf-8"))
COMMANDS = [IssueCommand(**row) for tool in ("trtexec", "polygraphy") for row in _TABLES[tool]]
REFUSED: list[dict[str, str]] = _TABLES["refused"]
