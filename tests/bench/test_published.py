"""The rows of the published table."""

from __future__ import annotations

from typing import Any

from qcompile.bench.published import published_rows
from qcompile.bench.results import Entry, Results


def entry(name: str, **values: Any) -> Entry:
    return Entry(name, f"{name}.onnx", "onnxruntime", **values)


INT8 = entry(
    "int8",
    precision="int8",
    size_bytes=25,
    size_ratio=4.0,
    latency_ms={"median": 2.0, "p90": 2.1, "p99": 2.2, "calls": 100},
    speedup={"value": 4.0, "low": 3.9, "high": 4.1, "rounds": 9, "verdict": "faster"},
    accuracy={
        "metric": "top1", "value": 0.9, "drop_points": 1.0, "low": 0.5, "high": 1.5, "samples": 100,
        "agreement": 0.97, "per_class": None, "higher_is_better": True,
    },
)  # fmt: skip
FLOAT = entry("float", size_bytes=100, latency_ms={"median": 5.0, "p90": 5.0, "p99": 5.0, "calls": 9})
EAGER = entry("eager", latency_ms={"median": 8.0, "p90": 8.0, "p99": 8.0, "calls": 9})
MISSING = entry("engine", status="not run", reason="no GPU here", size_bytes=50)


def rows(*entries: Entry, baseline: str) -> dict[str, dict[str, Any]]:
    found = published_rows(Results(baseline, list(entries), {}, {}))
    assert found[0]["method"] == baseline
    assert len({tuple(row) for row in found}) == 1  # the same columns everywhere
    return {row["method"]: row for row in found}


def test_a_row_has_what_papers_print() -> None:
    table = rows(INT8, FLOAT, EAGER, MISSING, baseline="eager")
    assert table["int8"] == {
        "method": "int8", "baseline": False, "engine": "onnxruntime", "precision": "int8",
        "latency_ms": 2.0, "speedup": 4.0, "speedup_low": 3.9, "speedup_high": 4.1, "verdict": "faster",
        "size_bytes": 25, "reduction": 4.0,
        "metric": "top1", "accuracy": 0.9, "drop": 1.0, "drop_unit": "points", "drop_low": 0.5,
        "drop_high": 1.5, "agreement": 0.97, "status": "measured", "reason": "",
    }  # fmt: skip
    base = table["eager"]
    assert (base["baseline"], base["speedup"], base["speedup_low"], base["reduction"]) == (
        True,
        1.0,
        None,
        None,
    )


def test_what_did_not_run_has_its_reason_and_its_size() -> None:
    row = rows(EAGER, FLOAT, MISSING, baseline="eager")["engine"]
    assert (row["status"], row["reason"]) == ("not run", "no GPU here")
    assert (row["latency_ms"], row["speedup"], row["accuracy"], row["drop_unit"]) == (None, None, None, None)
    assert row["size_bytes"] == 50
