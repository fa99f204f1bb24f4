"""Extents, tolerances, versions and sizes that no number holds are refused by their option."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.calibration.tensorrt_cache import version_code
from qcompile.comparison.diff import parse_tolerances
from qcompile.data.spelling import parse_spelling
from qcompile.errors import InvalidOption, QCompileError
from qcompile.model.source_options import SourceOptions, parse_query
from qcompile.pipeline.migrate.intent import read_size, trtexec_shapes
from qcompile.pipeline.recipe import _read_profile
from qcompile.spec.tensorrt import parse_bytes

DIGITS = "9" * 5000


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "y:1e999", "-1", "y:-0.1", "", "y:", "1e-3x", "0x1"])
def test_a_tolerance_is_finite_and_from_zero(text: str) -> None:
    with pytest.raises(InvalidOption, match="a finite number from 0"):
        parse_tolerances([text], option="`atol`")


def test_a_tolerance_is_given_once() -> None:
    with pytest.raises(InvalidOption, match=r"output 'y' is given twice"):
        parse_tolerances(["1", "y:1", "y:2"], option="`atol`")
    assert parse_tolerances(["1", "y:1e-3"], option="`atol`") == {"": 1.0, "y": 1e-3}


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e999", "infM", "nanB"])
def test_sizes_of_other_tools_are_finite(text: str) -> None:
    for read in (read_size, functools.partial(read_size, unit="M")):
        with pytest.raises(InvalidOption):
            read("--memPoolSize", text)


def test_numbers_of_thousands_of_digits_are_refused() -> None:
    for read in (
        lambda: version_code(f"1.{DIGITS}"),
        lambda: parse_bytes(DIGITS, option="workspace"),
        lambda: parse_query(f"seed={DIGITS}", "m"),
        lambda: trtexec_shapes("--shapes", f"x:1x{DIGITS}"),
    ):
        with pytest.raises(InvalidOption):
            read()
    assert _read_profile("1" * 100_000) == {}  # in no time: its pattern took minutes
    assert _read_profile("a:1x3..2x3..4x3,b:c:[1]..[2]..[4]") == {"a": (1, 4), "b:c": (1, 4)}


def test_names_of_files_that_are_no_utf_8_are_written_as_they_were_read() -> None:
    said = parse_query("weights=a%FF\udcc7", "m")
    assert said == SourceOptions(weights="a\udcff\udcc7")
    assert parse_query(said.query[1:], "m") == said


@given(st.text(), st.text())
def test_any_text_is_a_spelling_or_refused(text: str, query: str) -> None:
    for spelled in (text, f"{text}?{query}"):
        try:
            found = parse_spelling(spelled)
        except QCompileError:
            continue
        assert parse_spelling(str(found)).query == found.query
