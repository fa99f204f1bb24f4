"""Blocks of integers against loops by hand, and GPTQ against the error of the layer that it is to lower."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from written_models import normal

from qcompile.compiler.quantize.weights.rounding import Rounded, gptq, packed, round_to_nearest
from qcompile.errors import QuantizationError

Floats = NDArray[np.float32]


def by_hand(weight: Floats, bits: int, block_size: int, *, symmetric: bool) -> tuple[list[int], Floats]:
    """Codes and values of round to nearest over each block's full range, one value after the other."""
    top, middle = 2**bits - 1, 2 ** (bits - 1)
    codes: list[int] = []
    values = np.zeros_like(weight)
    for row in range(weight.shape[0]):
        for start in range(0, weight.shape[1], block_size):
            block = weight[row, start : start + block_size]
            low, high = np.float32(min(block.min(), 0)), np.float32(max(block.max(), 0))
            width = max(high, -low) if symmetric else high - low
            scale = np.float32(width / np.float32(middle - 1 if symmetric else top)) or np.float32(1)
            zero = middle if symmetric else round(float(-low / scale))
            for column, value in enumerate(block, start):
                code = min(max(round(float(value / scale)) + zero, 0), top)
                codes.append(code)
                values[row, column] = np.float32(code - zero) * scale
    return codes, values


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("rows", "columns", "block_size"), [(3, 64, 32), (1, 50, 16), (4, 7, 16), (2, 33, 32)]
)
def test_without_search_it_is_round_to_nearest_by_hand(
    rows: int, columns: int, block_size: int, bits: int, symmetric: bool
) -> None:
    weight = normal(rows, columns, seed=columns)
    found = round_to_nearest(weight, bits=bits, block_size=block_size, symmetric=symmetric, search=False)
    codes, values = by_hand(weight, bits, block_size, symmetric=symmetric)
    assert found.codes.ravel().tolist() == codes
    np.testing.assert_array_equal(found.dequantized(), values)


