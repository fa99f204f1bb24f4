"""Histograms merge exactly, and the entropy threshold is what TensorRT's published formula gives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from counters import assert_equal
from distributions import DISTRIBUTIONS, draw, histogram
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qcompile.calibration.histogram import BINS, Histogram
from qcompile.calibration.thresholds import amax_entropy, entropy_divergences

Values = NDArray[np.floating]
# Machines share these cores: an example that once takes long is not an error.
property_test = settings(deadline=None, max_examples=60)


def counted(made: Histogram) -> dict[int, int]:
    return {int(i) - BINS: int(made.counts[i]) for i in np.flatnonzero(made.counts)}


FLOAT32 = st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=40).map(
    lambda values: np.array(values, np.float32)
)


@property_test
@given(st.lists(FLOAT32, min_size=1, max_size=5), st.randoms())
def test_merged_shards_are_the_whole(shards: list[Values], random: np.random.Generator) -> None:
    whole = histogram(*shards)
    parts = [histogram(shard) for shard in shards]
    random.shuffle(parts)  # type: ignore[arg-type]
    left, right = Histogram(), Histogram()
    for index, part in enumerate(parts):
        (left if index % 2 else right).merge(part)
    left.merge(right)
    assert_equal(left, whole)


@settings(deadline=None, max_examples=100)
@given(
    st.integers(0, 300), st.integers(-160, 117), st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.3, 1.0])
)
def test_bins_of_any_number_of_doublings_fall_together_as_counted_one_by_one(
    doublings: int, exponent: int, seed: int, filled: float
) -> None:
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, 2**40, 2 * BINS) * (generator.random(2 * BINS) < filled)
    width = 2.0**exponent
    made = Histogram(exponent, counts.copy(), -BINS * width, (BINS - 0.5) * width)
    made.merge(Histogram(exponent + doublings))
    expected: Counter[int] = Counter()
    for index in np.flatnonzero(counts):
        expected[(int(index) - BINS) // 2**doublings] += int(counts[index])
    assert made.exponent == exponent + doublings
    assert counted(made) == expected
    assert (made.min, made.max) == (-BINS * width, (BINS - 0.5) * width)


def test_an_array_larger_than_what_is_counted_at_once_is_counted_whole() -> None:
    values = np.random.default_rng(0).standard_normal((1 << 20) + 1000).astype(np.float32)
    before = values.copy()
    made = histogram(values)
    assert made.total == values.size
    assert_equal(made, histogram(*np.array_split(values, 7)))
    np.testing.assert_array_equal(values, before)


@property_test
@given(FLOAT32.filter(lambda values: values.size))
def test_magnitudes_fold_both_sides(values: Values) -> None:
    made = histogram(values)
    magnitudes = made.magnitudes()
    assert int(magnitudes.sum()) == values.size
    width = Fraction(2) ** made.exponent
    # A negative value on the edge of a bin belongs to the bin that it closes.
    expected = Counter(
        math.floor(q) if q >= 0 else math.ceil(-q) - 1 for q in (Fraction(float(v)) / width for v in values)
    )
    assert {int(i): int(magnitudes[i]) for i in np.flatnonzero(magnitudes)} == expected


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_divergences_are_those_of_the_definition(name: str, seed: int) -> None:
    values = np.abs(draw(name, 30 * 4**seed, seed).astype(np.float64))
    bins, levels = 96 + 7 * seed, (4, 8, 13, 16, 32, 64)[seed]
    counts = np.histogram(values, bins)[0].astype(np.float64)
    candidates = np.arange(levels, bins + 1)
    expected = [divergence(counts, int(kept), levels) for kept in candidates]
    found = entropy_divergences(counts, candidates, levels)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def divergence(counts: NDArray[np.float64], kept: int, levels: int) -> float:
    """KL(P‖Q) of one candidate, as the docstring of `amax_entropy` defines it."""
    p = counts[:kept].copy()
    p[-1] += counts[kept:].sum()
    level = np.arange(kept) * levels // kept
    filled = p > 0
    sums = np.bincount(level, counts[:kept], levels)
    q = np.where(filled, sums[level] / np.maximum(np.bincount(level, filled, levels), 1)[level], 0.0)
    if (q[filled] == 0).any():
        return math.inf
    p, q = p[filled] / p.sum(), q[filled] / q.sum()
    return float((p * np.log(p / q)).sum())


def assert_best_by_the_definition(made: Histogram) -> None:
    """No candidate that may be taken has less divergence than the threshold of `amax_entropy`."""
    levels = 128
    counts = made.magnitudes().astype(np.float64)
    counts[0] = counts[1]
    bins = int(np.flatnonzero(counts)[-1]) + 1
    divergences = {
        kept: divergence(counts, kept, levels)
        for kept in range(levels, bins + 1)
        if counts[kept:].sum() <= 0.1 * counts.sum()
    }
    chosen = amax_entropy(made)
    # The largest magnitude lies in the last bin, whose edge it stands for.
    candidate = bins if chosen == made.largest else round(chosen / made.width)
    assert chosen == made.largest or chosen == candidate * made.width
    least = min(divergences.values())
    assert divergences[candidate] <= least + 1e-11, (candidate, divergences[candidate], least)


def folded(counts: NDArray[np.int64], generator: np.random.Generator) -> Histogram:
    """A histogram whose magnitudes have these counts, the signs drawn at random."""
    exponent, bins = int(generator.integers(-30, 20)), len(counts)
    positive = generator.binomial(counts, generator.choice([0.0, 0.5, 0.9, 1.0]))
    both = np.zeros(2 * BINS, np.int64)
    both[BINS : BINS + bins] = positive
    both[BINS - bins : BINS] = (counts - positive)[::-1]
    used = (np.flatnonzero(both) - BINS + 0.5) * 2.0**exponent
    return Histogram(exponent, both, float(used[0]), float(used[-1]))


SHAPES: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "normal": lambda _, bins: 1e4 * np.exp(-((np.arange(bins) / bins * 4) ** 2) / 2),
    "laplace": lambda _, bins: 1e4 * np.exp(-np.arange(bins) / bins * 9),
    "heavy tail": lambda _, bins: 1e5 / (1 + np.arange(bins)) ** 1.5,
    "uniform": lambda _, bins: np.full(bins, 20.0),
    "few values": lambda generator, bins: np.where(generator.random(bins) < 0.05, 3.0, 0.0),
    "far from zero": lambda _, bins: np.where(np.arange(bins) > 0.7 * bins, 50.0, 0.0),
    "two hills": lambda _, bins: (
        500 * np.exp(-(((np.arange(bins) - bins * 0.2) / 9) ** 2))
        + 200 * np.exp(-(((np.arange(bins) - bins * 0.8) / 5) ** 2))
    ),
    "spike at zero": lambda _, bins: np.where(
        np.arange(bins) == 0, 1e7, 30.0 - 29.0 * np.arange(bins) / bins
    ),
    "spike in a tail": lambda _, bins: np.where(np.arange(bins) == int(0.9 * bins), 400.0, 10.0),
    "comb": lambda _, bins: np.where(np.arange(bins) % 3 == 0, 40.0, 0.0),
}


@pytest.mark.parametrize("name", SHAPES)
def test_entropy_is_the_best_of_all_candidates_on_random_histograms(name: str) -> None:
    generator = np.random.default_rng([*name.encode()])
    for _ in range(20):
        bins = int(generator.integers(130, 420))
        counts = generator.poisson(SHAPES[name](generator, bins))
        counts[-1] += 1
        assert_best_by_the_definition(folded(counts, generator))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_entropy_never_clips_more_than_it_may(name: str) -> None:
    values = np.abs(draw(name, 20_000).astype(np.float64))
    for shift in (0.0, 1.0, 30.0):
        shifted = (values + shift).astype(np.float32)
        assert (shifted > amax_entropy(histogram(shifted))).mean() <= 0.1
    assert_best_by_the_definition(histogram(draw(name, 5000)))


def test_entropy_may_clip_a_tenth_and_not_one_value_more() -> None:
    counts = np.zeros(2 * BINS, np.int64)
    counts[BINS + 200] = 900  # alone with all of the tail it would be represented best
    counts[BINS + 201 : BINS + 301] = 1
    tenth = Histogram(0, counts, 200.5, 300.5)
    assert amax_entropy(tenth) == 201
    more = Histogram(0, counts + (np.arange(2 * BINS) == BINS + 300), 200.5, 300.5)
    assert amax_entropy(more) > 201
    assert_best_by_the_definition(tenth)
    assert_best_by_the_definition(more)


def test_a_histogram_of_fewer_bins_than_levels_is_kept_whole() -> None:
    for bins in (1, 2, 127, 128):
        counts = np.zeros(2 * BINS, np.int64)
        counts[BINS : BINS + bins] = 7
        made = Histogram(-3, counts, 0.0, (bins - 0.5) / 8)
        assert amax_entropy(made) == (bins - 0.5) / 8


def test_the_spike_of_a_relu_at_zero_does_not_decide() -> None:
    values = draw("relu", 20_000)
    more_zeros = np.append(values, np.zeros(500_000, np.float32))
    assert amax_entropy(histogram(values)) == amax_entropy(histogram(more_zeros))
