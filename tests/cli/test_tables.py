"""Tables in the terminal of what was measured on a GPU."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from rich.console import Console

from qcompile.bench.results.results import Results
from qcompile.bench.results.row import CurvePoint, GpuLatency, Row
from qcompile.cli.tables import curve_table, gpu_table

ROWS = [
    Row("net", "net.py:build", "pytorch", device="cuda:0", gpu_latency=GpuLatency(4.0, 5.0, 3.5)),
    Row("plan", "m.engine", "tensorrt", device="cuda:0", gpu_latency=GpuLatency(1.6, 2.0, 0.1)),
    Row("onnx", "m.onnx", "onnxruntime", device="cuda:0"),
]


def text(table: Any) -> str:
    """What a terminal shows."""
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def results(rows: list[Row]) -> Results:
    """Results of a run."""
    return Results("net", rows, {}, {})


def test_compute_is_compared_with_compute() -> None:
    shown = text(gpu_table(results(ROWS))).splitlines()
    cells = [line.replace("│", " ").split() for line in shown]
    assert ["net", "4.00", "1.00×", "5.00", "3.50"] in cells
    assert ["plan", "1.60", "2.50×", "2.00", "0.100"] in cells
    assert not any(line[:1] == ["onnx"] for line in cells)


def test_a_baseline_without_a_gpus_clock_leaves_the_ratio_out() -> None:
    rows = [replace(ROWS[0], gpu_latency=None), *ROWS[1:]]
    assert "×" not in text(gpu_table(results(rows)))
    assert gpu_table(results([rows[0]])) is None


def test_inferences_in_flight_are_a_curve() -> None:
    rows = [replace(ROWS[1], in_flight=(CurvePoint(4, 2.0, 3.0, 1234.0),)), ROWS[0]]
    shown = text(curve_table(results(rows), "in_flight"))
    assert "in flight" in shown
    assert ["plan", "4", "2.00", "3.00", "1,234"] in [
        line.replace("│", " ").split() for line in shown.splitlines()
    ]
    assert curve_table(results(rows), "concurrency") is None
