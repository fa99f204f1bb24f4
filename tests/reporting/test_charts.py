from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_results import layers_json, results_json, write

from qcompile.bench.results.row import Accuracy, Interval, Latency, Row
from qcompile.bench.results.row_json import read_row
from qcompile.bench.statistics.speedup import Speedup, verdict_of
from qcompile.reporting.canvas import COLOURS, Chart
from qcompile.reporting.charts_curves import curve, curves_chart, history_chart
from qcompile.reporting.charts_layers import errors_chart, layers_by_precision, precision_chart
from qcompile.reporting.charts_speed import density, drop_chart, latency_chart, speedup_chart
from qcompile.reporting.charts_tradeoff import pareto_chart, pareto_front
from qcompile.reporting.rows import log_ticks
from qcompile.reporting.source import ReportedArtifact, Source, read_source


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("report")
    layers = write(folder / "layers.json", layers_json())
    return read_source(write(folder / "r.json", results_json()), layers=[layers])


@pytest.fixture(scope="module")
def charts(source: Source) -> dict[str, Chart]:
    """Every chart of the results."""
    runs: list[dict[str, Any]] = [*source.results.history, source.results.history[-1]]
    drawn = {
        "latency": latency_chart(source.measured),
        "speedup": speedup_chart(source.measured, "pytorch", "99% interval"),
        "drop": drop_chart(source.measured, "top1"),
        "pareto": pareto_chart(source.measured),
        "batches": curves_chart(source.measured, "batches", "batch size"),
        "concurrency": curves_chart(source.measured, "concurrency", "clients"),
        "history": history_chart(runs, source.measured),
        "precision": precision_chart(source.measured),
        "layers": errors_chart("layers-0", source.layers[0]),
    }
    assert all(drawn.values())
    return {name: chart for name, chart in drawn.items() if chart is not None}


def both(charts: dict[str, Chart]) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for chart in charts.values() for svg in (chart.wide, chart.narrow)]


def test_charts_are_pictures_with_a_name_and_a_size(charts: dict[str, Chart]) -> None:
    for root in both(charts):
        assert root.tag == "svg"
        assert root.get("role") == "img"
        assert len(root.get("aria-label", "")) > 20
        width, height = map(float, root.get("viewBox", "").split()[2:])
        assert width in (336, 860)
        assert 150 < height < 2500


def test_colours_are_those_of_the_page(charts: dict[str, Chart]) -> None:
    """Nothing is drawn in a colour that light and dark could not change."""
    for root in both(charts):
        styles = " ".join(element.get("style", "") for element in root.iter())
        assert "var(--ink)" in styles or "var(--muted)" in styles
        assert not re.findall(r"#[0-9a-fA-F]{3,8}", styles), "a fixed colour"
        assert set(re.findall(r"var\(--(\w+)\)", styles)) <= set(COLOURS)


def test_ids_are_unique_in_the_page_and_references_meet_them(charts: dict[str, Chart]) -> None:
    ids: list[str] = []
    for root in both(charts):
        own = [element.get("id", "") for element in root.iter() if element.get("id")]
        ids += own
        text = ElementTree.tostring(root, encoding="unicode")
        assert set(re.findall(r"href=\"#([^\"]+)\"|url\(#([^)]+)\)", text)) <= {
            pair for one in own for pair in ((one, ""), ("", one))
        }
    assert len(ids) == len(set(ids))


def test_nothing_in_a_chart_reaches_beyond_it(charts: dict[str, Chart]) -> None:
    for root in both(charts):
        assert {element.tag for element in root.iter()} <= {
            "svg", "g", "defs", "path", "use", "text", "title", "clipPath", "rect",
        }  # fmt: skip


def test_every_artifact_is_named_and_its_point_has_a_tip(charts: dict[str, Chart], source: Source) -> None:
    for name in ("latency", "speedup", "drop", "pareto", "batches"):
        root = ElementTree.fromstring(charts[name].wide)
        tips = [str(title.text) for title in root.iter("title")]
        shown = [s for s in source.measured if not (s.is_baseline and name in ("speedup", "drop"))]
        for subject in shown:
            assert any(tip.startswith(subject.name) for tip in tips), (name, subject.name)
        texts = {str(text.text) for text in root.iter("text")}
        assert {str(s.number) for s in shown} <= texts


def test_intervals_are_drawn_where_they_are() -> None:
    """The whisker of a known interval lies where the axis says: checked against the ticks' own places."""
    subject = _subject(1, "a", speedup=(2.0, 1.5, 3.0))
    chart = speedup_chart([subject], "base", "99% interval")
    assert chart is not None
    root = ElementTree.fromstring(chart.wide)
    places = {
        str(text.text): float(text.get("x", 0)) for text in root.iter("text") if str(text.text).endswith("×")
    }
    # A logarithmic axis: pixels per factor from two of its ticks.
    first, second = (places["1×"], places["2×"])
    per_octave = second - first
    paths = [path.get("d", "") for path in root.iter("path") if "var(--float)" in path.get("style", "")]
    line = next(d for d in paths if re.fullmatch(r"M [\d.]+ [\d.]+ L [\d.]+ [\d.]+", d))
    start, end = (float(x) for x in re.findall(r"[ML] ([\d.]+)", line))
    assert start == pytest.approx(first + per_octave * np.log2(1.5), abs=0.5)
    assert end == pytest.approx(first + per_octave * np.log2(3.0), abs=0.5)


@given(st.lists(st.floats(min_value=0.01, max_value=1e4), min_size=101, max_size=101), st.booleans())
def test_a_density_is_within_the_calls_and_never_negative(values: list[float], logarithmic: bool) -> None:
    ordered = sorted(values)
    places, height = density(ordered, logarithmic=logarithmic)
    assert np.isfinite(places).all()
    assert np.isfinite(height).all()
    assert places.min() >= ordered[1] * (1 - 1e-9)
    assert places.max() <= ordered[99] * (1 + 1e-9)
    assert height.min() >= 0
    assert height.max() <= 1


