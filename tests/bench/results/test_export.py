"""CSV and Markdown say what the results say."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from qcompile.bench.results.render import markdown, save_csv, save_markdown
from qcompile.bench.results.results import Results
from qcompile.bench.results.row import Accuracy, Difference, Energy, Interval, Latency, Row
from qcompile.bench.statistics.speedup import Speedup

BASE = Row(
    "a|b.onnx", "a|b.onnx", "onnxruntime", size_bytes=4_000_000, size_ratio=1.0, throughput_per_s=500.0,
    latency=Latency(2.0, 2.2, 2.5, 1.9, 9.0, 100),
)  # fmt: skip
FAST = Row(
    "fast", "fast.onnx", "onnxruntime", "int8", size_bytes=1_000_000, size_ratio=4.0, throughput_per_s=2000.0,
    latency=Latency(0.5, 0.6, 0.7, 0.4, 0.8, 400),
    speedup=Speedup(4.0, 3.9, 4.1, 20, "faster"),
    energy=Energy(unavailable="no counter"),
    parameters=300_000, weights_bytes=900_000, peak_memory_bytes=80_000_000, memory_ratio=1.25,
    difference=Difference(True, "y", 40.0, 0.5, mean_abs_error=0.0123),
)  # fmt: skip
LOST = Row("lost", "lost.engine", "tensorrt", status="not run", reason="no GPU,\nnone")
RESULTS = Results(
    "a|b.onnx", [BASE, FAST, LOST],
    {"processor": "some", "cores": 4, "noise": {"noisy": True, "reasons": ["somebody else"]}},
    {"threads": 2, "inputs": {"x": "1x16"}, "confidence": 0.99},
)  # fmt: skip


def test_markdown_is_the_table_of_a_readme(tmp_path: Path) -> None:
    save_markdown(RESULTS, tmp_path / "t.md")
    assert (tmp_path / "t.md").read_text() == markdown(RESULTS)
    lines = markdown(RESULTS).splitlines()
    assert lines[2].startswith("| a\\|b.onnx (baseline) | 2.00 | 500 | 1.00× | – | 4.00 MB | – | – | – |")
    assert lines[3] == (
        "| fast | 0.500 | 2,000 | 4.00× [3.90, 4.10] | 0.300 M | 1.00 MB | 75.0% | 80.0 MB | 20.0% "
        "| – | – | 0.012 | 0.5 |"
    )
    assert lines[4] == "| lost | not run: no GPU, none | – | – | – | – | – | – | – | – | – | – | – |"
    assert all(line.count(" | ") == lines[0].count(" | ") for line in lines[2:5])
    assert "some, 4 cores, 2 threads, input x:1x16; speed-up against a|b.onnx with its 99% interval" in lines
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
    assert (fast["parameters"], fast["weights_bytes"], fast["memory_ratio"]) == ("300000", "900000", "1.25")
    assert float(fast["difference_mean_abs_error"]) == 0.0123
    assert rows[2]["latency_median_ms"] == ""
    assert rows[2]["reason"] == "no GPU,\nnone"


def test_a_share_is_percent_and_an_error_is_not() -> None:
    share = structs.replace(FAST, accuracy=Accuracy("top1", 0.946, Interval(0.2, -0.3, 0.8), 1000))
    error = structs.replace(FAST, accuracy=Accuracy("mse", 0.00123, Interval(0.0005, 0.0001, 0.0009), 1000))
    assert "| 94.60% | 0.20 [−0.30, 0.80] |" in markdown(replace(RESULTS, rows=[BASE, share]))
    text = markdown(replace(RESULTS, rows=[BASE, error]))
    assert "| 0.00123 | 0.000500 [0.000100, 0.000900] |" in text
    assert "drop with its 95% interval" in text


def test_equal_and_infinitely_wrong_outputs_have_different_cells(tmp_path: Path) -> None:
    rows = [structs.replace(FAST, difference=Difference(True, "y", math.inf, 0.0)),
            structs.replace(FAST, difference=Difference(False, "y", -math.inf, math.inf))]  # fmt: skip
    save_csv(replace(RESULTS, rows=rows), tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        states = [row["difference_state"] for row in csv.DictReader(file)]
    assert states == ["equal", "not finite"]


def test_a_name_is_no_formula_of_a_spreadsheet_and_no_markup(tmp_path: Path) -> None:
    names = ["=cmd|' /C calc'!A0", "@SUM(1)", "+1", "-1", "\tx", "plain", "<img src=x>[a](http://b)\x1b"]
    save_csv(replace(RESULTS, rows=[structs.replace(FAST, name=name) for name in names]), tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        read = [row["name"] for row in csv.DictReader(file)]
    assert read == [f"'{name}" for name in names[:5]] + names[5:]
    text = markdown(replace(RESULTS, rows=[BASE, structs.replace(FAST, name=names[-1])]))
    assert "| &lt;img src=x>\\[a](http://b)\\\\x1b |" in text
