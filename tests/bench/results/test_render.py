"""A row in words and tables: units, dashes, verdicts that their intervals show; CSV and Markdown."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from qcompile.bench.report.sections import accuracy_section, results_section
from qcompile.bench.report.source import ReportedArtifact, ReportSource, read_source
from qcompile.bench.results import render as rendering
from qcompile.bench.results.render import Column, interval_words, markdown, markdown_table, render, save_csv
from qcompile.bench.results.results import Results, load_results, save_results
from qcompile.bench.results.row import Accuracy, CurvePoint, Difference, Energy, Latency, Row
from qcompile.bench.results.statistics import CONFIDENCE, SMALLEST_DIFFERENCE, Speedup, verdict_of
from qcompile.cli.tables import results_table
from qcompile.spec.words import METRICS

ROW = Row(
    "a",
    "a.onnx",
    "onnxruntime",
    "int8",
    latency=Latency(median_ms=1.234, p90_ms=1.3, p99_ms=1.4),
    size_bytes=1_100_000,
)
BASE = Row("base", "base.onnx", "onnxruntime", latency=Latency(median_ms=2.0, p90_ms=2.1, p99_ms=2.2))
SETTINGS = {"inputs": {"x": "1x16"}, "threads": 2, "confidence": CONFIDENCE}
HERE = {"processor": "some", "cores": 2}


def run(*rows: Row, **settings: Any) -> Results:
    return Results(baseline="base", rows=rows, environment=HERE, settings=SETTINGS | settings)


def terminal(*rows: Row, width: int = 200) -> str:
    """What a terminal shows."""
    console = Console(width=width)
    with console.capture() as captured:
        console.print(results_table(run(*rows), width=width))
    return captured.get()


def csv_rows(results: Results, folder: Path) -> list[dict[str, str]]:
    save_csv(results, folder / "t.csv")
    with (folder / "t.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def source(*rows: Row, folder: Path, **settings: Any) -> ReportSource:
    save_results(run(*rows, **settings), folder / "r.json")
    return read_source(folder / "r.json")


def page(*rows: Row, folder: Path) -> str:
    """The cells of the report's table."""
    table, _ = results_section(source(*rows, folder=folder), None).tables
    return " | ".join(f"{cell.text} {cell.below}".strip() for row in table.rows for cell in row)


@pytest.mark.parametrize("metric", [*METRICS, "f1:micro", "f1:entities", "map:50", "ndcg:10", "own.py:score"])
def test_every_metric_has_its_unit_in_every_form(metric: str, tmp_path: Path) -> None:
    """A mean squared error of 0.00123 was printed as 0.12% in the terminal."""
    own_unit = metric in ("perplexity", "kl", "mse", "own.py:score")
    lower_is_better = metric in ("wer", "cer", "perplexity", "kl", "mse")
    found = Accuracy(metric, 0.2468, 1.357, 0.5, 2.5, 100, higher_is_better=not lower_is_better)
    row = structs.replace(ROW, accuracy=found)
    value, drop, ends = ("0.247", "1.36", "[0.500, 2.50]") if own_unit else ("24.68%", "1.36", "[0.50, 2.50]")
    assert value in terminal(BASE, row)
    assert f"| {value} | {drop} {ends} |" in markdown(run(BASE, row))
    text = page(BASE, row, folder=tmp_path)
    for said in (value, drop, ends):
        assert said in text
    report = read_source(tmp_path / "r.json")
    unit = "units" if own_unit else "points"
    caption = f"accuracy: {metric}, its drop in {unit} with the 95% interval"
    assert caption in str(results_section(report, None).tables[0])
    assert f"Drop of {metric} against base" in str(accuracy_section(report))
    assert load_results(tmp_path / "r.json").rows[1].accuracy == found


def test_the_report_says_which_metric_was_chosen(tmp_path: Path) -> None:
    row = structs.replace(ROW, accuracy=Accuracy("top1", 0.9, 1.0, 0.5, 2.0, 100))
    report = source(BASE, row, folder=tmp_path, metric_note="top1: labels are one class per sample")
    assert "Accuracy is top1: labels are one class per sample." in accuracy_section(report).lead


