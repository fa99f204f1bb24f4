"""What ONNX Runtime's optimizer computes wrongly is found, kept from it, and seen by the build's check."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import parser

import qcompile
from qcompile.artifact import Artifact
from qcompile.compiler.opset.exact_forms import find_requantized, keep_layers_apart
from qcompile.engines import load
from qcompile.engines.base import BuildRequest
from qcompile.engines.build import build_engine
from qcompile.errors import IntentNotReached
from qcompile.model.output_error import output_error
from qcompile.spec.artifacts import BuildSpec

Floats = NDArray[np.float32]
STEP = 0.05


def pair(value: str, name: str) -> str:
    """Text of a Q/DQ pair on a tensor."""
    return f"{name}_q = QuantizeLinear ({value}, s, z) {name} = DequantizeLinear ({name}_q, s, z) "


def graph(layer: str, stored: str) -> onnx.ModelProto:
    """`y = layer(x)`, relu, with Q/DQ around it; `w`, `sw` and `b` are stored by the text."""
    text = f"""<ir_version: 9, opset_import: ["" : 19]> g (float[n,2,4,4] x) => (float[n,2,4,4] y)
        <float s = {{{STEP}}}, uint8 z = {{128}}, {stored}>
        {{ {pair("x", "a")} {layer} r = Relu (c) {pair("r", "y")} }}"""
    model = parser.parse_model(text)
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}{index}"
    return model


def in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """All floats become float16; onnx's parser cannot read them."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return model


IN_FLOAT = ("c = Conv (a, w, b)", "float[2,2,1,1] w = {100.0, 0.3, -0.4, 0.2}, float[2] b = {0.1, 0.2}")
IN_INT8 = "wd = DequantizeLinear <axis = 0> (w, sw) c = Conv (a, wd, b)"
WEIGHT = "int8[2,2,1,1] w = {100, 30, -40, 20}"
HALF_BIAS = (IN_INT8, f"{WEIGHT}, float[2] sw = {{0.0001, 0.0002}}, float[2] b = {{2.0, -1.0}}")
LARGE_BIAS = (IN_INT8, f"{WEIGHT}, float[2] sw = {{1e-10, 0.01}}, float[2] b = {{2.0, -1.0}}")


def faulty(name: str) -> onnx.ModelProto:
    """A graph for each case of `model/requantized`."""
    if name == "float weight":
        return graph(*IN_FLOAT)
    return in_half(graph(*HALF_BIAS)) if name == "half bias" else graph(*LARGE_BIAS)


CASES = ["float weight", "half bias", "large bias"]


