"""What a TensorRT-RTX engine holds: each weight once, in the precision it computes in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import qcompile
from qcompile.engines.base import BuildRequest
from qcompile.engines.build import build_engine
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.words import Precision

CHANNELS = 32
SCALE = np.float32(0.01)
WEIGHT = np.random.default_rng(0).uniform(-1, 1, (CHANNELS, CHANNELS, 3, 3)).astype(np.float32)


def convolution(path: Path, *, quantized: bool) -> Path:
    """A convolution whose float weight stands behind Q/DQ, as TensorRT 8.5 wants it, or alone."""
    values = {"w": WEIGHT, "scale": SCALE, "zero": np.int8(0)}
    nodes, inputs = [], ["x", "w"]
    if quantized:
        for name in ("x", "w"):
            nodes.append(helper.make_node("QuantizeLinear", [name, "scale", "zero"], [f"{name}_q"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", "scale", "zero"], [f"{name}_dq"]))
        inputs = ["x_dq", "w_dq"]
    nodes.append(helper.make_node("Conv", inputs, ["c"], pads=[1, 1, 1, 1]))
    nodes.append(helper.make_node("Relu", ["c"], ["y"]))
    shape = [1, CHANNELS, 16, 16]
    graph = helper.make_graph(
        nodes,
        "convolution",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def built(model: Path, precision: Precision) -> bytes:
    spec = BuildSpec(target="tensorrt-rtx", precision=precision, gpus=("sm86",))
    return build_engine(BuildRequest(str(model), model.with_suffix(".engine"), spec)).path.read_bytes()


def times_stored(weight: np.ndarray, engine: bytes) -> int:
    """How often the bytes of a weight are there, channels last as TensorRT-RTX stores them, or as in ONNX."""
    layouts = (weight, weight.transpose(0, 2, 3, 1))
    return sum(engine.count(np.ascontiguousarray(one).tobytes()[:256]) for one in layouts)


def test_an_int8_engine_holds_the_integers_once_and_no_float_weight(tmp_path: Path) -> None:
    integers = np.clip(np.rint(WEIGHT / SCALE), -128, 127).astype(np.int8)
    engine = built(convolution(tmp_path / "int8.onnx", quantized=True), "int8")
    assert (times_stored(integers, engine), times_stored(WEIGHT, engine)) == (1, 0)


def test_the_search_finds_the_weight_of_a_float_engine(tmp_path: Path) -> None:
    engine = built(convolution(tmp_path / "fp32.onnx", quantized=False), "fp32")
    assert times_stored(WEIGHT, engine) == 1


def chain(path: Path) -> Path:
    """Three convolutions with a ReLU behind each."""
    generator = np.random.default_rng(1)
    shape = [1, CHANNELS, 16, 16]
    nodes, values = [], {}
    for i in range(3):
        values[f"w{i}"] = generator.normal(0, 0.1, (CHANNELS, CHANNELS, 3, 3)).astype(np.float32)
        nodes.append(helper.make_node("Conv", [f"t{i}", f"w{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"t{i + 1}"], f"relu{i}"))
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("t0", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("t3", onnx.TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(("kept", "stored"), [(("conv1",), "half"), (("conv1", "relu1"), "fp32")])
def test_a_layer_kept_in_float32_stays_so_only_with_the_layer_behind_it(
    precision: Precision, kept: tuple[str, ...], stored: str, tmp_path: Path
) -> None:
    # A strongly typed network, and TensorRT-RTX makes half of `half -> Cast -> layer -> Cast -> half`.
    model = chain(tmp_path / "m.onnx")
    made = qcompile.build(
        model, tmp_path / "m.engine", target="tensorrt-rtx", precision=precision, gpus=("sm86",),
        layers=dict.fromkeys(kept, "fp32"), allow_fallback=True,
    )  # fmt: skip
    weight = numpy_helper.to_array(next(t for t in onnx.load(model).graph.initializer if t.name == "w1"))
    assert times_stored(weight, made.path.read_bytes()) == (stored == "fp32")
    assert made.manifest.proof["layers_by_precision"] == {
        precision: {"CONVOLUTION": 2}, "fp32": {"CONVOLUTION": 1}  # the types of the network
    }  # fmt: skip
