"""CSV and Markdown say what the results say."""

from __future__ import annotations

import csv
from pathlib import Path

from qcompile.bench.export_results import markdown, save_csv, save_markdown
from qcompile.bench.results import Entry, Results

BASE = Entry(
    "a|b.onnx", "a|b.onnx", "onnxruntime", size_bytes=4_000_000, size_ratio=1.0, throughput_per_s=500.0,
    latency_ms={"min": 1.9, "median": 2.0, "p90": 2.2, "p99": 2.5, "max": 9.0, "calls": 100},
)  # fmt: skip
FAST = Entry(
    "fast", "fast.onnx", "onnxruntime", "int8", size_bytes=1_000_000, size_ratio=4.0, throughput_per_s=2000.0,
    latency_ms={"min": 0.4, "median": 0.5, "p90": 0.6, "p99": 0.7, "max": 0.8, "calls": 400},
    speedup={"value": 4.0, "low": 3.9, "high": 4.1, "rounds": 20, "verdict": "faster"},
    energy={"unavailable": "no counter"},
)  # fmt: skip
LOST = Entry("lost", "lost.engine", "tensorrt", status="not run", reason="no GPU,\nnone")
RESULTS = Results(
    "a|b.onnx", [BASE, FAST, LOST],
    {"processor": "some", "cores": 4, "noise": {"noisy": True, "reasons": ["somebody else"]}},
    {"threads": 2, "inputs": {"x": "1x16"}, "confidence": 0.95},
)  # fmt: skip


def test_markdown_is_the_table_of_a_readme(tmp_path: Path) -> None:
    save_markdown(RESULTS, tmp_path / "t.md")
    assert (tmp_path / "t.md").read_text() == markdown(RESULTS)
    lines = markdown(RESULTS).splitlines()
    assert lines[2].startswith("| a\\|b.onnx (baseline) | 2 | 1.00x | 4 | ")
    assert lines[3] == "| fast | 0.5 | 4.00x [3.90, 4.10] | 1 | 4.00x | – | – |"
    assert lines[4] == "| lost | not run: no GPU, none | – | – | – | – | – |"
    assert "some, 4 cores, 2 threads, input x:1x16; speed-up against a|b.onnx with its 95% interval" in lines
    assert "- disturbed: somebody else" in lines


def test_csv_has_one_row_per_artifact_and_units_in_its_columns(tmp_path: Path) -> None:
    save_csv(RESULTS, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["a|b.onnx", "fast", "lost"]
    fast = rows[1]
    assert float(fast["latency_median_ms"]) == 0.5
    assert float(fast["latency_p99_ms"]) == 0.7
    assert fast["latency_calls"] == "400"
    assert (fast["speedup_verdict"], float(fast["speedup_low"])) == ("faster", 3.9)
    assert fast["energy_unavailable"] == "no counter"
    assert rows[2]["latency_median_ms"] == ""
    assert rows[2]["reason"] == "no GPU,\nnone"
