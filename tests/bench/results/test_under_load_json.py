"""Points under load and the largest rate: written, read again, damaged, and as text."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qcompile.bench.results.export import markdown
from qcompile.bench.results.file_types import problem_of
from qcompile.bench.results.results import SCHEMA, Results
from qcompile.bench.results.row import Latency, Row
from qcompile.bench.results.row_json import read_row, row_json
from qcompile.bench.results.under_load import ArrivalPoint, LargestRate
from qcompile.bench.results.under_load_text import COLUMNS, arrival_cells, largest_cells

STEADY = ArrivalPoint(50.0, 49.5, 600, 5.1, 7.0, 12.0, 11.0, 14.5, 4, 0.26)
OPEN_ENDED = ArrivalPoint(150.0, 148.0, 1500, 9.0, 20.0, 40.0, 31.0, None, 12, 0.75)
TOO_MANY = ArrivalPoint(250.0, 199.0, 410, backlog=101, busy=1.0, keeps_up=False)
POINTS = (STEADY, OPEN_ENDED, TOO_MANY)
FOUND = LargestRate(50.0, 160.0, 110.0, 190.0)
NONE = LargestRate(2.0, None, None, 12.5, "p99 is not below 2 ms at 12.5 requests per second")


def row(found: LargestRate | None = FOUND) -> Row:
    return Row("a", "a.onnx", "onnxruntime", latency=Latency(5.0), arrivals=POINTS, largest_rate=found)


@pytest.mark.parametrize("found", [FOUND, NONE, None])
def test_what_is_written_is_read_again_and_keeps_the_schema(found: LargestRate | None) -> None:
    value = json.loads(json.dumps(row_json(row(found))))
    schema = json.loads(SCHEMA.read_text())
    for key in ("arrivals", "largest_rate"):
        part = schema["$defs"]["artifact"]["properties"][key]
        jsonschema.Draft202012Validator(part).validate(value[key])
    again = read_row(value)
    assert again.arrivals == POINTS
    assert again.largest_rate == found


def test_files_without_load_are_read() -> None:
    value = row_json(row())
    del value["arrivals"], value["largest_rate"]
    assert read_row(value).arrivals == ()
    assert read_row(value).largest_rate is None


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*vars(STEADY), "more"]),
        st.none()
        | st.booleans()
        | st.floats()
        | st.integers()
        | st.text(max_size=3)
        | st.lists(st.integers()),
    )
)
def test_a_damaged_point_is_refused_or_read_as_figures(point: dict[str, Any]) -> None:
    value = row_json(row()) | {"arrivals": [point]}
    results = {
        "baseline": "a", "settings": {"threads": 1, "inputs": {}}, "environment": {}, "artifacts": [value],
    }  # fmt: skip
    if problem_of(results):
        return
    for one in read_row(value).arrivals:
        assert one.rate_per_s > 0
        assert math.isfinite(one.rate_per_s)
        assert one.requests >= 1
        assert one.backlog >= 0
        assert all(isinstance(cell, str) for cell in arrival_cells(one))


def test_a_row_of_text_has_every_figure_or_says_why_not() -> None:
    assert arrival_cells(STEADY) == [
        "50.0", "49.5", "5.10", "7.00", "12.0", "[11.0, 14.5]", "4", "26%",
    ]  # fmt: skip
    assert arrival_cells(OPEN_ENDED)[5] == "[31.0, –]"
    assert arrival_cells(TOO_MANY) == ["250", "199", "does not keep up", "–", "–", "–", "101", "100%"]
    assert all(len(arrival_cells(point)) == len(COLUMNS) for point in POINTS)
    assert largest_cells(FOUND) == ["160", "110", "190"]
    assert largest_cells(NONE)[0].startswith("none: p99 is not below 2 ms")


def test_markdown_has_a_table_of_points_and_one_of_rates() -> None:
    settings = {"threads": 1, "inputs": {"x": "1x4"}}
    where = {"processor": "some", "features": [], "cores_usable": 2}
    text = markdown(Results("a", [row()], where, settings))
    assert "| a | 250 | 199 | does not keep up | – | – | – | 101 | 100% |" in text
    assert "| p99 below 50 ms | largest rate, requests/s | certainly below | certainly above |" in text
    assert "| a | 160 | 110 | 190 |" in text
