"""Extents, tolerances, versions and sizes that no number holds are refused by their option.

That any text of them is read or refused: tests/fuzz. What is printed is read back: tests/test_tensors.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from qcompile.calibration.tensorrt_cache import version_code
from qcompile.comparison.diff import parse_tolerances
from qcompile.errors import InvalidOption
from qcompile.model.source import SourceOptions, parse_query
from qcompile.pipeline.migrate.intent import read_size, trtexec_shapes
from qcompile.pipeline.recipe import _read_profile
from qcompile.spec.tensorrt import parse_bytes
from qcompile.tensors import parse_dynamic_axis, parse_input

DIGITS = "9" * 5000
INPUTS = (
    f"x:1x{DIGITS}", "x:[1,²]", "x:1,٣", "x:[[1,2]]", "x:1x", ":3",
    f"x:[h={DIGITS},3]", f"x:[h=1..{DIGITS},3]", "x:[h=٣..9,3]",
)  # fmt: skip
REFUSED: dict[Callable[[str], object], tuple[str, ...]] = {
    parse_input: INPUTS,
    parse_dynamic_axis: (f"x:{DIGITS}=batch",),
    lambda text: parse_tolerances([text], option="`atol`"): (
        "inf", "-inf", "y:1e999", "-1", "y:-0.1", "", "y:", "1e-3x", "0x1",
    ),
    partial(read_size, "--memPoolSize"): ("nan", "inf", "-1", "1e999", "infM", "nanB"),
    partial(read_size, "--memPoolSize", unit="M"): ("nan", "inf", "-1", "1e999", "infM", "nanB"),
    version_code: (f"1.{DIGITS}",),
    partial(parse_bytes, option="workspace"): (DIGITS,),
    partial(parse_query, spec="m"): (f"seed={DIGITS}",),
    partial(trtexec_shapes, "--shapes"): (f"x:1x{DIGITS}",),
}  # fmt: skip


@pytest.mark.parametrize(("read", "texts"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_is_no_number_is_refused(read: Callable[[str], object], texts: tuple[str, ...]) -> None:
    for text in texts:
        with pytest.raises(InvalidOption):
            read(text)


def test_tolerances_and_profiles_are_read() -> None:
    assert parse_tolerances(["1", "y:1e-3"], option="`atol`") == {"": 1.0, "y": 1e-3}
    with pytest.raises(InvalidOption, match="a finite number from 0"):
        parse_tolerances(["nan"], option="`atol`")
    with pytest.raises(InvalidOption, match=r"output 'y' is given twice"):
        parse_tolerances(["1", "y:1", "y:2"], option="`atol`")
    assert _read_profile("1" * 100_000) == {}  # in no time: its pattern took minutes
    assert _read_profile("a:1x3..2x3..4x3,b:c:[1]..[2]..[4]") == {"a": (1, 4), "b:c": (1, 4)}


def test_names_of_files_that_are_no_utf_8_are_written_as_they_were_read() -> None:
    options = parse_query("weights=a%FF\udcc7", "m")
    assert options == SourceOptions(weights="a\udcff\udcc7")
    assert parse_query(options.query[1:], "m") == options
