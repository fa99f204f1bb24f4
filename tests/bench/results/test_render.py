"""A row in words: units, dashes, and verdicts that their intervals show."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from msgspec import structs

from qcompile.bench.results.render import interval_words, markdown, render
from qcompile.bench.results.results import Results, save_results
from qcompile.bench.results.row import Accuracy, Difference, Interval, Latency, Row
from qcompile.bench.results.row_json import read_row, row_json
from qcompile.bench.statistics.speedup import CONFIDENCE, SMALLEST_DIFFERENCE, Speedup, verdict_of
from qcompile.cli.tables import results_table
from qcompile.reporting.sections_measured import accuracy_section, results_section
from qcompile.reporting.source import read_source
from qcompile.spec.words import METRICS

ROW = Row("a", "a.onnx", "onnxruntime", "int8", latency=Latency(1.234, 1.3, 1.4), size_bytes=1_100_000)
BASE = Row("base", "base.onnx", "onnxruntime", latency=Latency(2.0, 2.1, 2.2))
SETTINGS = {"inputs": {"x": "1x16"}, "threads": 2, "confidence": CONFIDENCE}
HERE = {"processor": "some", "cores": 2}


def terminal(*rows: Row, width: int = 200) -> str:
    """What a terminal shows."""
    from rich.console import Console

    console = Console(width=width)
    results = Results("base", rows, HERE, SETTINGS)
    with console.capture() as captured:
        console.print(results_table(results, width=width))
    return captured.get()


def page(*rows: Row, folder: Path) -> str:
    """The cells of the report's table."""
    save_results(Results("base", rows, HERE, SETTINGS), folder / "r.json")
    table, _ = results_section(read_source(folder / "r.json"), None).tables
    return " | ".join(f"{cell.text} {cell.below}".strip() for row in table.rows for cell in row)


def test_a_mean_squared_error_is_no_percentage(tmp_path: Path) -> None:
    """0.00123 was printed as 0.12% in the terminal."""
    row = structs.replace(ROW, accuracy=Accuracy("mse", 0.00123, Interval(0.0005, 0.0001, 0.0009)))
    for text in (terminal(BASE, row), markdown(Results("base", [BASE, row], HERE, SETTINGS)),
                 page(BASE, row, folder=tmp_path)):  # fmt: skip
        assert "0.00123" in text
        assert "0.000500" in text
        assert "0.12%" not in text
    share = structs.replace(ROW, accuracy=Accuracy("top1", 0.946, Interval(0.2, -0.3, 0.8)))
    for text in (terminal(BASE, share), markdown(Results("base", [BASE, share], HERE, SETTINGS)),
                 page(BASE, share, folder=tmp_path)):  # fmt: skip
        assert "94.60%" in text


@pytest.mark.parametrize("metric", [*METRICS, "f1:micro", "f1:entities", "map:50", "ndcg:10", "own.py:score"])
def test_every_metric_has_its_unit_in_the_table_and_in_the_report(metric: str, tmp_path: Path) -> None:
    own_unit = metric in ("perplexity", "kl", "mse", "own.py:score")
    lower_is_better = metric in ("wer", "cer", "perplexity", "kl", "mse")
    found = Accuracy(metric, 0.2468, Interval(1.357, 0.5, 2.5), 100, higher_is_better=not lower_is_better)
    row = structs.replace(ROW, accuracy=found)
    value, drop, ends = ("0.247", "1.36", "[0.500, 2.50]") if own_unit else ("24.68%", "1.36", "[0.50, 2.50]")
    text = page(BASE, row, folder=tmp_path)
    assert value in terminal(BASE, row)
    for said in (value, drop, ends):
        assert said in text
    table, _ = results_section(read_source(tmp_path / "r.json"), None).tables
    assert (
        f"accuracy: {metric}, its drop in {'units' if own_unit else 'points'} with the 95% interval"
        in str(table)
    )
    section = accuracy_section(read_source(tmp_path / "r.json"))
    assert f"Drop of {metric} against base" in str(section)
    stored = read_row(row_json(row)).accuracy
    assert stored == found


