"""Q/DQ lies where the target wants it, with scales that can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser
from written_models import model_of

import qcompile
from qcompile.calibration import load_ranges
from qcompile.compiler.quantize.int8.placement import plan
from qcompile.compiler.quantize.int8.static import activation_limits, quantize_static
from qcompile.compiler.quantize.prepare import prepare_graph
from qcompile.errors import CalibrationError, QuantizationError
from qcompile.spec.words import GraphTarget

Limits = Mapping[str, tuple[float, float]]

SPANS = "x -4 3, c1 -5 5, r1 0 2.55, c2 -3 2, a -3 4, r2 0 4, p 0.5 1, f 0.5 1, y -1 2"
RANGES: Limits = {
    name: (float(low), float(high)) for name, low, high in (span.split() for span in SPANS.split(","))
}


class Graph:
    """A quantized model that is easy to ask."""

    def __init__(self, model: onnx.ModelProto) -> None:
        onnx.checker.check_model(model)
        self.model = model
        self.nodes = {node.name: node for node in model.graph.node}
        self.made_by = {name: node for node in model.graph.node for name in node.output}
        self.stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}

    def operands(self, name: str) -> list[str]:
        """The operators that make the inputs of a node; "" for stored tensors and model inputs."""
        makers = [self.made_by.get(tensor) for tensor in self.nodes[name].input]
        return [maker.op_type if maker is not None else "" for maker in makers]

    def quantizer(self, name: str, index: int) -> tuple[NDArray[np.float32], NDArray[np.int8], int]:
        """Scale, zero point and axis of the Q/DQ before an operand of a node; axis -1 where there is none."""
        pair = self.made_by[self.nodes[name].input[index]]
        axes = [attribute.i for attribute in pair.attribute if attribute.name == "axis"]
        scale, zero_point = self.stored[pair.input[1]], self.stored[pair.input[2]]
        return scale, zero_point, axes[0] if scale.ndim and axes else -1


def run(model: onnx.ModelProto, **feeds: NDArray[np.float32]) -> NDArray[np.float32]:
    """The first output of a model, from ONNX Runtime."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    output: NDArray[np.float32] = session.run(None, feeds)[0]
    return output


def quantized(model: onnx.ModelProto, target: GraphTarget, ranges: Limits = RANGES) -> Graph:
    """Prepare, plan and quantize a model."""
    ready = prepare_graph(model)
    return Graph(quantize_static(ready, plan(ready, target), ranges))


def one_node(
    node: onnx.NodeProto, x: list[int], y: list[int], **weights: NDArray[np.float32]
) -> onnx.ModelProto:
    """A model of one node with weights."""
    values = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", 1, x)],
        [helper.make_tensor_value_info("y", 1, y)],
        values,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def residual(tiny: Callable[..., onnx.ModelProto]) -> onnx.ModelProto:
    """The tiny residual model."""
    return tiny("residual")


