"""Three counters agree on every bit: compiled, numpy's and integers; what cannot be counted is found."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from counters import (
    CHUNK,
    COMPILED,
    LARGEST,
    LEAST,
    Values,
    assert_equal,
    exact,
    floor_of_quotient,
    histogram,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qcompile.calibration.histogram import BINS, Histogram, NonFinite, count_by_numpy, make_count
from qcompile.errors import CalibrationError

property_test = settings(deadline=None, max_examples=150)


def assert_counted_exactly(*batches: Values) -> None:
    """All batches go through one compiled counter, through numpy, and through integers."""
    expected = exact(float(value) for batch in batches for value in batch.reshape(-1))
    assert_equal(histogram(batches, COMPILED), expected)
    assert_equal(histogram(batches, count_by_numpy), expected)
    assert_equal(histogram(batches, None), expected)


BORDERS = [2.0**e for e in (-149, -148, -139, -138, -127, -126, -12, -1, 0, 1, 10, 11, 12, 24, 126, 127)]
SPECIAL = [
    0.0, -0.0, 1e-45, -1e-45, 1e38, -1e38, 2.0**-126 - LEAST, LARGEST, -LARGEST, 1e-30, -1e-30, 3.0, 2047.5,
    *BORDERS, *(-border for border in BORDERS),
    *(float(np.nextafter(np.float32(border), np.float32(0))) for border in BORDERS),
    *(-float(np.nextafter(np.float32(border), np.float32(0))) for border in BORDERS),
    *(float(np.nextafter(np.float32(border), np.float32(np.inf))) for border in BORDERS),
]  # fmt: skip
FLOAT32 = st.sampled_from(SPECIAL) | st.floats(allow_nan=False, allow_infinity=False, width=32)
SHORT = st.lists(FLOAT32, max_size=40).map(lambda values: np.array(values, np.float32))


@st.composite
def long_arrays(draw: st.DrawFn) -> Values:
    """Sizes around the borders of chunks, few or many distinct values, and some values put anywhere."""
    size = draw(st.sampled_from([1, 15, 16, 17, 31, 2047, 2048, 2049, 4095, 4096, 4097, 6200]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    some = np.array(draw(st.lists(FLOAT32, min_size=1, max_size=8)), np.float32)
    values = some[generator.integers(0, some.size, size)]
    if draw(st.booleans()):
        scale = np.float32(2.0 ** draw(st.integers(-140, 100)))
        values = generator.standard_normal(size).astype(np.float32) * scale
    for place, value in draw(st.lists(st.tuples(st.integers(0, size - 1), FLOAT32), max_size=4)):
        values[place] = value
    return values


def cut(values: Values, cuts: list[int]) -> list[Values]:
    return np.split(values, sorted(cut % (values.size + 1) for cut in cuts))


@property_test
@given(SHORT, st.lists(st.integers(0, 40), max_size=4))
def test_values_of_every_magnitude_are_counted_exactly(values: Values, cuts: list[int]) -> None:
    assert_counted_exactly(*cut(values, cuts))


@property_test
@given(long_arrays(), st.lists(st.integers(0, 6200), max_size=3))
def test_long_arrays_are_counted_exactly_however_they_are_cut(values: Values, cuts: list[int]) -> None:
    assert_counted_exactly(*cut(values, cuts))


@pytest.mark.parametrize(
    "values",
    [
        [1e-45, 1e38], [1e38, 1e-45], [-1e-45, 1e38], [1e38, -1e-45], [-1e-45, 1e-45, 0.0, -0.0, LARGEST],
        [-1e-30, 1e30, -(2.0**-126), 2.0**-126], [-LARGEST, -LEAST, LEAST, LARGEST], [-(2.0**127), 2.0**127],
        [2.0**-149, -(2.0**-149)], [2.0**-138, 2047 * 2.0**-149],
        [2048 * 2.0**-149, -2048 * 2.0**-149, 1.5 * 2.0**-138], [-1.0, 2047.0], [-1.0, 2048.0],
        [-2048.0, 2047.0], [-1.0, math.nextafter(-1.0, 0.0)], [0.0], [-0.0], [-0.0, 0.0], [-0.0, -LEAST],
        [-0.0, LEAST],
    ],
    ids=str,
)  # fmt: skip
def test_tiny_beside_huge_and_both_signs_of_zero(values: list[float]) -> None:
    array = np.array(values, np.float32)
    assert_counted_exactly(array)
    assert_counted_exactly(*array.reshape(-1, 1))
    for size in (CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 1):
        padded = np.full(size, array[0], np.float32)
        padded[-array.size :] = array
        assert_counted_exactly(padded)
        assert_counted_exactly(padded[::-1])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=str)
def test_every_finite_value_of_16_bits_is_widened_exactly(dtype: type) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    finite = every[np.isfinite(every.astype(np.float32))]
    assert_counted_exactly(finite)
    assert_counted_exactly(finite[np.abs(finite.astype(np.float32)) < 1e-30])


@property_test
@example([-1e-300, 1e308])
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_float64_is_counted_exactly(values: list[float]) -> None:
    assert_counted_exactly(np.array(values, np.float64))


@pytest.mark.parametrize("wide", [2.0**128, -1e39, 1e60, -1e100, 1e230])
def test_float32_is_counted_exactly_in_bins_wider_than_float32_reaches(wide: float) -> None:
    narrow = np.array(
        [LARGEST, -LARGEST, 1.0, -1.0, LEAST, -LEAST, 0.0, -0.0, 2.0**127, -(2.0**127)], np.float32
    )
    assert_counted_exactly(np.array([wide]), narrow)
    assert_counted_exactly(narrow, np.array([wide]), narrow)


def test_counters_of_several_threads_do_not_disturb_each_other() -> None:
    arrays = [np.random.default_rng(seed).standard_normal(200_000).astype(np.float32) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda values: histogram([values], make_count()), arrays))
    for made, values in zip(found, arrays, strict=True):
        assert_equal(made, histogram([values], None))


@property_test
@given(long_arrays(), st.integers(-160, 118))
def test_a_count_says_how_many_of_the_first_values_it_counted(values: Values, exponent: int) -> None:
    for count in (COMPILED, count_by_numpy):
        counts = np.zeros(2 * BINS, np.int64)
        done, low, high = count(values, exponent, counts)
        expected = Counter(floor_of_quotient(float(value), exponent) + BINS for value in values[:done])
        assert {int(i): int(counts[i]) for i in np.flatnonzero(counts)} == expected
        assert float(values.min()) <= low <= high <= float(values.max())
        assert low <= float(values[:done].min(initial=np.inf))
        assert high >= float(values[:done].max(initial=-np.inf))
        fits = max(abs(low), abs(high)) < BINS * 2.0**exponent
        assert fits == (done == values.size)


def python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_numba_numpy_counts_and_says_why() -> None:
    program = """
