"""NaN and infinity are found wherever they are, and leave the counter clean."""

from __future__ import annotations

import numpy as np
import pytest
from counters import CHUNK, COMPILED, LARGEST, LEAST, assert_equal, exact, histogram

from qcompile.calibration.histogram import Histogram, NonFinite, count_by_numpy, make_count

NAN_BITS = [0x7FC00000, 0xFFC00000, 0x7FC12345, 0xFFFFFFFF, 0x7FFFFFFF]


SIGNALING_BITS = [0x7F800001, 0xFF800001]


INFINITE_BITS = [0x7F800000, 0xFF800000]


def bad(bits: int) -> np.float32:
    return np.array([bits], np.uint32).view(np.float32)[0]


PLACES = [
    (1, 0), (2, 0), (2, 1), (2048, 0), (2048, 1000), (2048, 2047), (2049, 2047), (2049, 2048),
    (5000, 0), (5000, 1), (5000, 2047), (5000, 2048), (5000, 4096), (5000, 4999),
]  # fmt: skip


@pytest.mark.parametrize(("size", "place"), PLACES)
@pytest.mark.parametrize("bits", [*NAN_BITS, *SIGNALING_BITS, *INFINITE_BITS], ids=hex)
def test_nan_and_infinity_are_found_anywhere_and_leave_the_counter_clean(
    bits: int, size: int, place: int
) -> None:
    count = make_count()
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    broken = values.copy()
    broken.view(np.uint32)[place] = bits
    for counter in (count, count_by_numpy):
        with pytest.raises(NonFinite) as caught:
            Histogram().add(broken, counter)
        assert caught.value.what == ("infinity" if bits in INFINITE_BITS else "NaN")
    assert_equal(histogram([values], count), exact(values))


@pytest.mark.parametrize("bits", [*NAN_BITS, *INFINITE_BITS], ids=hex)
@pytest.mark.parametrize("largest", [0.0, LEAST, 1.0, LARGEST])
def test_nan_and_infinity_are_found_whatever_was_seen_before(largest: float, bits: int) -> None:
    made = histogram([np.array([largest, -largest], np.float32)], COMPILED)
    with pytest.raises(NonFinite):
        made.add(np.array([bad(bits)], np.float32), COMPILED)
    assert_equal(made, exact([largest, -largest]))


@pytest.mark.parametrize("bits", [*NAN_BITS, *INFINITE_BITS], ids=hex)
@pytest.mark.parametrize("width", [16, 64])
def test_nan_and_infinity_of_other_widths_are_found(width: int, bits: int) -> None:
    values = np.append(np.ones(3000), bad(bits)).astype(f"float{width}")
    for count in (COMPILED, count_by_numpy):
        with pytest.raises(NonFinite, match="NaN" if bits in NAN_BITS else "infinity"):
            Histogram().add(values, count)


def test_nan_beside_infinity_is_called_nan_by_both() -> None:
    for first, second in ((np.nan, np.inf), (-np.inf, np.nan), (np.inf, -np.nan)):
        for count in (COMPILED, count_by_numpy):
            with pytest.raises(NonFinite, match="NaN"):
                Histogram().add(np.array([1, first, 2, second], np.float32), count)


def test_a_counter_that_met_an_error_midway_counts_the_next_tensors_as_if_nothing_was() -> None:
    count = make_count()
    generator = np.random.default_rng(0)
    for bits in (*NAN_BITS, *INFINITE_BITS):
        broken = generator.standard_normal(3 * CHUNK).astype(np.float32)
        broken[generator.integers(2 * CHUNK, 3 * CHUNK)] = bad(bits)
        seen = Histogram()
        seen.add(np.array([10.0], np.float32), count)  # the first chunks fit, and were counted
        with pytest.raises(NonFinite):
            seen.add(broken, count)
        for scale in (1e-20, 1.0, 1e20):
            values = generator.laplace(scale=scale, size=5000).astype(np.float32)
            assert_equal(histogram([values], count), histogram([values], count_by_numpy))