@pytest.mark.parametrize(
    ("figures", "said", "state"),
    [
        (None, "–", ""),
        ((math.inf, 0.0, True), "equal", "equal"),
        ((-math.inf, math.inf, False), "−∞ dB MISMATCH", "not finite"),
        ((-math.inf, 0.5, False), "−∞ dB MISMATCH", "not finite"),  # the reference is zero
        ((12.34, 0.5, False), "12.3 dB MISMATCH", "finite"),
        ((41.0, 0.1, True), "41.0 dB", "finite"),
    ],
)
def test_equal_and_infinitely_wrong_outputs_are_told_apart_in_every_form(
    figures: tuple[float, float, bool] | None, said: str, state: str, tmp_path: Path
) -> None:
    """Both were a null `snr_db`, and `equal MISMATCH` was printed of outputs with NaN."""
    difference = None
    if figures is not None:
        snr_db, error, passed = figures
        difference = Difference(passed=passed, output="y", snr_db=snr_db, max_abs_error=error)
    row = structs.replace(ROW, difference=difference)
    assert render(row, "base").difference == said
    assert said in terminal(BASE, row)
    assert csv_rows(run(row), tmp_path)[0]["difference_state"] == state
    save_results(run(row), tmp_path / "r.json")
    [written] = json.loads((tmp_path / "r.json").read_text(), parse_constant=pytest.fail)["artifacts"]
    assert (written["difference"] or {"state": ""})["state"] == state
    assert load_results(tmp_path / "r.json").rows[0].difference == difference


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
    assert said in markdown(run(BASE, row))
    assert " ".join(page(BASE, row, folder=tmp_path).split()).count(said) == 1
    shown = [float(end) for end in render(row, "base").interval.strip("[]").split(", ")]
    beyond = shown[0] > 1 + SMALLEST_DIFFERENCE or shown[1] < 1 / (1 + SMALLEST_DIFFERENCE)
    assert beyond == (ratio.verdict != "no difference")


def test_every_form_says_which_interval_it_shows(tmp_path: Path) -> None:
    words = interval_words(CONFIDENCE)
    assert words == "99% interval"
    caption = results_section(source(BASE, ROW, folder=tmp_path), None).tables[0].caption
    for text in (" ".join(terminal(BASE, ROW).split()), markdown(run(BASE, ROW)), caption):
        assert words in text
    assert "95% interval" in markdown(run(BASE, ROW, confidence=0.95))


def test_what_was_not_measured_is_a_dash_and_has_its_reason() -> None:
    bare = render(Row("a", "a.engine", "tensorrt", status="not run", reason="no GPU here"), "base")
    assert bare.problem == "not run: no GPU here"
    assert {bare.latency, bare.speedup, bare.size, bare.accuracy, bare.drop, bare.difference} == {"–"}
    assert (bare.interval, bare.verdict, bare.drop_interval, bare.tail) == ("", "", "", "")
    assert render(BASE, "base").name == "base (baseline)"
    assert render(BASE, "base").speedup == "1.00×"
    assert render(ROW, "base").speedup == "–"


def test_narrow_terminals_get_the_same_words_in_two_lines() -> None:
    row = structs.replace(ROW, speedup=Speedup(4.0, 3.9, 4.1, 20, "faster"))
    text = terminal(BASE, row, width=100)
    for words in ("4.00×", "[3.90, 4.10]", "1.10 MB", "1.23", "1.30 1.40"):
        assert words in text


FIRST = Row(
    "a|b.onnx", "a|b.onnx", "onnxruntime", size_bytes=4_000_000, size_ratio=1.0, throughput_per_s=500.0,
    latency=Latency(median_ms=2.0, p90_ms=2.2, p99_ms=2.5, min_ms=1.9, max_ms=9.0, calls=100),
)  # fmt: skip
FAST = Row(
    "fast", "fast.onnx", "onnxruntime", "int8", size_bytes=1_000_000, size_ratio=4.0, throughput_per_s=2000.0,
    latency=Latency(median_ms=0.5, p90_ms=0.6, p99_ms=0.7, min_ms=0.4, max_ms=0.8, calls=400),
    speedup=Speedup(4.0, 3.9, 4.1, 20, "faster"),
    energy=Energy(unavailable="no counter"),
    parameters=300_000, weights_bytes=900_000, peak_memory_bytes=80_000_000, memory_ratio=1.25,
    difference=Difference(passed=True, output="y", snr_db=40.0, max_abs_error=0.5, mean_abs_error=0.0123),
)  # fmt: skip
LOST = Row("lost", "lost.engine", "tensorrt", status="not run", reason="no GPU,\nnone", size_bytes=2_000_000,
           size_ratio=2.0)  # fmt: skip
RESULTS = Results(
    baseline="a|b.onnx", rows=[FIRST, FAST, LOST],
    environment={"processor": "some", "cores": 4, "noise": {"noisy": True, "reasons": ["somebody else"]}},
    settings={"threads": 2, "inputs": {"x": "1x16"}, "confidence": 0.99},
)  # fmt: skip