def test_tensorrt_gets_symmetric_int8_everywhere(residual: onnx.ModelProto) -> None:
    graph = quantized(residual, "tensorrt")
    pairs = [n for n in graph.nodes.values() if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert pairs
    for node in pairs:
        zero_point = graph.stored[node.input[2]]
        assert zero_point.dtype == np.int8
        assert not zero_point.any()


def test_tensorrt_gets_float_bias_and_a_pair_on_the_residual_branch_of_the_add(
    residual: onnx.ModelProto,
) -> None:
    graph = quantized(residual, "tensorrt")
    assert graph.operands("add") == ["Conv", "DequantizeLinear"]
    for name in ("conv1", "conv2", "gemm"):
        assert graph.operands(name) == ["DequantizeLinear", "DequantizeLinear", ""]
        assert graph.stored[graph.nodes[name].input[2]].dtype == np.float32
    assert graph.made_by["y"].op_type == "Gemm"


def test_onnxruntime_gets_uint8_activations_int8_weights_int32_bias_and_float_from_the_last_gemm(
    residual: onnx.ModelProto,
) -> None:
    graph = quantized(residual, "onnxruntime")
    for name in ("conv1", "conv2", "gemm"):
        assert graph.quantizer(name, 0)[1].dtype == np.uint8
        assert graph.quantizer(name, 1)[1].dtype == np.int8
        bias = graph.made_by[graph.nodes[name].input[2]]
        assert graph.stored[bias.input[0]].dtype == np.int32
    assert graph.made_by["y"].op_type == "Gemm"  # it writes float itself


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("x", -4.0, 3.0), ("r1", 0.0, 2.55), ("c2", -3.0, 2.0), ("r2", 0.0, 4.0), ("p", 0.5, 1.0)],
)
def test_uint8_scales_span_the_range_with_zero_in_255_steps(
    name: str, low: float, high: float, residual: onnx.ModelProto
) -> None:
    graph = quantized(residual, "onnxruntime")
    pair = next(n for n in graph.nodes.values() if n.op_type == "QuantizeLinear" and n.input[0] == name)
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / 255
    assert graph.stored[pair.input[1]] == pytest.approx(scale, rel=1e-6)
    assert graph.stored[pair.input[2]] == round(-low / scale)


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
@pytest.mark.parametrize("name", ["conv1", "conv2", "gemm"])
def test_weight_scales_are_the_largest_magnitude_of_each_output_channel_by_127(
    name: str, target: GraphTarget, residual: onnx.ModelProto
) -> None:
    weights = {node.name: node.input[1] for node in residual.graph.node if len(node.input) > 1}
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in residual.graph.initializer}
    weight = stored[weights[name]]
    scale, zero_point, axis = quantized(residual, target).quantizer(name, 1)
    expected = [max(abs(float(value)) for value in channel.flat) / 127 for channel in weight]
    np.testing.assert_allclose(scale, expected, rtol=1e-6)
    assert axis == 0
    assert not zero_point.any()


@pytest.mark.parametrize(
    ("node", "shapes", "axis"),
    [
        (helper.make_node("MatMul", ["x", "w"], ["y"], "n"), ([3, 4], [4, 5], [3, 5]), 1),
        (helper.make_node("Gemm", ["x", "w"], ["y"], "n"), ([3, 4], [4, 5], [3, 5]), 1),
        (
            helper.make_node("ConvTranspose", ["x", "w"], ["y"], "n"),
            ([1, 2, 3, 3], [2, 5, 1, 1], [1, 5, 3, 3]),
            1,
        ),
    ],
)
def test_weights_are_per_output_channel_wherever_the_operator_has_that_axis(
    node: onnx.NodeProto, shapes: tuple[list[int], list[int], list[int]], axis: int
) -> None:
    weight = normal(*shapes[1])
    graph = quantized(
        one_node(node, shapes[0], shapes[2], w=weight), "tensorrt", {"x": (-1, 1), "y": (-1, 1)}
    )
    scale, _, found = graph.quantizer("n", 1)
    assert found == axis
    others = tuple(index for index in range(weight.ndim) if index != axis)
    np.testing.assert_allclose(scale, np.abs(weight).max(axis=others) / 127, rtol=1e-6)


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
def test_a_gemm_computes_what_integers_by_hand_give(target: GraphTarget) -> None:
    x, w, b = normal(6, 8, seed=1), normal(8, 5, seed=2), normal(5, seed=3)
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], "gemm")
    graph = quantized(one_node(node, [6, 8], [6, 5], w=w, b=b), target, {"x": (-2.0, 3.0), "y": (-9, 9)})
    scale, zero, lowest, highest = (3 / 127, 0, -128, 127) if target == "tensorrt" else (5 / 255, 102, 0, 255)
    integers = np.clip(np.round(x / np.float32(scale)) + zero, lowest, highest) - zero
    scales = np.abs(w).max(axis=0) / 127
    product = (integers @ np.round(w / scales)) * scale * scales
    np.testing.assert_allclose(run(graph.model, x=x), product + b, atol=2e-4)


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
@pytest.mark.parametrize("name", ["x", "r1", "c2"])
def test_a_missing_range_names_the_tensor(name: str, target: GraphTarget, residual: onnx.ModelProto) -> None:
    ranges = {tensor: limits for tensor, limits in RANGES.items() if tensor != name}
    with pytest.raises(CalibrationError, match=f"tensor '{name}' needs a scale and has no range") as caught:
        quantized(residual, target, ranges)
    assert caught.value.data["tensor"] == name


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
@pytest.mark.parametrize("limits", [(-1.0, float("inf")), (float("nan"), 1.0)])
def test_a_range_that_is_not_finite_names_the_tensor(
    limits: tuple[float, float], target: GraphTarget, residual: onnx.ModelProto
) -> None:
    with pytest.raises(QuantizationError, match="'x'"):
        quantized(residual, target, {**RANGES, "x": limits})


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
def test_a_tensor_that_is_always_zero_gets_a_usable_scale(
    target: GraphTarget, residual: onnx.ModelProto
) -> None:
    graph = quantized(residual, target, {**RANGES, "x": (0.0, 0.0)})
    assert np.isfinite(run(graph.model, x=np.zeros((1, 4, 8, 8), np.float32))).all()


