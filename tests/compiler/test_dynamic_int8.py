"""Weights as int8, scales of activations found while the model runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

from qcompile.compiler.dynamic_int8 import quantize_dynamic
from qcompile.compiler.prepare import prepared
from qcompile.errors import InvalidOption, QuantizationError
from qcompile.model.fidelity import fidelity

HIDDEN = 4


def run(model: onnx.ModelProto, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The first output of a model."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    output: NDArray[np.float32] = session.run(None, {"x": x})[0]
    return output


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def recurrent(operator: str, gates: int) -> onnx.ModelProto:
    """A recurrent layer and a MatMul: x [5,1,8] to y [5,1,1,3]."""
    nodes = [
        helper.make_node(operator, ["x", "w", "r"], ["h"], "recurrent", hidden_size=HIDDEN),
        helper.make_node("MatMul", ["h", "v"], ["y"], "head"),
    ]
    shapes = {"w": (1, gates * HIDDEN, 8), "r": (1, gates * HIDDEN, HIDDEN), "v": (HIDDEN, 3)}
    weights = [numpy_helper.from_array(normal(*shape) * 0.3, name) for name, shape in shapes.items()]
    inputs = [helper.make_tensor_value_info("x", 1, [5, 1, 8])]
    outputs = [helper.make_tensor_value_info("y", 1, [5, 1, 1, 3])]
    graph = helper.make_graph(nodes, "recurrent", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def quantized(
    model: onnx.ModelProto, path: Path, *exclude: str
) -> tuple[onnx.ModelProto, dict[str, int], dict[str, int]]:
    """Prepare and quantize; return the written model, what was planned and what was reached."""
    planned, reached = quantize_dynamic(prepared(model), path, exclude=exclude)
    written = onnx.load(path)
    onnx.checker.check_model(written)
    return written, planned, reached


def test_every_matmul_is_quantized_per_output_channel(
    tiny: Callable[..., onnx.ModelProto], tmp_path: Path
) -> None:
    model = tiny("mlp")
    written, planned, reached = quantized(model, tmp_path / "m.onnx")
    assert planned == {"MatMul": 2}
    assert reached == {"MatMulInteger": 2}
    integers = [n for n in written.graph.node if n.op_type == "MatMulInteger"]
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in written.graph.initializer}
    assert [stored[node.input[1]].dtype for node in integers] == [np.int8, np.int8]
    assert {array.shape for name, array in stored.items() if name.endswith("scale")} == {(32,), (8,)}
    x = normal(16, 16)
    assert fidelity(run(model, x), run(written, x)).snr_db > 25


def test_a_gemm_is_quantized_and_convolutions_are_left_alone(
    tiny: Callable[..., onnx.ModelProto], tmp_path: Path
) -> None:
    model = tiny("residual")
    written, planned, reached = quantized(model, tmp_path / "m.onnx")
    assert (planned, reached) == ({"Gemm": 1}, {"MatMulInteger": 1})
    assert [n.op_type for n in written.graph.node].count("Conv") == 2
    x = normal(4, 4, 8, 8)
    assert fidelity(run(model, x), run(written, x)).snr_db > 25


def test_an_excluded_node_stays_in_float(tiny: Callable[..., onnx.ModelProto], tmp_path: Path) -> None:
    written, planned, reached = quantized(tiny("mlp"), tmp_path / "m.onnx", "matmul1")
    assert (planned, reached) == ({"MatMul": 1}, {"MatMulInteger": 1})
    assert [n.name for n in written.graph.node if n.op_type == "MatMul"] == ["matmul1"]


def test_an_lstm_is_quantized(tmp_path: Path) -> None:
    model = recurrent("LSTM", 4)
    written, planned, reached = quantized(model, tmp_path / "m.onnx")
    assert planned == {"LSTM": 1, "MatMul": 1}
    assert reached == {"DynamicQuantizeLSTM": 1, "MatMulInteger": 1}
    x = normal(5, 1, 8)
    assert fidelity(run(model, x), run(written, x)).snr_db > 25


def test_a_recurrent_layer_without_an_integer_form_does_not_keep_a_matmul_from_it(tmp_path: Path) -> None:
    written, planned, reached = quantized(recurrent("GRU", 3), tmp_path / "m.onnx")
    assert (planned, reached) == ({"MatMul": 1}, {"MatMulInteger": 1})
    assert "GRU" in [node.op_type for node in written.graph.node]


@pytest.mark.parametrize(
    "graph",
    [
        """(float[2,7,8] x) => (float[2,7,5] y) <float[8,8] v, float[2,8,5] w> {
            h = MatMul(x, v) y = MatMul(h, w) }""",
        """(float[8,8] x) => (float[8,5] y) <float[8,8] v, float[8,5] w> {
            h = MatMul(x, v) y = Gemm <transA = 1> (h, w) }""",
        """(float[6,8] x) => (float[6,8] y) <float[8,8] v, float[64] w, int64[2] s = {8, 8}> {
            h = MatMul(x, v) made = Reshape(w, s) y = MatMul(h, made) }""",
    ],
    ids=["a batch of weights", "a transposed activation", "a weight made by a node"],
)
def test_a_node_that_is_hard_to_quantize_does_not_keep_another_from_it(graph: str, tmp_path: Path) -> None:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> tiny {graph}')
    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        model.graph.initializer.append(numpy_helper.from_array(normal(*shape) * 0.3, value.name))
    del model.graph.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    written, planned, reached = quantized(model, tmp_path / "m.onnx")
    assert planned["MatMul"] == reached["MatMulInteger"] >= 1
    x = normal(*(dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim))
    assert fidelity(run(model, x), run(written, x)).snr_db > 25


@pytest.mark.parametrize("exclude", [(), ("add_one",)])
def test_a_model_with_nothing_to_quantize_is_an_error(
    exclude: tuple[str, ...], tiny: Callable[..., onnx.ModelProto], tmp_path: Path
) -> None:
    with pytest.raises(QuantizationError, match="nothing to quantize") as caught:
        quantized(tiny("elementwise"), tmp_path / "m.onnx", *exclude)
    assert "static" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_excluding_everything_is_an_error(tiny: Callable[..., onnx.ModelProto], tmp_path: Path) -> None:
    with pytest.raises(QuantizationError, match="nothing to quantize"):
        quantized(tiny("mlp"), tmp_path / "m.onnx", "MatMul")


def test_a_pattern_that_matches_nothing_is_an_error(
    tiny: Callable[..., onnx.ModelProto], tmp_path: Path
) -> None:
    with pytest.raises(InvalidOption, match="--exclude 'Conv'"):
        quantized(tiny("mlp"), tmp_path / "m.onnx", "Conv")


def test_gemms_that_share_a_transposed_weight_keep_it(tmp_path: Path) -> None:
    """ONNX Runtime's quantizer transposes a shared weight twice: 5 dB were left of a Transformer."""
    weight = numpy_helper.from_array(normal(8, 8) * 0.3, "w")
    bias = numpy_helper.from_array(normal(8), "b")
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], "first", transB=1),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Gemm", ["r", "w", "b"], ["y"], "second", transB=1),
    ]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [6, 8]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "shared", values[:1], values[1:], [weight, bias])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    written, planned, reached = quantized(model, tmp_path / "m.onnx")
    assert (planned, reached) == ({"Gemm": 2}, {"MatMulInteger": 2})
    x = normal(6, 8)
    assert fidelity(run(model, x), run(written, x)).snr_db > 25
