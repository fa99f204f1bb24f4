"""`sweep.json`: written a cell at a time, read back strictly, refused in sentences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.bench.results.sweep_results import (
    CellAccuracy,
    CellLatency,
    CellResult,
    CellSpeedup,
    head,
    load_sweep,
    parse_sweep,
    sweep_schema,
    write_results,
)
from qcompile.errors import ArtifactError, MissingFile

CELL = CellResult(
    name="a-b1-openvino-int8", model="a", shape="b1", target="openvino", precision="int8", state="done",
    artifact="a/b1/openvino-int8.onnx", digest="sha256:0", size_bytes=7, batch_size=1, inputs={"x": "1x3"},
    measurement="a/b1/results.json", latency=CellLatency(median_ms=1.5, low_ms=1.4, high_ms=1.6),
    speedup=CellSpeedup(baseline="pytorch", value=2.0, low=1.9, high=2.1, verdict="faster"),
    accuracy=CellAccuracy(metric="top1", value=0.5, drop=1.0), built_on="one", measured_on="two",
)  # fmt: skip
WHOLE: dict[str, Any] = {
    **head("m", created="2026-01-01T00:00:00+00:00", planned=1, finished=True),
    "cells": [msgspec.to_builtins(CELL)],
}


def test_cells_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    cells = [msgspec.structs.replace(CELL, name=f"cell-{number}") for number in range(3)]
    write_results(path, head("m", created="", planned=5, finished=False), map(msgspec.json.encode, cells))
    results = load_sweep(path)
    assert results.cells == tuple(cells)
    assert (results.name, results.planned, results.finished) == ("m", 5, False)
    assert not results.cells[0].is_baseline
    assert msgspec.structs.replace(CELL, speedup=None).is_baseline
    jsonschema.validate(json.loads(path.read_bytes()), sweep_schema())
    write_results(path, head("m", created="", planned=0, finished=True), [])
    assert load_sweep(path).cells == ()


def changed(**values: Any) -> dict[str, Any]:
    return {**WHOLE, **values}


def with_cell(**values: Any) -> dict[str, Any]:
    return {**WHOLE, "cells": [{**WHOLE["cells"][0], **values}]}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (changed(kind="qcompile.results"), "qcompile.results of version 1; qcompile.sweep of version 1 is"),
        (changed(schema_version=2), "qcompile.sweep of version 2; qcompile.sweep of version 1 is required"),
        ({}, "a file of no kind of version 0"),
        ([], "Expected `object`"),
        (changed(planned=-1), "planned"),
        (changed(more=1), "unknown field `more`"),
        (with_cell(state="perfect"), "cells[0].state"),
        (with_cell(size_bytes=-1), "size_bytes"),
        (with_cell(latency={"median_ms": 0.0}), "latency.median_ms"),
        (with_cell(latency={}), "missing required field `median_ms`"),
        (with_cell(speedup={**WHOLE["cells"][0]["speedup"], "verdict": "great"}), "verdict"),
        (changed(cells=WHOLE["cells"] * 2), "two cells have the name 'a-b1-openvino-int8'"),
    ],
)
def test_another_file_is_refused_with_what_is_wrong(value: Any, says: str) -> None:
    with pytest.raises(ArtifactError) as refused:
        parse_sweep(json.dumps(value).encode(), Path("sweep.json"))
    assert refused.value.message.startswith("sweep.json: not results of a sweep: ")
    assert says in refused.value.message


def test_a_file_that_is_not_there_or_cut_off_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        load_sweep(tmp_path / "sweep.json")
    content = json.dumps(WHOLE).encode()
    for length in range(0, len(content), 37):
        with pytest.raises(ArtifactError):
            parse_sweep(content[:length], Path("sweep.json"))


@given(st.binary(max_size=200) | st.integers(1, 9).map(lambda n: b"[" * 10**5 * n))
def test_no_bytes_make_another_error(content: bytes) -> None:
    with pytest.raises(ArtifactError):
        parse_sweep(content, Path("sweep.json"))
