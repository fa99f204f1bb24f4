"""Methods: how they are spelled, read and refused."""

from __future__ import annotations

import math
from typing import get_args

import pytest
from distributions import draw, histogram

from qcompile.calibration.thresholds import Method, MethodName, amax_percentile, parse_method
from qcompile.errors import InvalidOption

SPELLINGS = {
    "minmax": Method("minmax"),
    "entropy": Method("entropy"),
    "mse": Method("mse"),
    "auto": Method("auto"),
    "percentile": Method("percentile", 99.99),
    "percentile:99.9": Method("percentile", 99.9),
    "percentile:99.999": Method("percentile", 99.999),
    "percentile:100": Method("percentile", 100.0),
    "percentile:50": Method("percentile", 50.0),
    "percentile:0.5": Method("percentile", 0.5),
}


@pytest.mark.parametrize("text", SPELLINGS)
def test_every_spelling_is_read(text: str) -> None:
    assert parse_method(text) == SPELLINGS[text]


@pytest.mark.parametrize("text", SPELLINGS)
def test_what_a_method_prints_is_read_back(text: str) -> None:
    method = SPELLINGS[text]
    assert parse_method(str(method)) == method


def test_a_method_prints_its_percentile_only_where_that_is_what_it_does() -> None:
    printed = {str(Method(name, 99.9)) for name in get_args(MethodName)}
    assert printed == {"minmax", "percentile:99.9", "entropy", "mse", "auto"}
    assert str(Method("percentile")) == "percentile:99.99"
    assert str(Method()) == "auto"


@pytest.mark.parametrize(
    "text", ["", "kl", "Entropy", " mse", "mse:", "entropy:99", "auto:99.9", ":", ":99", "99.9"]
)
def test_an_unknown_method_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(InvalidOption, match="unknown; known are minmax, percentile, entropy, mse, auto and"):
        parse_method(text)


@pytest.mark.parametrize(
    "text", ["percentile:", "percentile:x", "percentile:99%", "percentile:99:9", "percentile:9,9"]
)
def test_a_percentile_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="is not a number"):
        parse_method(text)


@pytest.mark.parametrize("number", ["0", "-1", "100.01", "nan", "inf", "-inf", "1e9"])
def test_a_percentile_beyond_its_bounds_is_refused_where_it_is_read(number: str) -> None:
    with pytest.raises(InvalidOption, match="above 0 and at most 100 is required"):
        parse_method(f"percentile:{number}")


@pytest.mark.parametrize("percentile", [0.0, -1.0, 100.1, math.nan])
def test_a_percentile_out_of_range_is_refused(percentile: float) -> None:
    with pytest.raises(InvalidOption, match="above 0 and at most 100"):
        amax_percentile(histogram(draw("normal", 10)), percentile)