def test_the_report_says_which_metric_was_chosen(tmp_path: Path) -> None:
    row = structs.replace(ROW, accuracy=Accuracy("top1", 0.9, Interval(1.0, 0.5, 2.0), 100))
    settings = {**SETTINGS, "metric_note": "top1: labels are one class per sample"}
    save_results(Results("base", (BASE, row), HERE, settings), tmp_path / "r.json")
    section = accuracy_section(read_source(tmp_path / "r.json"))
    assert "Accuracy is top1: labels are one class per sample." in section.lead


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        (None, "–"),
        (Difference(True, snr_db=math.inf, max_abs_error=0.0), "equal"),
        (Difference(False, snr_db=-math.inf, max_abs_error=math.inf), "−∞ dB MISMATCH"),
        (Difference(False, snr_db=12.34), "12.3 dB MISMATCH"),
        (Difference(True, snr_db=41.0), "41.0 dB"),
    ],
)
def test_outputs_with_nan_are_not_called_equal(difference: Difference | None, said: str) -> None:
    """`equal MISMATCH` was printed."""
    row = structs.replace(ROW, difference=difference)
    assert render(row, "base").difference == said
    assert said in terminal(BASE, row)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1.07, 1.37, "1.21× [1.07, 1.37]"),
        (1.008, 1.05, "1.029× [1.008, 1.050] no difference"),
        (0.8, 0.985, "0.888× [0.800, 0.985] slower"),
        (0.5, 1.5, "0.87× [0.50, 1.50] no difference"),
    ],
)
def test_the_verdict_is_that_of_the_interval_beside_it(
    low: float, high: float, said: str, tmp_path: Path
) -> None:
    ratio = Speedup(round(math.sqrt(low * high), 3), low, high, 20, verdict_of(low, high))
    row = structs.replace(ROW, speedup=ratio)
    assert render(row, "base").compared == said
    assert said in terminal(BASE, row)
    assert said in markdown(Results("base", [BASE, row], HERE, SETTINGS))
    assert " ".join(page(BASE, row, folder=tmp_path).split()).count(said) == 1
    shown = [float(end) for end in render(row, "base").interval.strip("[]").split(", ")]
    beyond = shown[0] > 1 + SMALLEST_DIFFERENCE or shown[1] < 1 / (1 + SMALLEST_DIFFERENCE)
    assert beyond == (ratio.verdict != "no difference")


def test_every_form_says_which_interval_it_shows(tmp_path: Path) -> None:
    words = interval_words(CONFIDENCE)
    assert words == "99% interval"
    assert words in " ".join(terminal(BASE, ROW).split())
    assert words in markdown(Results("base", [BASE, ROW], HERE, SETTINGS))
    save_results(Results("base", [BASE, ROW], HERE, SETTINGS), tmp_path / "r.json")
    assert words in results_section(read_source(tmp_path / "r.json"), None).tables[0].caption
    older = Results("base", [BASE, ROW], HERE, SETTINGS | {"confidence": 0.95})
    assert "95% interval, verdicts of 99%" in markdown(older)


def test_what_was_not_measured_is_a_dash_and_has_its_reason() -> None:
    bare = render(Row("a", "a.engine", "tensorrt", status="not run", reason="no GPU here"), "base")
    assert bare.problem == "not run: no GPU here"
    assert {bare.latency, bare.speedup, bare.size, bare.accuracy, bare.drop, bare.difference} == {"–"}
    assert (bare.interval, bare.verdict, bare.drop_interval, bare.tail) == ("", "", "", "")
    assert render(BASE, "base").name == "base (baseline)"
    assert render(BASE, "base").speedup == "1.00×"


def test_narrow_terminals_get_the_same_words_in_two_lines() -> None:
    row = structs.replace(ROW, speedup=Speedup(4.0, 3.9, 4.1, 20, "faster"))
    text = terminal(BASE, row, width=100)
    for words in ("4.00×", "[3.90, 4.10]", "1.10 MB", "1.23", "1.30 1.40"):
        assert words in text