def test_markdown_is_the_table_of_a_readme() -> None:
    lines = markdown(RESULTS).splitlines()
    assert lines[2].startswith("| a\\|b.onnx (baseline) | 2.00 | 500 | 1.00× | – | 4.00 MB | – | – | – |")
    assert lines[3] == (
        "| fast | 0.500 | 2,000 | 4.00× [3.90, 4.10] | 0.300 M | 1.00 MB | 75.0% | 80.0 MB | 20.0% "
        "| – | – | 0.012 | 0.5 |"
    )
    assert (
        lines[4] == "| lost | not run: no GPU, none | – | – | – | 2.00 MB | 50.0% | – | – | – | – | – | – |"
    )
    assert all(line.count(" | ") == lines[0].count(" | ") for line in lines[2:5])
    assert "some, 4 cores, 2 threads, input x:1x16; speed-up against a|b.onnx with its 99% interval" in lines
    assert "- disturbed: somebody else" in lines


@pytest.mark.parametrize(("count", "words"), [(1, "1 thread"), (2, "2 threads"), (12, "12 threads")])
def test_a_count_of_one_is_singular(count: int, words: str) -> None:
    results = structs.replace(
        run(BASE, ROW, threads=count), environment={"processor": "some", "cores": count}
    )
    assert f"some, {words.replace('thread', 'core')}, {words}, input" in markdown(results)
    assert f"x:1x16 · {words} · some · speed-up" in (results_table(results, width=200).title or "")


def test_markdown_says_what_its_accuracy_is() -> None:
    """A column of 100% for outputs that were compared by cosine looked like right answers."""
    row = structs.replace(ROW, accuracy=Accuracy("cosine", 1.0, 0.0, 0.0, 0.0, 100))
    noted = run(BASE, row, metric="cosine", metric_note="cosine: the data has no | labels")
    assert "95% interval; accuracy is cosine: the data has no \\| labels" in markdown(noted)
    assert "95% interval; accuracy is top1" in markdown(run(BASE, row, metric="top1", metric_note=""))
    assert "accuracy is" not in markdown(run(BASE, ROW, metric="top1"))


def test_markdown_has_a_table_of_each_curve() -> None:
    def point(size: int, median_ms: float) -> CurvePoint:
        return CurvePoint(batch_size=size, median_ms=median_ms, throughput_per_s=1e3 * size / median_ms)

    first = structs.replace(FIRST, batches=(point(1, 2.0), point(32, 16.0)))
    fast = structs.replace(FAST, batches=(point(32, 4.0),))
    text = markdown(structs.replace(RESULTS, rows=[first, fast, LOST]))
    assert text.split("\n\n")[1].splitlines() == [
        "| median ms (samples/s) | batch size 1 | batch size 32 |",
        "| --- | ---: | ---: |",
        "| a\\|b.onnx | 2.00 (500) | 16.0 (2,000) |",
        "| fast | – | 4.00 (8,000) |",
    ]


def test_csv_has_one_row_per_artifact_and_units_in_its_columns(tmp_path: Path) -> None:
    rows = csv_rows(RESULTS, tmp_path)
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


def test_a_name_is_no_formula_of_a_spreadsheet_and_no_markup(tmp_path: Path) -> None:
    names = ["=cmd|' /C calc'!A0", "@SUM(1)", "+1", "-1", "\tx", "plain", "<img src=x>[a](http://b)\x1b"]
    rows = csv_rows(
        structs.replace(RESULTS, rows=[structs.replace(FAST, name=name) for name in names]), tmp_path
    )
    assert [row["name"] for row in rows] == [f"'{name}" for name in names[:5]] + names[5:]
    text = markdown(structs.replace(RESULTS, rows=[FIRST, structs.replace(FAST, name=names[-1])]))
    assert "| &lt;img src=x>\\[a](http://b)\\\\x1b |" in text


class Warmer(Row, frozen=True):
    """A row with one figure more."""

    core_temperature_c: float | None = None


def test_a_new_figure_is_a_field_and_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminal, CSV, Markdown and report show it where `COLUMNS` alone has its line."""
    column = Column(
        "temperature", "core, degrees", lambda row, _: f"{row.core_temperature_c:.1f} C", "core_temperature_c"
    )
    monkeypatch.setattr(rendering, "COLUMNS", (*rendering.COLUMNS, column))
    results = run(*(Warmer(**structs.asdict(row), core_temperature_c=71.25) for row in (BASE, ROW)))
    for width in (100, 220):
        console = Console(width=width)
        with console.capture() as capture:
            console.print(results_table(results, width=width))
        assert capture.get().count("71.2 C") == 2
    assert [row["core_temperature_c"] for row in csv_rows(results, tmp_path)] == ["71.25", "71.25"]
    header, _, *lines = markdown_table(results).splitlines()
    assert header.endswith("| core, degrees |")
    assert [line.endswith("| 71.2 C |") for line in lines] == [True, True]
    source = ReportSource(
        [ReportedArtifact(at, row, at == 1) for at, row in enumerate(results.rows, 1)], results
    )
    _, details = results_section(source, None).tables
    assert details.columns[-1] == "core, degrees"
    assert [row[-1].text for row in details.rows] == ["71.2 C", "71.2 C"]
