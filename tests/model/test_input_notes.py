"""What a file says of its inputs is read back as it was written; a damaged entry is none."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.model.input_notes import KEY, AxisRange, InputNote, read_notes, write_notes


def test_notes_come_back_as_they_were_written() -> None:
    model = onnx.ModelProto()
    notes = {"x": InputNote((2, 3, 64), {2: AxisRange(32, None, 8)}), "y": InputNote(())}
    write_notes(model, {"old": InputNote((1,))})
    write_notes(model, notes)
    assert read_notes(model) == notes
    assert len(model.metadata_props) == 1


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"x": 3}', '{"x": {"example": [true], "axes": {}}}', "[" * 100_000,
     '{"x": {"example": [-1], "axes": {}}}', '{"x": {"example": [2], "axes": {"a": {}}}}'],
)  # fmt: skip
def test_a_damaged_note_is_none(text: str) -> None:
    model = onnx.ModelProto()
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, text
    assert read_notes(model) == {}


@given(st.integers(1, 40), st.integers(0, 80), st.integers(1, 9), st.integers(0, 200))
def test_the_nearest_extent_is_one_that_the_axis_takes(low: int, more: int, step: int, extent: int) -> None:
    limits = AxisRange(low, low + more, step)
    allowed = [n for n in range(low, low + more + 1) if n % step == 0]
    found = limits.nearest(extent)
    if allowed:
        assert found in allowed
        above = [n for n in allowed if n >= extent]
        assert found == (above[0] if above else allowed[-1])