def test_a_density_finds_both_heaps() -> None:
    calls = np.concatenate(
        [np.random.default_rng(0).normal(10, 0.3, 6000), np.random.default_rng(1).normal(20, 0.3, 3000)]
    )
    places, height = density(np.quantile(calls, np.linspace(0, 1, 101)).tolist(), logarithmic=False)
    assert places[height.argmax()] == pytest.approx(10, abs=0.5)
    assert height[(places > 12) & (places < 18)].max() < 0.1
    assert 0.3 < height[places > 19].max() < 0.8


@given(st.lists(st.tuples(*[st.integers(min_value=1, max_value=4)] * 3), min_size=1, max_size=9))
def test_the_front_is_what_no_other_beats(costs: list[tuple[int, int, int]]) -> None:
    subjects = [
        _subject(i, str(i), latency_ms=float(ms), drop=Interval(float(drop)), size_bytes=float(size))
        for i, (ms, drop, size) in enumerate(costs)
    ]
    expected = []
    for index, mine in enumerate(costs):
        better = [c for c in costs if all(a <= b for a, b in zip(c, mine, strict=True)) and c != mine]
        if not better:
            expected.append(str(index))
    assert [s.name for s in pareto_front(subjects)] == expected


def test_labels_of_a_heap_do_not_cover_each_other() -> None:
    subjects = [
        _subject(i, f"a{i}", latency_ms=10 + 0.01 * i, drop=Interval(0.1 * i), size_bytes=1e6)
        for i in range(1, 9)
    ]
    chart = pareto_chart(subjects)
    assert chart is not None
    for svg in (chart.wide, chart.narrow):
        texts = [t for t in ElementTree.fromstring(svg).iter("text") if "700" in t.get("style", "")]
        assert [t.text for t in texts] == [str(s.number) for s in subjects]
        for one, other in itertools.combinations(
            [(float(t.get("x", 0)), float(t.get("y", 0))) for t in texts], 2
        ):
            assert abs(one[0] - other[0]) >= 6 or abs(one[1] - other[1]) >= 10


@settings(max_examples=30, deadline=None)
@given(st.floats(min_value=1e-3, max_value=1e4), st.floats(min_value=2.5, max_value=1e5))
def test_a_logarithmic_axis_has_a_few_round_ticks(low: float, ratio: float) -> None:
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    log_ticks(axes, low, low * ratio, "{}×")
    ticks = axes.get_xticks()
    assert 1 <= len(ticks) <= 6
    assert all(low <= tick <= low * ratio for tick in ticks)


@pytest.mark.parametrize(
    "points",
    [[], [{}], [{"batch_size": 1}], [{"batch_size": 1, "median_ms": None, "throughput_per_s": 3}], "x"],
)
def test_a_sweep_without_figures_is_none(points: Any) -> None:
    row = read_row({"name": "a", "artifact": "a", "engine": "onnxruntime", "batches": points})
    subject = ReportedArtifact(1, row, is_baseline=False)
    assert curve(subject, "batches") == []
    assert curves_chart([subject], "batches", "batch size") is None


def test_what_is_missing_is_not_drawn(source: Source) -> None:
    bare = [_subject(1, "a", is_baseline=True), _subject(2, "b")]
    assert latency_chart(bare) is None
    assert speedup_chart(bare, "a", "99% interval") is None
    assert drop_chart(bare, "top1") is None
    assert pareto_chart(bare) is None
    assert precision_chart(bare) is None
    assert history_chart([{"artifacts": {"b": {"speedup": 2.0}}}], bare) is None
    assert errors_chart("x", replace(source.layers[0], tensors=[])) is None


def test_layers_are_counted_by_precision() -> None:
    layers = {"fp32": {"Add": 2, "Odd": None}, "int8": {"Conv": 5, "Gemm": 1}, "fp16": 4, "bf16": {}}
    subject = ReportedArtifact(1, Row("a", "a", "onnxruntime", layers_by_precision=layers), is_baseline=False)
    found = layers_by_precision(subject)
    assert found == {"fp32": {"Add": 2}, "int8": {"Conv": 5, "Gemm": 1}, "fp16": {"layers": 4}}


@pytest.mark.parametrize(
    "name", ["a$x_1$b", r"\foo{", "<script>&amp;", "層/出力", "tab\tand\x07bell", "🦆" * 50, "x" * 300]
)
def test_any_name_can_be_drawn(name: str) -> None:
    subjects = [_subject(1, name, is_baseline=True), _subject(2, name, speedup=(2.0, 1.9, 2.1))]
    chart = speedup_chart(subjects, name, "99% interval")
    assert chart is not None
    root = ElementTree.fromstring(chart.narrow)
    printable = "".join(letter if letter.isprintable() or letter == "\t" else "�" for letter in name)
    assert any(str(title.text).startswith(printable[:20]) for title in root.iter("title"))


def _subject(
    index: int,
    name: str,
    *,
    is_baseline: bool = False,
    latency_ms: float = 10.0,
    speedup: tuple[float, float, float] | None = None,
    drop: Interval | None = None,
    size_bytes: float | None = None,
) -> ReportedArtifact:
    row = Row(
        name,
        name,
        "onnxruntime",
        latency=Latency(latency_ms),
        speedup=Speedup(*speedup, 20, verdict_of(*speedup[1:])) if speedup else None,
        accuracy=Accuracy("top1", 0.9, drop) if drop else None,
        size_bytes=None if size_bytes is None else int(size_bytes),
    )
    return ReportedArtifact(index, row, is_baseline)
