"""No pair of products overflows int16, whatever the activations are, and no more is lost than that needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper
from pairwise_sums import convolution_operands, neighbours, pairwise_sums, saturate16

from qcompile.compiler.quantize.int8.pair_limits import PairLimits, limits_of, pair_limits, product_limits
from qcompile.compiler.quantize.weights.rounding import gptq
from qcompile.model.saturating_kernels import NONE, RECORDED, SaturatingKernels

Array = NDArray[Any]
FLAT, TAPS = RECORDED["onnxruntime", "avx2"], RECORDED["openvino", "avx2"]
CONVOLUTIONS = [((8, 4, 3, 3), 1), ((8, 3, 3, 3), 1), ((6, 1, 3), 1), ((8, 3, 2, 2), 4), ((6, 1, 3, 3), 3)]


def limits_for(shape: tuple[int, ...], group: int, kernels: SaturatingKernels) -> PairLimits:
    limits = pair_limits(helper.make_node("Conv", [], [], group=group), shape, kernels)
    assert limits is not None
    return limits


def weights(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def brute_force_fits(integers: Array, group: int, order: str) -> bool:
    """Whether no corner of the activations, all 0 or 255, saturates a sum that ONNX Runtime makes."""
    channels = integers.shape[1] * group
    x = np.zeros((1, channels, *integers.shape[2:]), np.int64)
    how = {"strides": [1] * (integers.ndim - 2), "pads": [0] * 2 * (integers.ndim - 2), "group": group}
    _, columns = convolution_operands(x, integers, 0, **how)  # type: ignore[arg-type]
    depth = columns.shape[1]
    pairs = neighbours(depth)
    if order == "taps":
        c = integers.shape[1]
        pairs = [(s + k, s + k + 1) for s in range(0, depth, c) for k in range(0, c - 1, 2)]
    for g in range(group):
        for i, j in pairs:
            for p in (0, 255):
                for q in (0, 255):
                    sums = p * columns[g, i] + q * columns[g, j]
                    if not np.array_equal(sums, saturate16(sums)):
                        return False
    return True


@pytest.mark.parametrize(("shape", "group"), CONVOLUTIONS)
@pytest.mark.parametrize("order", ["flat", "taps"])
def test_no_corner_of_the_activations_saturates(shape: tuple[int, ...], group: int, order: str) -> None:
    kernels = SaturatingKernels(dense=order, grouped=order)  # type: ignore[arg-type]
    limits = limits_for(shape, group, kernels)
    _, integers = limits.fitted(weights(*shape))
    assert limits.fits(integers)
    assert brute_force_fits(integers, group, order)


def test_weights_of_eight_bits_are_caught_by_the_brute_force_and_by_us() -> None:
    """The oracle of the test above sees what saturates, in the order that the kernels have."""
    within, across = np.zeros((1, 3, 1, 2), np.int8), np.zeros((1, 3, 1, 2), np.int8)
    within[0, :2, 0, 1] = 127  # channels 0 and 1 of the second position: 3 and 4 of the depth
    across[0, 2, 0, 0] = across[0, 0, 0, 1] = 127  # 2 and 3 of the depth
    for integers, flat, taps in ((within, True, False), (across, False, True)):
        for kernels, order, fits in ((FLAT, "flat", flat), (TAPS, "taps", taps)):
            assert limits_for(integers.shape, 1, kernels).fits(integers) == fits
            assert brute_force_fits(integers, 1, order) == fits


@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 10**6), st.floats(1e-6, 1e6))
@settings(max_examples=60)
def test_the_sum_of_any_activations_is_exact(depth: int, channels: int, seed: int, size: float) -> None:
    random = np.random.default_rng(seed)
    weight = (random.standard_normal((depth, channels)) * size).astype(np.float32)
    scales, integers = product_limits(depth).fitted(weight)
    x = random.integers(0, 256, (5, depth))
    if depth > 1:
        exact = pairwise_sums(x, integers.astype(np.int64), neighbours(depth), saturate16)
        np.testing.assert_array_equal(exact, x @ integers.astype(np.int64))
    # A scale is at most twice that of eight bits; each weight is off by half a step, one of a pair by more.
    eight = np.abs(weight).max(axis=0) / 127
    assert np.all(scales <= eight * 2 * (127 / 128) * (1 + 1e-6))
    assert np.all(np.abs(integers * scales - weight) <= scales * 1.5 * (1 + 1e-5))


def test_opposite_signs_and_odd_ends_keep_eight_bits() -> None:
    opposite = np.float32([[1, 1], [-1, 0.5], [1, 0.5]])  # depth 3, channels 2
    scales, integers = product_limits(3).fitted(opposite)
    np.testing.assert_allclose(scales[0], 1 / 127, rtol=1e-6)
    assert integers[:, 0].tolist() == [127, -127, 127]
    assert scales[1] > 1 / 127  # 1 + 0.5 must fit in 128 steps
    assert integers[:2, 1].sum() <= 128


def test_a_channel_of_zeros_has_scale_one() -> None:
    scales, integers = product_limits(4).fitted(np.zeros((4, 2), np.float32))
    assert scales.tolist() == [1, 1]
    assert not integers.any()


def test_kernels_that_add_in_32_bits_limit_nothing() -> None:
    conv, product = helper.make_node("Conv", [], [], group=4), helper.make_node("MatMul", [], [])
    assert pair_limits(conv, (4, 1, 3, 3), FLAT) is None  # depthwise
    assert pair_limits(conv, (8, 1, 3, 3), FLAT) is not None  # two outputs of each channel
    assert pair_limits(conv, (8, 3, 3, 3), NONE) is None
    assert pair_limits(product, (8, 3), NONE) is None
    assert pair_limits(product, (2, 8, 3), FLAT) is None  # a batch of weights is not quantized


def test_transposed_weights_are_read_along_their_depth() -> None:
    weight = weights(6, 4)
    plain = pair_limits(helper.make_node("MatMul", [], []), (6, 4), FLAT)
    turned = pair_limits(helper.make_node("Gemm", [], [], transB=1), (4, 6), FLAT)
    assert plain is not None
    assert turned is not None
    np.testing.assert_array_equal(plain.fitted(weight)[1], turned.fitted(weight.T)[1].T)
    conv = helper.make_node("ConvTranspose", [], [], group=2)
    limits = pair_limits(conv, (6, 5, 2, 2), SaturatingKernels(grouped="taps"))
    assert limits is not None  # six channels in, two groups of three: (0, 1) of each group at each position
    assert limits.pairs[:3].tolist() == [[0, 1], [3, 4], [6, 7]]
    assert limits.fits(limits.fitted(weights(6, 5, 2, 2))[1])


def test_only_stored_weights_have_limits() -> None:
    nodes = [helper.make_node("MatMul", ["a", name], ["y"]) for name in ("w", "b")]
    assert list(limits_of(nodes, {"w": (2, 3)}, FLAT)) == ["w"]
    assert limits_of(nodes, {"w": (2, 3)}, NONE) == {}


@pytest.mark.parametrize(
    ("shape", "order"), [((8, 4, 3, 3), "flat"), ((6, 3, 3, 3), "flat"), ((6, 3, 2, 2), "taps")]
)
def test_gptq_stays_within_the_room_and_gains(shape: tuple[int, ...], order: str) -> None:
    limits = limits_for(shape, 1, SaturatingKernels(dense=order))  # type: ignore[arg-type]
    weight = weights(*shape)
    scales, nearest = limits.fitted(weight)
    random, depth = np.random.default_rng(1), int(np.prod(shape[1:]))
    x = random.standard_normal((depth, 300)) + 2 * random.standard_normal((1, 300))  # inputs go together
    rows = weight.reshape(shape[0], -1)
    rounded = gptq(
        rows, 2 * x @ x.T, bits=8, block_size=0, symmetric=True, scales=scales, room=limits.room(shape, 128)
    )
    integers = (rounded.codes.astype(np.int16) - 128).reshape(shape)
    assert limits.fits(integers)
    errors = [
        np.square((q.reshape(rows.shape) * scales[:, None] - rows) @ x).sum() for q in (integers, nearest)
    ]
    assert errors[0] < errors[1]


def test_seven_bits_lose_more() -> None:
    """Signal-to-noise of a weight by pairs, beside eight and seven bits: its reason to be."""
    weight = weights(64, 64, 3, 3)
    scales, integers = limits_for(weight.shape, 1, FLAT).fitted(weight)
    amax = np.abs(weight).max(axis=(1, 2, 3), keepdims=True)
    noise = [np.square(np.rint(weight / (amax / q)) * (amax / q) - weight).sum() for q in (127, 63)]
    ours = np.square(integers * scales[:, None, None, None] - weight).sum()
    assert noise[0] < ours < noise[1] / 2
