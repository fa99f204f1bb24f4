"""Weights as int8, scales of activations found while the model runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from written_models import model_of, normal, outputs_of, stored

from qcompile.compiler.quantize.int8.dynamic import WeightType, quantize_dynamic
from qcompile.compiler.quantize.prepare import prepare_graph
from qcompile.compiler.quantize.request import match_nodes
from qcompile.errors import QuantizationError
from qcompile.model.graph_rules import saturating_kernels
from qcompile.model.judgement import output_error
from qcompile.processor import isa_here

HIDDEN = 4
TYPES: tuple[WeightType, ...] = ("int8", "uint8")
ONNX_TYPES = {"int8": onnx.TensorProto.INT8, "uint8": onnx.TensorProto.UINT8}


def recurrent(operator: str, gates: int) -> onnx.ModelProto:
    """A recurrent layer and a MatMul: x [5,1,8] to y [5,1,1,3]."""
    rows = gates * HIDDEN
    return model_of(f"""(float[5,1,8] x) => (float[5,1,1,3] y)
        <float[1,{rows},8] w, float[1,{rows},{HIDDEN}] r, float[{HIDDEN},3] v> {{
        [recurrent] h = {operator}<hidden_size={HIDDEN}>(x, w, r) [head] y = MatMul(h, v) }}""")


def with_states(operator: str, direction: str) -> tuple[onnx.ModelProto, dict[str, NDArray[np.generic]]]:
    """A recurrent layer with all its inputs and outputs, and feeds: 3 sequences of up to 5 steps."""
    gates, ways = {"LSTM": 4, "GRU": 3}[operator], 2 if direction == "bidirectional" else 1
    state, rows = f"float[{ways},3,{HIDDEN}]", gates * HIDDEN
    feeds: dict[str, NDArray[np.generic]] = {
        "x": normal(5, 3, 8), "lens": np.array([5, 2, 3], np.int32), "h0": normal(ways, 3, HIDDEN, seed=1),
    }  # fmt: skip
    inputs = f"float[5,3,8] x, int32[3] lens, {state} h0"
    outputs = f"float[5,{ways},3,{HIDDEN}] y, {state} yh"
    weights = f"float[{ways},{rows},8] w, float[{ways},{rows},{HIDDEN}] r, float[{ways},{2 * rows}] b"
    how = f'hidden_size={HIDDEN}, direction="{direction}"'
    node = f"y, yh = GRU<linear_before_reset=1, {how}>(x, w, r, b, lens, h0)"
    if operator == "LSTM":
        feeds["c0"] = normal(ways, 3, HIDDEN, seed=2)
        inputs, outputs = f"{inputs}, {state} c0", f"{outputs}, {state} yc"
        weights += f", float[{ways},{3 * HIDDEN}] p"
        node = f"y, yh, yc = LSTM<{how}>(x, w, r, b, lens, h0, c0, p)"
    return model_of(f"({inputs}) => ({outputs}) <{weights}> {{ [recurrent] {node} }}"), feeds


def quantized(
    model: onnx.ModelProto, path: Path, *exclude: str, weight_type: WeightType = "int8"
) -> tuple[onnx.ModelProto, dict[str, int], dict[str, int]]:
    """Prepare and quantize for this processor; return the written model, what was planned and reached."""
    kernels = saturating_kernels("onnxruntime", isa_here())
    ready = prepare_graph(model)
    planned, reached = quantize_dynamic(
        ready, path, excluded=match_nodes(ready.graph, exclude), weight_type=weight_type, kernels=kernels
    )
    written = onnx.load(path)
    onnx.checker.check_model(written)
    return written, planned, reached


@pytest.mark.parametrize(
    ("name", "operator", "shape", "scales"),
    [("mlp", "MatMul", (16, 16), [(32,), (8,)]), ("residual", "Gemm", (4, 4, 8, 8), [(3,)])],
)
def test_every_product_is_quantized_per_output_channel_and_convolutions_are_left_alone(
    name: str, operator: str, shape: tuple[int, ...], scales: list[tuple[int]],
    tiny: Callable[..., onnx.ModelProto], tmp_path: Path,
) -> None:  # fmt: skip
    model = tiny(name)
    written, planned, reached = quantized(model, tmp_path / "m.onnx")
    assert (planned, reached) == ({operator: len(scales)}, {"MatMulInteger": len(scales)})
    arrays = stored(written)
    integers = [node for node in written.graph.node if node.op_type == "MatMulInteger"]
    assert {arrays[node.input[1]].dtype.name for node in integers} == {"int8"}
    assert {array.shape for key, array in arrays.items() if key.endswith("scale")} == set(scales)
    assert [node.op_type for node in written.graph.node].count("Conv") == (2 if name == "residual" else 0)
    x = normal(*shape)
    assert output_error(outputs_of(model, x)[0], outputs_of(written, x)[0]).snr_db > 25


@pytest.mark.parametrize("weight_type", TYPES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
def test_directions_lengths_and_states_survive(
    operator: str, direction: str, weight_type: WeightType, tmp_path: Path
) -> None:
    model, feeds = with_states(operator, direction)
    written, planned, reached = quantized(model, tmp_path / "m.onnx", weight_type=weight_type)
    integer = {"LSTM": "DynamicQuantizeLSTM", "GRU": "GRU (weights only)"}[operator]
    assert (planned, reached) == ({operator: 1}, {integer: 1})
    for expected, found in zip(outputs_of(model, feeds), outputs_of(written, feeds), strict=True):
        assert output_error(expected, found).snr_db > 30
    for name in feeds:  # and each input still matters
        changed = feeds | {name: np.ones_like(feeds[name])}
        for expected, found in zip(outputs_of(model, changed), outputs_of(written, changed), strict=True):
            assert output_error(expected, found).snr_db > 30


@pytest.mark.parametrize("weight_type", TYPES)
def test_the_integers_of_a_product_and_of_an_lstm_are_of_the_type_asked_for(
    weight_type: WeightType, tmp_path: Path
) -> None:
    model = recurrent("LSTM", 4)
    written, _, reached = quantized(model, tmp_path / "m.onnx", weight_type=weight_type)
    assert reached == {"DynamicQuantizeLSTM": 1, "MatMulInteger": 1}
    stored = {tensor.name: tensor.data_type for tensor in written.graph.initializer}
    lstm, product = (
        next(node for node in written.graph.node if node.op_type == kind)
        for kind in ("DynamicQuantizeLSTM", "MatMulInteger")
    )
    weights = [*(lstm.input[index] for index in (1, 2, 9, 11)), product.input[1], product.input[3]]
    assert {stored[name] for name in weights} == {ONNX_TYPES[weight_type]}
    x = normal(5, 1, 8)
    assert output_error(outputs_of(model, x)[0], outputs_of(written, x)[0]).snr_db > 25


def test_a_gru_is_stored_as_int8_and_becomes_float_when_it_is_loaded(tmp_path: Path) -> None:
    model = recurrent("GRU", 3)
    written, planned, reached = quantized(model, tmp_path / "m.onnx")
    assert planned == {"GRU": 1, "MatMul": 1}
    assert reached == {"GRU (weights only)": 1, "MatMulInteger": 1}
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in written.graph.initializer}
    assert (stored["w/int8"].dtype, stored["w/int8"].shape) == (np.int8, (1, 12, 8))
    assert stored["w/scale"].shape == stored["r/scale"].shape == (1, 12, 1)  # one for each gate's row
    assert {"w", "r"} & set(stored) == set()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    onnxruntime.InferenceSession(tmp_path / "m.onnx", options, providers=["CPUExecutionProvider"])
    loaded = onnx.load(tmp_path / "loaded.onnx")
    gru = next(node for node in loaded.graph.node if node.op_type == "GRU")
    floats = {tensor.name: numpy_helper.to_array(tensor) for tensor in loaded.graph.initializer}
    original = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for name, found in (("w", floats[gru.input[1]]), ("r", floats[gru.input[2]])):
        assert (np.abs(found - original[name]) <= stored[f"{name}/scale"] / 2 * (1 + 1e-5)).all()
    x = normal(5, 1, 8)
    assert output_error(outputs_of(model, x)[0], outputs_of(written, x)[0]).snr_db > 25


@pytest.mark.parametrize("exclude", [(), ("second",)])
@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_layers_that_share_weights_are_each_computed_right(
    operator: str, gates: int, exclude: tuple[str, ...], tmp_path: Path
) -> None:
    """ONNX Runtime's quantizer reshapes an LSTM's weight in place, whoever else reads it."""
    weight = f"float[1,{gates * 8},8]"
    model = model_of(f"""(float[5,2,8] x) => (float[5,1,2,8] y) <{weight} w, {weight} r> {{
        [first] a, h = {operator}<hidden_size=8>(x, w, r)
        [second] y = {operator}<hidden_size=8>(x, w, r, , , h) }}""")
    written, planned, reached = quantized(model, tmp_path / "m.onnx", *exclude)
    assert sum(planned.values()) == sum(reached.values()) == 2 - len(exclude)
    x = normal(5, 2, 8)
    assert output_error(outputs_of(model, x)[0], outputs_of(written, x)[0]).snr_db > 30


def test_an_excluded_product_reads_the_float_weight_that_it_shares(tmp_path: Path) -> None:
    text = "(float[6,8] x) => (float[6,8] a, float[6,8] y) { a = MatMul(x, w) y = MatMul(x, w) }"
    model = model_of(text, w=normal(8, 8))
    written, _, reached = quantized(model, tmp_path / "m.onnx", "MatMul_y")
    assert reached == {"MatMulInteger": 1}
    x = {"x": normal(6, 8)}
    rounded, exact = outputs_of(written, dict(x))
    np.testing.assert_allclose(exact, outputs_of(model, dict(x))[1], rtol=1e-6)
    assert 25 < output_error(exact, rounded).snr_db < 60


@pytest.mark.parametrize(
    "graph",
    [
        """(float[2,7,8] x) => (float[2,7,5] y) <float[8,8] v, float[2,8,5] w> {
            h = MatMul(x, v) y = MatMul(h, w) }""",
        """(float[8,8] x) => (float[8,5] y) <float[8,8] v, float[8,5] w> {
            h = MatMul(x, v) y = Gemm <transA = 1> (h, w) }""",
        """(float[6,8] x) => (float[6,8] y) <float[8,8] v, float[64] w, int64[2] s = {8, 8}> {
            h = MatMul(x, v) made = Reshape(w, s) y = MatMul(h, made) }""",
        # ONNX Runtime's quantizer transposes it twice: 5 dB were left of a Transformer.
        """(float[6,8] x) => (float[6,8] y) <float[8,8] w, float[8] b, float[8,8] v> {
            h = Gemm<transB=1>(x, w, b) r = Relu(h) g = Gemm<transB=1>(r, w, b) y = MatMul(g, v) }""",
    ],
    ids=["a batch of weights", "a transposed activation", "a weight made by a node", "a shared one"],
)
def test_a_node_that_is_hard_to_quantize_does_not_keep_another_from_it(graph: str, tmp_path: Path) -> None:
    model = model_of(graph)
    written, planned, reached = quantized(model, tmp_path / "m.onnx")
    assert sum(planned.values()) == reached["MatMulInteger"] >= graph.count("transB") + 1
    x = normal(*(dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim))
    assert output_error(outputs_of(model, x)[0], outputs_of(written, x)[0]).snr_db > 25


def test_a_model_with_nothing_to_quantize_is_an_error(
    tiny: Callable[..., onnx.ModelProto], tmp_path: Path
) -> None:
    for exclude in ((), ("add_one",)):
        with pytest.raises(QuantizationError, match="nothing to quantize") as caught:
            quantized(tiny("elementwise"), tmp_path / "m.onnx", *exclude)
        assert "static" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
