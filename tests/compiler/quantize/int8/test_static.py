"""Q/DQ lies where the target wants it, with scales that can be computed by hand."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser
from written_models import model_of, normal, outputs_of

import qcompile
from qcompile.calibration import load_ranges
from qcompile.compiler.quantize.int8.pair_limits import PairLimits, pair_limits, product_limits
from qcompile.compiler.quantize.int8.placement import place_nodes
from qcompile.compiler.quantize.int8.static import activation_limits, quantize_static
from qcompile.compiler.quantize.prepare import prepare_graph
from qcompile.compiler.quantize.weights.rounding import gptq
from qcompile.errors import CalibrationError, QuantizationError
from qcompile.model.graph.graph_rules import SaturatingKernels, graph_rules
from qcompile.spec.words import GRAPH_TARGETS, GraphTarget

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


def quantized(model: onnx.ModelProto, target: GraphTarget, ranges: Limits = RANGES) -> Graph:
    """Prepare, plan and quantize a model."""
    ready = prepare_graph(model)
    return Graph(quantize_static(ready, place_nodes(ready, target), ranges))


@pytest.fixture
def residual(tiny: Callable[..., onnx.ModelProto]) -> onnx.ModelProto:
    return tiny("residual")


@pytest.mark.parametrize("target", GRAPH_TARGETS)
def test_an_input_that_is_an_output_too_is_returned_as_it_is(
    target: GraphTarget, residual: onnx.ModelProto
) -> None:
    """The quantizer, which looks for the node that makes an output, said "Graph is not a DAG"."""
    residual.graph.output.insert(0, residual.graph.input[0])
    x = normal(1, 4, 8, 8)
    np.testing.assert_array_equal(outputs_of(quantized(residual, target).model, x)[0], x)


def test_uint8_scales_span_the_range_with_zero_in_255_steps(residual: onnx.ModelProto) -> None:
    graph = quantized(residual, "onnxruntime")
    for name, low, high in (("x", -4, 3), ("r1", 0, 2.55), ("c2", -3, 2), ("r2", 0, 4), ("p", 0, 1)):
        pair = next(n for n in graph.nodes.values() if n.op_type == "QuantizeLinear" and n.input[0] == name)
        assert graph.stored[pair.input[1]] == pytest.approx((high - low) / 255, rel=1e-6)
        assert graph.stored[pair.input[2]] == round(-low * 255 / (high - low))


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
@pytest.mark.parametrize(
    ("node", "x", "w", "y", "axis"),
    [
        ("Conv(x, w)", "1,2,3,3", (5, 2, 1, 1), "1,5,3,3", 0),
        ("Gemm<transB = 1>(x, w)", "3,4", (5, 4), "3,5", 0),
        ("MatMul(x, w)", "3,4", (4, 5), "3,5", 1),
        ("Gemm(x, w)", "3,4", (4, 5), "3,5", 1),
        ("ConvTranspose(x, w)", "1,2,3,3", (2, 5, 1, 1), "1,5,3,3", 1),
    ],
)
def test_weight_scales_are_the_largest_magnitude_of_each_output_channel_by_127(
    node: str, x: str, w: tuple[int, ...], y: str, axis: int, target: GraphTarget
) -> None:
    if target == "onnxruntime" and node.startswith("ConvTranspose"):
        return  # which has no integer kernel there
    weight = normal(*w)
    model = model_of(f"(float[{x}] x) => (float[{y}] y) {{ [n] y = {node} }}", w=weight)
    scale, zero_point, along = quantized(model, target, {"x": (-1, 1), "y": (-1, 1)}).quantizer("n", 1)
    assert along == axis
    others = tuple(index for index in range(weight.ndim) if index != axis)
    np.testing.assert_allclose(scale, np.abs(weight).max(axis=others) / 127, rtol=1e-6)
    assert not zero_point.any()


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
def test_ranges_are_there_and_finite_and_those_of_zeros_are_usable(
    target: GraphTarget, residual: onnx.ModelProto
) -> None:
    for name in ("x", "r1", "c2"):
        others = {tensor: limits for tensor, limits in RANGES.items() if tensor != name}
        with pytest.raises(CalibrationError, match=f"'{name}' needs a scale and has no range") as caught:
            quantized(residual, target, others)
        assert caught.value.data["tensor"] == name
    for limits in ((-1.0, float("inf")), (float("nan"), 1.0)):
        with pytest.raises(QuantizationError, match="'x'"):
            quantized(residual, target, {**RANGES, "x": limits})
    graph = quantized(residual, target, {**RANGES, "x": (0.0, 0.0)})
    assert np.isfinite(outputs_of(graph.model, np.zeros((1, 4, 8, 8), np.float32))[0]).all()


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


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_pairs_of_the_model_on_stored_tensors_stay(target: GraphTarget, tmp_path: Path) -> None:
    """Two that share a scale: stored as integers in its place, one would take the other's."""
    model = model_of(
        """(float[n,8] x) => (float[n,8] y) {
        a = MatMul(x, w)  b = Relu(a)
        q1 = QuantizeLinear(u, s, z)  d1 = DequantizeLinear(q1, s, z)
        q2 = QuantizeLinear(v, s, z)  d2 = DequantizeLinear(q2, s, z)
        e = Mul(d1, d2)  y = Add(b, e) }""",
        opset=19, w=normal(8, 8), u=normal(8), v=normal(8, seed=1), s=np.float32(0.05), z=np.int8(0),
    )  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=normal(32, 8, seed=2))
    qcompile.calibrate(tmp_path / "m.onnx", str(tmp_path / "d.npz"), tmp_path / "r")
    made = qcompile.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", ranges=tmp_path / "r", target=target)
    graph = onnx.load(made.path).graph
    pairs = {node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    assert pairs >= {"u", "v"}


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
    low, high = activation_limits(ready, place_nodes(ready, "openvino"), ranges, None)["c"]
    assert low == -5
    assert high > 5
    assert high == pytest.approx(5, rel=1e-5)


def test_ranges_for_another_target_hint_at_the_target(tmp_path: Path) -> None:
    body = "{ a = Conv(x, w) s = Sigmoid(a) y = MaxPool <kernel_shape = [1, 1]> (s) }"
    image = "float[n, 2, 4, 4]"
    onnx.save(model_of(f"({image} x) => ({image} y) {body}", w=normal(2, 2, 1, 1)), tmp_path / "m.onnx")
    data = str(tmp_path / "x.npz")
    np.savez(data, x=normal(3, 2, 4, 4))
    ranges = qcompile.calibrate(tmp_path / "m.onnx", data, tmp_path / "r", targets=["tensorrt"]).path
    with pytest.raises(CalibrationError, match=r"tensor 's' .*has no range") as caught:
        qcompile.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", ranges=ranges, target="onnxruntime")
    assert caught.value.hint.endswith("calibrate for this `target`")


Array = NDArray[Any]
FLAT, TAPS = (graph_rules(name).saturates["avx2"] for name in ("onnxruntime", "openvino"))
CONVOLUTIONS = [((8, 4, 3, 3), 1), ((8, 3, 3, 3), 1), ((6, 1, 3), 1), ((8, 3, 2, 2), 4), ((6, 1, 3, 3), 3)]


def limits_for(shape: tuple[int, ...], group: int, kernels: SaturatingKernels) -> PairLimits:
    limits = pair_limits(helper.make_node("Conv", [], [], group=group), shape, kernels)
    assert limits is not None
    return limits


def brute_force_fits(integers: Array, order: str) -> bool:
    """Whether no corner of the activations, all 0 or 255, saturates a sum that ONNX Runtime makes."""
    outputs, channels = integers.shape[:2]
    by_place = integers.reshape(outputs, channels, -1).swapaxes(1, 2)  # the kernel, then the channels
    weights = by_place.reshape(outputs, -1).astype(np.int64)
    depth = weights.shape[1]
    starts = range(0, depth - 1, 2)
    if order == "taps":  # pairs within each place
        starts = [place + k for place in range(0, depth, channels) for k in range(0, channels - 1, 2)]  # type: ignore[assignment]
    sums = [p * weights[:, k] + q * weights[:, k + 1] for k in starts for p in (0, 255) for q in (0, 255)]
    return all(((values >= -(2**15)) & (values < 2**15)).all() for values in sums)


@pytest.mark.parametrize(("shape", "group"), CONVOLUTIONS)
@pytest.mark.parametrize("order", ["flat", "taps"])
def test_no_corner_of_the_activations_saturates(shape: tuple[int, ...], group: int, order: str) -> None:
    kernels = SaturatingKernels(dense=order, grouped=order)  # type: ignore[arg-type]
    limits = limits_for(shape, group, kernels)
    _, integers = limits.quantize(normal(*shape))
    assert limits.fits(integers)
    assert brute_force_fits(integers, order)


def test_weights_of_eight_bits_are_caught_by_the_brute_force_and_by_us() -> None:
    """The oracle of the test above sees what saturates, in the order that the kernels have."""
    within, across = np.zeros((1, 3, 1, 2), np.int8), np.zeros((1, 3, 1, 2), np.int8)
    within[0, :2, 0, 1] = 127  # channels 0 and 1 of the second position: 3 and 4 of the depth
    across[0, 2, 0, 0] = across[0, 0, 0, 1] = 127  # 2 and 3 of the depth
    for integers, flat, taps in ((within, True, False), (across, False, True)):
        for kernels, order, fits in ((FLAT, "flat", flat), (TAPS, "taps", taps)):
            assert limits_for(integers.shape, 1, kernels).fits(integers) == fits
            assert brute_force_fits(integers, order) == fits


@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 10**6), st.floats(1e-6, 1e6))
@settings(max_examples=60)
def test_the_sum_of_any_activations_is_exact(depth: int, channels: int, seed: int, size: float) -> None:
    random = np.random.default_rng(seed)
    weight = (random.standard_normal((depth, channels)) * size).astype(np.float32)
    scales, integers = product_limits(depth).quantize(weight)
    x = random.integers(0, 256, (5, depth))
    products = x[:, :, None] * integers.astype(np.int64)  # [samples, depth, channels]
    pairs = products[:, : depth // 2 * 2].reshape(5, depth // 2, 2, channels).sum(2)
    np.testing.assert_array_equal(pairs, np.clip(pairs, -(2**15), 2**15 - 1))  # as `vpmaddubsw` saturates
    # A scale is at most twice that of eight bits; each weight is off by half a step, one of a pair by more.
    eight = np.abs(weight).max(axis=0) / 127
    assert np.all(scales <= eight * 2 * (127 / 128) * (1 + 1e-6))
    assert np.all(np.abs(integers * scales - weight) <= scales * 1.5 * (1 + 1e-5))


@pytest.mark.parametrize(
    ("shape", "order"), [((8, 4, 3, 3), "flat"), ((6, 3, 3, 3), "flat"), ((6, 3, 2, 2), "taps")]
)
def test_gptq_stays_within_the_room_and_gains(shape: tuple[int, ...], order: str) -> None:
    limits = limits_for(shape, 1, SaturatingKernels(dense=order))  # type: ignore[arg-type]
    weight = normal(*shape)
    scales, nearest = limits.quantize(weight)
    random, depth = np.random.default_rng(1), int(np.prod(shape[1:]))
    x = random.standard_normal((depth, 300)) + 2 * random.standard_normal((1, 300))  # inputs go together
    rows = weight.reshape(shape[0], -1)
    rounded = gptq(
        rows,
        2 * x @ x.T,
        bits=8,
        block_size=0,
        symmetric=True,
        scales=scales,
        room=limits.step_limits(shape, 128),
    )
    integers = (rounded.codes.astype(np.int16) - 128).reshape(shape)
    assert limits.fits(integers)
    errors = [
        np.square((q.reshape(rows.shape) * scales[:, None] - rows) @ x).sum() for q in (integers, nearest)
    ]
    assert errors[0] < errors[1]


def test_nothing_holds_the_quantized_model_but_who_has_it(
    tiny: Callable[..., onnx.ModelProto],
) -> None:
    """A class that knew the stored tensors did, until garbage was collected: half a gigabyte of BERT-base."""
    ready = prepare_graph(tiny("residual"))
    names = ["x", *(name for node in ready.graph.node for name in node.output)]
    placement = place_nodes(ready, "onnxruntime")
    gc.collect()
    gc.disable()
    try:
        quantize_static(ready, placement, dict.fromkeys(names, (-1.0, 1.0)))
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not [one for one in gc.garbage if isinstance(one, onnx.TensorProto | onnx.ModelProto)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
