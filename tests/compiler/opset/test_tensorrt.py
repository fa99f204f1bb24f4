"""LSTMs and GRUs written as products, against ONNX Runtime's own kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper, parser
from two_opsets import model as of_opset
from written_models import model_of, normal, outputs_of

import qcompile
from qcompile.compiler.opset.recurrent_products import (
    float_recurrences,
    quantize_states,
    recurrent_inputs,
    rewrite_recurrences,
)
from qcompile.compiler.opset.tensorrt_forms import find_trt_operators, in_standard_forms
from qcompile.engines.registry import load
from qcompile.model.graph.graph import graph_precision, opset


def lstm(
    direction: str = "bidirectional", *, bias: str = "b", opset: int = 20, outputs: int = 3, how: str = "",
    kind: str = "LSTM",
) -> onnx.ModelProto:  # fmt: skip
    """x [length, batch, 6] through an LSTM of 5: its attributes `how`, its bias and the inputs behind it."""
    gates = 4 if kind == "LSTM" else 3
    ways = 2 if direction == "bidirectional" else 1
    shapes = {"y": f"length,{ways},batch,5", "y_h": f"{ways},batch,5", "y_c": f"{ways},batch,5"}
    names = list(shapes)[:outputs]
    results = ", ".join(f"float[{shapes[name]}] {name}" for name in names)
    node = f'{", ".join(names)} = {kind}<hidden_size=5, direction="{direction}"{how}>'
    proto = of_opset(
        opset, f"(float[length,batch,6] x) => ({results})", f"[lstm] {node}(x, w, r{', ' * bool(bias)}{bias})"
    )
    for name, shape in (("w", (ways, 5 * gates, 6)), ("r", (ways, 5 * gates, 5)), ("b", (ways, 10 * gates))):
        proto.graph.initializer.append(numpy_helper.from_array(normal(*shape, scale=0.6), name))
    return proto


GRU: dict[str, Any] = {"kind": "GRU", "how": ", linear_before_reset=1"}


def computed(model: onnx.ModelProto, x: NDArray[np.float32]) -> list[NDArray[Any]]:
    onnx.checker.check_model(model, full_check=True)
    return outputs_of(model, x, optimize=True)


@given(
    layer=st.sampled_from([{}, GRU]),
    direction=st.sampled_from(["forward", "reverse", "bidirectional"]),
    bias=st.sampled_from(["b", ""]),
    opset=st.sampled_from([13, 17, 18, 20]),
    outputs=st.integers(1, 3),
    length=st.integers(1, 7),
    batch=st.integers(1, 4),
)
@settings(max_examples=40, deadline=None)
def test_an_opened_layer_computes_the_same(
    layer: dict[str, Any], direction: str, bias: str, opset: int, outputs: int, length: int, batch: int
) -> None:
    x = np.random.default_rng(1).standard_normal((length, batch, 6)).astype(np.float32)
    model = lstm(direction, bias=bias, opset=opset, outputs=min(outputs, 2) if layer else outputs, **layer)
    expected = computed(model, x)
    assert rewrite_recurrences(model) == ["lstm"]
    assert not {"LSTM", "GRU"} & {node.op_type for node in model.graph.node}
    for array, other in zip(expected, computed(model, x), strict=True):
        np.testing.assert_allclose(other, array, atol=2e-6)


@pytest.mark.parametrize("layer", [{}, {**GRU, "outputs": 2}], ids=["lstm", "gru"])
def test_the_state_is_multiplied_in_integers_and_keeps_its_signal(layer: dict[str, Any]) -> None:
    x = np.random.default_rng(1).standard_normal((32, 4, 6)).astype(np.float32)
    model = lstm(**layer)
    expected = computed(model, x)[0]
    rewrite_recurrences(model)
    assert quantize_states(model) == 2
    found = computed(model, x)[0]
    noise = float(((found - expected) ** 2).sum())
    assert noise > 0
    assert 10 * np.log10(float((expected**2).sum()) / noise) > 35


def test_weights_of_the_state_have_a_scale_per_channel() -> None:
    model = lstm("forward")
    weight = numpy_helper.to_array(model.graph.initializer[1])[0]  # [4 * hidden, hidden]
    rewrite_recurrences(model)
    quantize_states(model)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    (scale,) = [array for name, array in stored.items() if name.endswith("state_weight/scale")]
    np.testing.assert_allclose(scale, np.abs(weight).max(1) / 127, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"how": ", clip=3.0"}, "not the usual ones"),
        ({"how": ", input_forget=1"}, "not the usual ones"),
        ({"how": ', activations=["Relu", "Tanh", "Tanh"]'}, "not the usual ones"),
        ({"bias": "b, lengths"}, "sequence lengths"),
        ({"bias": "b, , , , peepholes"}, "peepholes"),
        ({"bias": "b, , state"}, "first state"),
        ({"kind": "GRU", "outputs": 2}, "resets the state before the product"),
    ],
)
def test_other_lstms_stay_and_say_why(options: dict[str, Any], reason: str) -> None:
    model = lstm("forward", **options)
    before = model.SerializeToString()
    assert rewrite_recurrences(model) == []
    assert reason in float_recurrences(model)["lstm"]
    assert recurrent_inputs(model) == set()
    assert model.SerializeToString() == before


def test_what_is_excluded_by_name_stays() -> None:
    model = lstm()
    assert rewrite_recurrences(model, exclude={"lstm"}) == []
    assert float_recurrences(model) == {"lstm": "it was excluded"}
    assert recurrent_inputs(model) == {"x"}


@pytest.mark.parametrize("layer", [{}, {**GRU, "outputs": 2}], ids=["lstm", "gru"])
def test_tensorrt_builds_it_with_the_products_of_states_in_int8(
    layer: dict[str, Any], tmp_path: Path
) -> None:
    model = lstm(**layer)
    rewrite_recurrences(model)
    quantize_states(model)
    onnx.save(model, tmp_path / "m.onnx")
    shapes = {f"{kind}_shapes": {"x": (8, n, 6)} for kind, n in (("min", 1), ("opt", 4), ("max", 32))}
    built = qcompile.build(
        tmp_path / "m.onnx", tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"],
        allow_fallback=True, **shapes,  # type: ignore[arg-type]
    )  # fmt: skip
    found = built.manifest.proof["layers_by_precision"]
    assert found == {"fp32": {"MATRIX_MULTIPLY": 2}, "int8": {"MATRIX_MULTIPLY": 2}}


STORED = {"w": normal(64, 32, scale=1 / 8), "s": np.float32(0.02), "sw": np.float32(0.01)}
FP8 = """
    [q] q = trt.TRT_FP8QuantizeLinear(x, s)  [d] d = trt.TRT_FP8DequantizeLinear(q, s)
    [qw] qw = trt.TRT_FP8QuantizeLinear(w, sw)  [dw] dw = trt.TRT_FP8DequantizeLinear(qw, sw)
    [product] y = MatMul(d, dw)
