"""Counters, and counting with integers as their oracle."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from qcompile.calibration.histogram import BINS, Count, Histogram, make_count

Values = NDArray[np.floating]

LEAST = 2.0**-149  # float32's least subnormal

LARGEST = float(np.finfo(np.float32).max)

CHUNK = 2048  # the compiled loop takes so many values at a time


def histogram(batches: Iterable[Values], count: Count | None) -> Histogram:
    made = Histogram()
    for batch in batches:
        made.add(batch, count)
    return made


def assert_equal(found: Histogram, expected: Histogram) -> None:
    assert (found.exponent, found.min, found.max) == (expected.exponent, expected.min, expected.max)
    assert math.copysign(1, found.min) == math.copysign(1, expected.min)
    assert math.copysign(1, found.max) == math.copysign(1, expected.max)
    np.testing.assert_array_equal(found.counts, expected.counts)


def floor_of_quotient(value: float, exponent: int) -> int:
    """floor(value / 2**exponent), in integers."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << max(-exponent, 0)) // (denominator << max(exponent, 0))


def exact(values: Iterable[float]) -> Histogram:
    """The histogram of finite values, counted one by one in integers."""
    found = [float(value) for value in values]
    made = Histogram()
    if not found:
        return made
    made.min, made.max = min(found) + 0.0, max(found) + 0.0  # there is no -0.0
    while floor_of_quotient(max(abs(made.min), abs(made.max)), made.exponent) >= BINS:
        made.exponent += 1
    for index, number in Counter(floor_of_quotient(value, made.exponent) for value in found).items():
        made.counts[BINS + index] = number
    return made


COMPILED = make_count()