def error(weight: Floats, found: Rounded) -> float:
    """The sum of squared errors."""
    return float(((weight - found.dequantized()).astype(np.float64) ** 2).sum())


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 16),
    rows=st.integers(1, 4),
    columns=st.integers(1, 70),
    bits=st.sampled_from([4, 8]),
    block_size=st.sampled_from([0, 16, 32]),
    symmetric=st.booleans(),
    magnitude=st.sampled_from([1e-30, 1e-3, 1.0, 1e20]),
)
def test_the_search_never_loses_and_without_it_no_value_is_off_by_more_than_half_a_step(
    seed: int, rows: int, columns: int, bits: int, block_size: int, symmetric: bool, magnitude: float
) -> None:
    weight = normal(rows, columns, seed=seed) * np.float32(magnitude)
    weight[0, : columns // 2] = 0
    plain = round_to_nearest(weight, bits=bits, block_size=block_size, symmetric=symmetric, search=False)
    size = min(block_size or columns, columns)
    steps = np.repeat(plain.scales, size, axis=1)[:, :columns]
    assert (np.abs(weight - plain.dequantized()) <= 0.5001 * steps).all()
    searched = round_to_nearest(weight, bits=bits, block_size=block_size, symmetric=symmetric)
    if magnitude > 1e-10:  # squares of less are no float32
        assert error(weight, searched) <= error(weight, plain) * 1.0001
    for found in (plain, searched):
        assert found.scales.shape == found.zero_points.shape == (rows, -(-columns // size))
        assert (found.scales > 0).all()
        assert found.codes.max() < 2**bits
        assert not found.dequantized()[weight == 0].any()  # zero is exact
        assert not symmetric or (found.zero_points == 2 ** (bits - 1)).all()


def test_clipping_an_outlier_pays() -> None:
    weight = normal(64, 64)
    plain = round_to_nearest(weight, bits=4, block_size=64, symmetric=True, search=False)
    searched = round_to_nearest(weight, bits=4, block_size=64, symmetric=True)
    assert error(weight, searched) < 0.85 * error(weight, plain)
    finer = np.array([[0.0] * 31 + [1.0]], np.float32)
    assert error(finer, round_to_nearest(finer, bits=4, block_size=32, symmetric=True)) < 1e-12


def correlated(samples: int, columns: int, seed: int) -> Floats:
    """Inputs whose features depend on each other, as a network's do."""
    generator = np.random.default_rng(seed)
    mixing = generator.standard_normal((columns // 4, columns)) * generator.lognormal(size=columns)
    noise = 0.1 * generator.standard_normal((samples, columns))
    return (generator.standard_normal((samples, columns // 4)) @ mixing + noise).astype(np.float32)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("bits", "block_size", "columns", "symmetric"),
    [(4, 32, 128, False), (4, 0, 300, True), (8, 64, 150, False), (4, 16, 40, True)],
)
def test_gptq_lowers_the_error_of_the_output(
    bits: int, block_size: int, columns: int, symmetric: bool, seed: int
) -> None:
    weight, x = normal(24, columns, seed=seed), correlated(1024, columns, seed)
    plain = round_to_nearest(weight, bits=bits, block_size=block_size, symmetric=symmetric)
    hessian = 2 * x.T @ x
    found = gptq(weight, hessian, bits=bits, block_size=block_size, symmetric=symmetric)
    fresh = correlated(4096, columns, seed)[1024:]  # other samples of the same kind
    lost = [((fresh @ (weight - result.dequantized()).T) ** 2).sum() for result in (found, plain)]
    assert lost[0] < 0.8 * lost[1]


@pytest.mark.parametrize("factor", [1.0, 1e-6, 400.0])
@pytest.mark.parametrize(("block_size", "columns"), [(32, 100), (0, 300), (16, 16), (256, 600)])
def test_gptq_of_features_that_do_not_depend_on_each_other_is_round_to_nearest(
    block_size: int, columns: int, factor: float
) -> None:
    weight = normal(5, columns)
    hessian = np.eye(columns) * factor
    found = gptq(weight, hessian, bits=4, block_size=block_size, symmetric=False)
    plain = round_to_nearest(weight, bits=4, block_size=block_size, symmetric=False)
    np.testing.assert_array_equal(found.codes, plain.codes)
    np.testing.assert_array_equal(found.dequantized(), plain.dequantized())


def test_gptq_is_the_papers_loop_over_columns() -> None:
    """Written as in the paper before its blocks: the inverse Hessian shrinks by Gaussian elimination."""
    columns = 200  # more than one lazy block
    weight, x = normal(3, columns, seed=1), correlated(500, columns, 1).astype(np.float64)
    hessian = x.T @ x
    plain = round_to_nearest(weight, bits=8, block_size=0, symmetric=True)
    scale = plain.scales[:, 0].astype(np.float64)
    inverse = np.linalg.inv(hessian + 0.01 * np.trace(hessian) / columns * np.eye(columns))
    left, expected = weight.astype(np.float64), np.empty(weight.shape)
    for column in range(columns):
        expected[:, column] = np.clip(np.rint(left[:, column] / scale), -128, 127) * scale
        missed = (left[:, column] - expected[:, column]) / inverse[column, column]
        left -= np.outer(missed, inverse[column])
        inverse -= np.outer(inverse[:, column], inverse[column]) / inverse[column, column]
    found = gptq(weight, hessian, bits=8, block_size=0, symmetric=True)
    # A value at the edge between two steps may go to the other one, by float32 against float64.
    assert np.mean(np.abs(found.dequantized() - expected) > 0.5 * scale[:, None]) < 0.05
    lost = [((x @ (weight - values).T) ** 2).sum() for values in (found.dequantized(), expected)]
    assert lost[0] == pytest.approx(lost[1], rel=0.1)


def test_inputs_that_are_always_zero_do_no_harm() -> None:
    weight, x = normal(4, 64), correlated(256, 64, 0)
    x[:, ::3] = 0
    found = gptq(weight, x.T @ x, bits=4, block_size=32, symmetric=False)
    assert np.abs(found.dequantized() - weight).max() < 2
    zeros = gptq(weight, np.zeros((64, 64)), bits=4, block_size=32, symmetric=False)
    plain = round_to_nearest(weight, bits=4, block_size=32, symmetric=False)
    np.testing.assert_array_equal(zeros.codes, plain.codes)


@pytest.mark.parametrize("hessian", [np.eye(7), np.full((8, 8), np.nan), -np.eye(8)])
def test_a_wrong_hessian_is_an_error(hessian: NDArray[np.float64]) -> None:
    with pytest.raises(QuantizationError, match="Hessian"):
        gptq(normal(2, 8), hessian, bits=4, block_size=16, symmetric=True)


def test_two_codes_share_a_byte_the_first_one_low() -> None:
    codes = np.array([[1, 2, 3], [15, 0, 9]], np.uint8)
    assert packed(codes, 4).tolist() == [[0x21, 0x03], [0x0F, 0x09]]
    assert packed(codes, 8) is codes