"""
MXFP8 = """
    [q] q, sx = trt.TRT_MXFP8DynamicQuantize <axis = -1, block_size = 32, output_dtype = 17> (x)
    [d] d = trt.TRT_MXFP8DequantizeLinear <axis = -1, block_size = 32, output_dtype = 1> (q, sx)
    [product] y = MatMul(d, w)
"""
NVFP4 = """
    [q] q, sx = trt.TRT_FP4DynamicQuantize <axis = -1, block_size = 16, scale_type = 17> (x, s)
    [scales] ds = DequantizeLinear(sx, s)  [d] d = trt.DequantizeLinear <axis = -1, block_size = 16> (q, ds)
    [product] y = MatMul(d, w)
"""


def model(body: str, version: int, **more: NDArray[Any]) -> onnx.ModelProto:
    """y [N,32] of x [N,64], a weight w [64,32] and scales s, sw."""
    declared = "(float[N,64] x) => (float[N,32] y) <uint8[N,64] q>"
    proto = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {version}, "trt" : 1]> g {declared} {{ {body} }}'
    )
    read = {name for node in proto.graph.node for name in node.input}
    for name in read & {*STORED, *more}:
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray({**STORED, **more}[name]), name))
    return proto


@pytest.mark.parametrize("version", [17, 19, 21])
def test_fp8_becomes_onnxs_own_and_computes_what_float8_does(version: int, tmp_path: Path) -> None:
    proto = model(FP8, version)
    assert graph_precision(proto) == "fp8"
    made = in_standard_forms(proto)
    onnx.checker.check_model(made, full_check=True)
    assert opset(made) == max(version, 19)
    assert find_trt_operators(made) == []
    assert graph_precision(made) == "fp8"
    onnx.save(made, tmp_path / "m.onnx")
    x = np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)

    def rounded(values: np.ndarray, scale: float) -> np.ndarray:  # type: ignore[type-arg]
        return (values / np.float32(scale)).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(
            scale
        )

    expected = rounded(x, 0.02) @ rounded(STORED["w"], 0.01)
    with load(tmp_path / "m.onnx") as runner:
        np.testing.assert_allclose(runner.infer({"x": x})["y"], expected, rtol=1e-4, atol=1e-4)


def test_stored_bytes_get_the_type_that_they_are_of() -> None:
    float8 = np.linspace(-2, 2, 64 * 32, dtype=np.float32).reshape(64, 32).astype(ml_dtypes.float8_e4m3fn)
    body = "[dw] dw = trt.TRT_FP8DequantizeLinear(bytes, sw) y = MatMul(x, dw)"
    made = in_standard_forms(model(body, 19, bytes=float8.view(np.uint8)))
    onnx.checker.check_model(made, full_check=True)
    (tensor,) = [one for one in made.graph.initializer if one.name == "bytes"]
    assert tensor.data_type == TensorProto.FLOAT8E4M3FN
    np.testing.assert_array_equal(numpy_helper.to_array(tensor).astype(np.float32), float8.astype(np.float32))


def test_int4_weights_in_bytes_are_packed_and_their_blocks_kept() -> None:
    weights = np.random.default_rng(0).integers(-8, 8, (64, 32), np.int8)
    scales = np.full((2, 32), 0.1, np.float32)
    body = "[dw] dw = trt.TRT_INT4DequantizeLinear <axis = 0, block_size = 32> (q4, s4) y = MatMul(x, dw)"
    proto = model(body, 20, q4=weights, s4=scales)
    assert graph_precision(proto) == "int4"
    made = in_standard_forms(proto)
    onnx.checker.check_model(made, full_check=True)
    assert (opset(made), graph_precision(made)) == (21, "int4")
    (tensor,) = [one for one in made.graph.initializer if one.name == "q4"]
    np.testing.assert_array_equal(numpy_helper.to_array(tensor).astype(np.int8), weights)


def test_what_has_no_equal_stays() -> None:
    proto = model(MXFP8, 19)
    assert in_standard_forms(proto) is proto
    assert find_trt_operators(proto) == ["TRT_MXFP8DequantizeLinear", "TRT_MXFP8DynamicQuantize"]
    left = in_standard_forms(model(NVFP4, 23))
    assert find_trt_operators(left) == ["TRT_FP4DynamicQuantize"]
    assert [node.domain for node in left.graph.node] == ["trt", "", "", ""]


@pytest.mark.parametrize(
    ("body", "opset", "precision", "gpu"),
    [(FP8, 19, "fp8", "sm89"), (MXFP8, 19, "fp32", "sm120"), (NVFP4, 23, "fp32", "sm120")],
)
def test_the_real_rtx_builds_each_and_what_cannot_be_compared_is_said(
    body: str, opset: int, precision: str, gpu: str, tmp_path: Path
) -> None:
    onnx.save(model(body, opset), tmp_path / "m.onnx")
    qcompile.inspect(tmp_path / "m.onnx")
    manifest = qcompile.build(
        tmp_path / "m.onnx", tmp_path / "m.engine", target="tensorrt-rtx", precision=precision, gpus=[gpu]
    ).manifest
    told = any("ONNX Runtime has no TRT_" in warning for warning in manifest.warnings)
    assert told == (precision == "fp32")


def test_a_recurrence_that_loses_too_much_stays_in_float(tmp_path: Path) -> None:
    """For TensorRT it is written as products, whose input has a channel that no weight reads."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((64, 6, 8)).astype(np.float32)
    x[..., 0] *= 1000
    np.savez(tmp_path / "d.npz", x=x)
    w = generator.standard_normal((1, 48, 8)).astype(np.float32) * 0.5
    w[..., 0] = 1e-5
    model = model_of(
        """(float[N, 6, 8] x) => (float[N, 16] y) <float[1, 48, 12] r, float[12, 16] v, int64[1] z = {0}> {
        t = Transpose<perm = [1, 0, 2]>(x) h, l, c = LSTM<hidden_size = 12>(t, w, r)
        s = Squeeze(l, z) y = MatMul(s, v) }""",
        named=True, w=w,
    )  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    data = str(tmp_path / "d.npz")
    qcompile.calibrate(tmp_path / "m.onnx", data, tmp_path / "m.ranges", targets=["tensorrt"])
    made = qcompile.quantize(
        tmp_path / "m.onnx", tmp_path / "q.onnx", ranges=tmp_path / "m.ranges", data=data, target="tensorrt"
    )
    left: Any = made.manifest.proof["left_in_float"]
    assert next(iter(left.values())).startswith("in INT8 they leave ")
    assert made.manifest.proof["nodes_by_precision"]["int8"] == {"MatMul": 1}  # type: ignore[index]
    operators = [node.op_type for node in onnx.load(made.path).graph.node]
    assert ("LSTM" in operators, "Scan" in operators) == (True, False)
