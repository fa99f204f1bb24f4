from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.figures import bytes_text, clean, figure, interval, number, shortened, times, words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (0.0, "0"), (1234.4, "1,234"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"),
        (0.1234, "0.123"), (0.01234, "0.0123"), (-2.5, "\N{MINUS SIGN}2.50"),
        (1e-7, "1.00e-07"), (1e12, "1.00e+12"), (0.9996, "1.00"), (99.96, "100"),
    ],
)  # fmt: skip
def test_three_digits_count(value: float | None, text: str) -> None:
    assert figure(value) == text


@given(st.floats(min_value=1e-4, max_value=9.99e8))
def test_a_figure_is_within_half_of_its_last_digit(value: float) -> None:
    assert float(figure(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize("value", [None, True, "1", [], {}, math.nan, math.inf, -math.inf, 10**400])
def test_what_is_no_finite_number_is_none(value: object) -> None:
    assert number(value) is None


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "–"), (0, "0 B"), (999, "999 B"), (999_600, "1.00 MB"), (1_103_223, "1.10 MB"),
        (5e12, "5,000 GB"),
    ],
)  # fmt: skip
def test_bytes_are_decimal(size: float | None, text: str) -> None:
    assert bytes_text(size) == text


def test_intervals_have_both_ends_or_are_empty() -> None:
    assert interval(-0.001, 0.4) == "[0.00, 0.40]"
    assert interval(-0.5, 0.4) == "[\N{MINUS SIGN}0.50, 0.40]"
    assert interval(None, 0.4) == interval(1.0, None) == ""
    assert times(3.594) == "3.59×"


@given(st.text(max_size=300), st.integers(min_value=4, max_value=60))
def test_a_shortened_name_fits_and_keeps_its_end(name: str, length: int) -> None:
    line = " ".join(name.split())
    found = shortened(name, length)
    assert len(found) <= length
    if found != line:
        before, after = found.split("…", 1) if "…" not in line else (found[: found.index("…")], "")
        assert line.startswith(before)
        assert line.endswith(after)


def test_a_path_keeps_only_its_end() -> None:
    assert shortened("/backbone/layer3/block.2/conv2/Conv_output_0", 20) == "…conv2/Conv_output_0"
    assert shortened("openvino-int4-weights-per-block", 20) == "openvino…s-per-block"


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8,
))  # fmt: skip
def test_clean_texts_can_be_encoded_and_shown(value: object) -> None:
    text = words(clean(value))
    text.encode()
    assert all(letter.isprintable() or letter in "\n\t" for letter in text)
    json.dumps(clean(value)).encode()


def test_words_of_nested_values_are_one_line() -> None:
    assert words({"a": 1, "b": [0.01, True, None]}) == "a 1, b 0.01, yes, –"
    assert words({}) == words([]) == words("") == words(math.nan) == "–"