def run(model: onnx.ModelProto, x: NDArray[Any], *, optimize: bool) -> NDArray[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    result: NDArray[Any] = session.run(None, {"x": x})[0]
    return result


def sample(model: onnx.ModelProto) -> NDArray[Any]:
    kind = onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    return np.random.default_rng(0).uniform(-3, 3, (4, 2, 4, 4)).astype(kind)


def same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Equal but for values between two integers, which kernels of processors round either way."""
    differing = np.abs(one.astype(np.float64) - other)
    return bool(differing.max() < 1.01 * STEP and (differing > 0).mean() < 0.05)


@pytest.mark.parametrize("name", CASES)
def test_a_layer_that_the_optimizer_quantizes_wrongly_computes_what_the_graph_says(name: str) -> None:
    model = faulty(name)
    x = sample(model)
    expected = run(model, x, optimize=False)
    assert not same(run(model, x, optimize=True), expected), "mended: narrow the known fault"
    assert len(find_requantized(model)) == 1
    assert keep_layers_apart(model) == ["Conv2" if name == "float weight" else "Conv3"]
    onnx.checker.check_model(model, full_check=True)
    assert find_requantized(model) == []
    for optimize in (False, True):
        assert same(run(model, x, optimize=optimize), expected)


def test_a_layer_whose_bias_fits_is_left_to_the_integer_kernels() -> None:
    model = graph(IN_INT8, f"{WEIGHT}, float[2] sw = {{0.01, 0.01}}, float[2] b = {{2.0, -1.0}}")
    assert find_requantized(model) == []
    plain = graph("c = Conv (x, w, b)", IN_FLOAT[1])  # it reads no DequantizeLinear
    assert find_requantized(plain) == []


@pytest.mark.parametrize("name", CASES)
def test_the_file_and_what_is_built_of_it_compute_what_the_graph_says_with_any_options(
    name: str, tmp_path: Path
) -> None:
    model = faulty(name)
    onnx.save(model, tmp_path / "m.onnx")
    precision = "int8" if name != "float weight" else "fp32"
    built = qcompile.build(
        tmp_path / "m.onnx", tmp_path / "built.onnx", target="onnxruntime", precision=precision,
        allow_fallback=True,
    )  # fmt: skip
    assert list(built.manifest.proof["worked_around"]) == ["requantized-layer"]  # type: ignore[call-overload]
    x = sample(model)
    expected = run(model, x, optimize=False)
    for path in (tmp_path / "m.onnx", built.path):  # opened without the optimizer that is at fault
        with load(path) as runner:
            assert same(runner.infer({"x": x})["y"], expected)
    assert same(run(onnx.load(built.path), x, optimize=True), expected)
    (check,) = [one for one in built.manifest.checks if one.name == "computes what its graph says"]
    assert check.passed
    assert re.fullmatch(
        r"output 'y': (equal to|\d+\.\d dB from) its graph.*; 16 random inputs, "
        "as it is and with the default options", check.detail,
    )  # fmt: skip


def test_a_build_that_computes_another_output_than_its_graph_is_refused(tmp_path: Path) -> None:
    model = faulty("large bias")
    for node in model.graph.node:
        node.op_type = "Identity" if node.op_type == "Relu" else node.op_type  # so that it is all integers
    onnx.save(model, tmp_path / "m.onnx")

    def built(*, fallback: bool) -> Artifact:
        spec = BuildSpec(target="onnxruntime", precision="int8", allow_fallback=fallback)
        # Past `lower`, which rewrites the graph.
        return build_engine(BuildRequest(str(tmp_path / "m.onnx"), tmp_path / "built.onnx", spec))

    said = "ONNX Runtime computes something else, from layer 'Conv3' on: output 'y'"
    with pytest.raises(IntentNotReached, match=said):
        built(fallback=False)
    assert not (tmp_path / "built.onnx").exists()
    kept = built(fallback=True).manifest
    assert any("computes something else" in warning for warning in kept.warnings)
    assert [check.passed for check in kept.checks] == [True, False]


def test_an_excluded_layer_stays_in_float_between_integer_ones(tmp_path: Path) -> None:
    random = np.random.default_rng(1)

    def stored(name: str, *shape: int) -> onnx.TensorProto:
        values: Floats = (random.standard_normal(shape) * 0.3).astype(np.float32)
        values[0] *= 100 if name == "w1" else 1  # one scale for all channels would lose the others
        return onnx.numpy_helper.from_array(values, name)

    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[n,3,8,8] x) => (float[n,4,8,8] y) {
        c0 = Conv <pads = [1,1,1,1]> (x, w0, b0) r0 = Relu (c0)
        c1 = Conv <pads = [1,1,1,1]> (r0, w1, b1) r1 = Relu (c1)
        c2 = Conv <pads = [1,1,1,1]> (r1, w2, b2) y = Relu (c2) }"""
    model = parser.parse_model(text)
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}{index}"
    shapes = {"w0": (4, 3, 3, 3), "w1": (4, 4, 3, 3), "w2": (4, 4, 3, 3), "b0": (4,), "b1": (4,), "b2": (4,)}
    model.graph.initializer.extend(stored(name, *shape) for name, shape in shapes.items())
    onnx.save(model, tmp_path / "m.onnx")
    x = random.standard_normal((8, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    ranges = qcompile.calibrate(tmp_path / "m.onnx", str(tmp_path / "x.npz"), tmp_path / "m.ranges").path
    made = qcompile.quantize(
        tmp_path / "m.onnx", tmp_path / "q.onnx", target="onnxruntime", ranges=ranges, exclude=["Conv2"]
    )
    assert made.manifest.proof["as_executed"] == {
        "int8": {"QLinearConv": 2}, "fp32": {"Conv": 1}, "fp16": {}, "bf16": {},
    }  # fmt: skip
    quantized = onnx.load(made.path)
    assert Counter(node.op_type for node in quantized.graph.node)["Sum"] == 1
    plain, fused = (run(quantized, x, optimize=optimize) for optimize in (False, True))
    assert output_error(plain, fused).snr_db > 40