def test_a_shared_bias_gets_the_scale_of_each_of_its_readers() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> shared (float[1,2,4,4] x) => (float[1,2,4,4] y)
        <float[2] b = {0.5,-1}, float[2,2,1,1] w = {1,2,3,4}, float[2,2,1,1] v = {4,0.5,1,2}>
        { [one] a = Conv(x, w, b) [two] y = Conv(a, v, b) }"""
    )
    graph = quantized(model, "onnxruntime", {"x": (-1.0, 1.0), "a": (-3.0, 3.0), "y": (-9.0, 9.0)})
    for name in ("one", "two"):
        scale, _, _ = graph.quantizer(name, 2)
        expected = graph.quantizer(name, 0)[0] * graph.quantizer(name, 1)[0]
        np.testing.assert_allclose(scale, expected, rtol=1e-6)
        stored = graph.stored[graph.made_by[graph.nodes[name].input[2]].input[0]]
        np.testing.assert_allclose(stored * scale, [0.5, -1], atol=float(scale.max()))


def test_openvino_takes_what_is_clipped_on_both_sides_for_uneven_too(tmp_path: Path) -> None:
    # A symmetric int8 Concat in front of a Conv computes nonsense there (2026.4).
    model = model_of(
        """(float[N,2,4,4] x, float[N,2,4,4] z) => (float[N,3,4,4] y) {
        c = Concat<axis=1>(x, z) y = Conv(c, w) }""",
        named=True, w=np.ones((3, 4, 1, 1), np.float32),
    )  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    even = np.concatenate([np.full((4, 2, 4, 4), -5, np.float32), np.full((4, 2, 4, 4), 5, np.float32)])
    np.savez(tmp_path / "d.npz", x=even, z=even)
    qcompile.calibrate(tmp_path / "m.onnx", str(tmp_path / "d.npz"), tmp_path / "r", method="minmax")
    ready = prepare_graph(model)
    ranges = load_ranges(tmp_path / "r")
    low, high = activation_limits(ready, plan(ready, "openvino"), ranges, None)["c"]
    assert low == -5
    assert high > 5
    assert high == pytest.approx(5, rel=1e-5)


def test_ranges_for_another_target_hint_at_the_target(tmp_path: Path) -> None:
    body = "{ a = Conv(x, w) s = Sigmoid(a) y = MaxPool <kernel_shape = [1, 1]> (s) }"
    image = "float[n, 2, 4, 4]"
    model = tmp_path / "m.onnx"
    onnx.save(model_of(f"({image} x) => ({image} y) {body}", w=normal(2, 2, 1, 1)), model)
    np.savez(tmp_path / "x.npz", x=normal(3, 2, 4, 4))
    ranges = qcompile.calibrate(model, str(tmp_path / "x.npz"), tmp_path / "r", targets=["tensorrt"]).path
    with pytest.raises(CalibrationError) as caught:
        qcompile.quantize(model, tmp_path / "q.onnx", ranges=ranges, target="onnxruntime")
    assert caught.value.hint.endswith("calibrate for this `target`")