import sys
sys.modules["numba"] = None
import numpy as np
from qcompile.calibration.histogram import make_count, why_slow
from qcompile.calibration.histogram import Histogram, count_by_numpy
assert make_count() is count_by_numpy
made = Histogram()
made.add(np.array([1, -2, 3], np.float32), make_count())
print(made.total, made.min, made.max)
print(why_slow())
"""
    counted, reason = python(program).splitlines()
    assert counted == "3 -2.0 3.0"
    assert reason.startswith("numba cannot be imported (")
    assert "numpy" in reason
    assert "slower" in reason


def test_the_byte_order_of_an_array_is_minded() -> None:
    values = np.array([1.5, -2.25, 1e-40])
    for dtype in (">f4", ">f8"):
        made, expected = Histogram(), Histogram()
        made.add(values.astype(dtype), make_count())
        expected.add(values.astype(dtype[1:]), make_count())
        np.testing.assert_array_equal(made.counts, expected.counts)
        assert (made.min, made.max) == (expected.min, expected.max)


BAD_BITS = {
    "NaN": (0x7FC00000, 0xFFC00000, 0x7FC12345, 0xFFFFFFFF, 0x7FFFFFFF, 0x7F800001, 0xFF800001),
    "infinity": (0x7F800000, 0xFF800000),
}  # two of the NaN are signaling ones
BITS = pytest.mark.parametrize(
    ("what", "bits"), [(what, bits) for what in BAD_BITS for bits in BAD_BITS[what]]
)


@pytest.mark.parametrize(("size", "places"), [(1, [0]), (2, [0, 1]), (2049, [0, 1000, 2047, 2048]),
                                              (5000, [0, 1, 2047, 2048, 4096, 4999])])  # fmt: skip
@BITS
def test_nan_and_infinity_are_found_anywhere_and_leave_the_counter_clean(
    what: str, bits: int, size: int, places: list[int]
) -> None:
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    count, seen = make_count(), np.array([1.0, -LARGEST], np.float32)
    for place in places:
        broken = values.copy()
        broken.view(np.uint32)[place] = bits
        for counter in (count, count_by_numpy):
            for made in (Histogram(), histogram([seen], counter)):
                with pytest.raises(NonFinite) as caught:
                    made.add(broken, counter)
                assert str(caught.value) == what
    assert_equal(histogram([values], count), exact(values))


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("stray", [[np.nan], [np.inf], [np.nan, -np.inf], [np.inf, -np.nan]])
def test_nan_beside_infinity_is_called_nan_whatever_the_width(width: int, stray: list[float]) -> None:
    values = np.append(np.ones(3000), stray).astype(f"float{width}")
    for count in (COMPILED, count_by_numpy):
        with pytest.raises(NonFinite, match="NaN" if np.isnan(stray).any() else "infinity"):
            Histogram().add(values, count)


def counted(*values: float) -> Histogram:
    return histogram([np.array(values, np.float32)], None)


@pytest.mark.parametrize(("place", "count"), [(BINS, -1), (0, 2**51), (2 * BINS - 1, 2**63 - 1)])
def test_counts_that_overflow_are_implausible(place: int, count: int) -> None:
    for values in (counted(0.5), Histogram()):
        assert values.is_plausible
        values.counts[place] = count
        assert not values.is_plausible


def test_merging_loses_no_count_to_an_overflow() -> None:
    one, other = counted(0.5), counted(0.5)
    one.counts[BINS + 5] = other.counts[BINS + 5] = 2**62 - 1
    with pytest.raises(CalibrationError, match=r"a histogram of \d+ values; at most"):
        one.merge(other)
    assert one.total < 2**63
