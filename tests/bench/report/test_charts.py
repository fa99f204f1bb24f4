from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple, replace
from report_results import layers_json, results_json, write

from qcompile.bench.report.charts import (
    curve,
    curves_chart,
    density,
    drop_chart,
    errors_chart,
    history_chart,
    latency_chart,
    layers_by_precision,
    pareto_chart,
    pareto_front,
    precision_chart,
    speedup_chart,
)
from qcompile.bench.report.source import ReportedArtifact, ReportSource, read_source
from qcompile.bench.report.svg import COLOURS, Scale
from qcompile.bench.results.row import Accuracy, Interval, Latency, Row
from qcompile.bench.results.statistics import Speedup, verdict_of


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ReportSource:
    folder = tmp_path_factory.mktemp("report")
    layers = write(folder / "layers.json", layers_json())
    return read_source(write(folder / "r.json", results_json()), layers=[layers])


@pytest.fixture(scope="module")
def charts(source: ReportSource) -> dict[str, str]:
    """Every chart of the results."""
    runs: list[dict[str, Any]] = [*source.results.history, source.results.history[-1]]
    return {
        "latency": latency_chart(source.measured),
        "speedup": speedup_chart(source.measured, "pytorch", "99% interval"),
        "drop": drop_chart(source.measured, "top1"),
        "pareto": pareto_chart(source.measured),
        "batches": curves_chart(source.measured, "batches", "batch size"),
        "concurrency": curves_chart(source.measured, "concurrency", "clients"),
        "history": history_chart(runs, source.measured),
        "precision": precision_chart(source.measured),
        "layers": errors_chart(source.layers[0][1]),
    }


def test_charts_are_named_pictures_in_the_colours_of_the_page(charts: dict[str, str]) -> None:
    for chart in charts.values():
        root = ElementTree.fromstring(chart)
        assert root.get("role") == "img"
        assert len(root.get("aria-label", "")) > 20
        assert {element.tag for element in root.iter()} <= {
            "div", "span", "svg", "g", "path", "line", "rect", "circle", "text", "title",
        }  # fmt: skip
        styles = " ".join(element.get("style", "") for element in root.iter())
        assert not re.findall(r"#[0-9a-fA-F]{3,8}", styles), "a fixed colour"
        assert set(re.findall(r"var\(--(\w+)\)", styles)) <= set(COLOURS)


def test_every_artifact_is_named_and_its_point_has_a_tip(
    charts: dict[str, str], source: ReportSource
) -> None:
    for name in ("latency", "speedup", "drop", "pareto", "batches"):
        root = ElementTree.fromstring(charts[name])
        tips = [str(title.text) for title in root.iter("title")]
        shown = [s for s in source.measured if not (s.is_baseline and name in ("speedup", "drop"))]
        for subject in shown:
            assert any(tip.startswith(subject.name) for tip in tips), (name, subject.name)
        texts = {str(text.text) for text in (*root.iter("text"), *root.iter("span"))}
        assert {str(s.number) for s in shown} <= texts


def test_intervals_are_drawn_where_they_are() -> None:
    """The whisker of a known interval lies where the axis says: checked against the ticks' own places."""
    chart = ElementTree.fromstring(speedup_chart([_subject(1, "a", speedup=(2.0, 1.5, 3.0))], "base", ""))
    places = {str(text.text): _percent(text, "x") for text in chart.iter("text")}
    octave = places["2×"] - places["1×"]
    bar = next(item for item in chart.iter("line") if "--float" in item.get("style", ""))
    assert _percent(bar, "x1") == pytest.approx(places["1×"] + octave * np.log2(1.5), abs=0.02)
    assert _percent(bar, "x2") == pytest.approx(places["1×"] + octave * np.log2(3.0), abs=0.02)


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
        _subject(i, str(i), latency_ms=float(ms), drop=Interval(float(drop)), size_bytes=size)
        for i, (ms, drop, size) in enumerate(costs)
    ]
    expected = []
    for index, mine in enumerate(costs):
        better = [c for c in costs if all(a <= b for a, b in zip(c, mine, strict=True)) and c != mine]
        if not better:
            expected.append(str(index))
    assert [s.name for s in pareto_front(subjects)] == expected


@pytest.mark.parametrize("width", [260, 760])
def test_labels_of_a_heap_do_not_cover_each_other_on_a_phone_or_a_page(width: int) -> None:
    subjects = [
        _subject(i, f"a{i}", latency_ms=10 + 0.01 * i, drop=Interval(0.1 * i), size_bytes=1_000_000)
        for i in range(1, 9)
    ]
    chart = ElementTree.fromstring(pareto_chart(subjects))
    labels = [text for text in chart.iter("text") if text.get("class") == "label"]
    assert [label.text for label in labels] == [str(s.number) for s in subjects]
    scale = {"x": width / 100, "y": 3.36}
    places = [
        [_percent(label, axis) * scale[axis] + float(label.get(f"d{axis}", 0)) for axis in scale]
        for label in labels
    ]
    for one, other in itertools.combinations(places, 2):
        assert abs(one[0] - other[0]) >= 6 or abs(one[1] - other[1]) >= 10


@settings(max_examples=30, deadline=None)
@given(st.floats(min_value=1e-3, max_value=1e4), st.floats(min_value=2.5, max_value=1e5))
def test_a_logarithmic_axis_has_a_few_round_ticks(low: float, ratio: float) -> None:
    ticks = Scale(low, low * ratio, "log").ticks(6)
    assert 1 <= len(ticks) <= 6
    assert all(low <= tick <= low * ratio for tick in ticks)


@given(st.floats(-1e6, 1e6), st.floats(min_value=0.01, max_value=1e9), st.booleans())
def test_a_linear_axis_has_a_few_even_ticks_in_their_places(low: float, width: float, up: bool) -> None:
    scale = Scale(low, low + width, grows_up=up)
    ticks = scale.ticks(6)
    assert 1 <= len(ticks) <= 7
    assert all(-1e-3 <= scale.at(tick) <= 100.001 for tick in ticks)
    assert scale.at(low) == pytest.approx(100 if up else 0, abs=1e-6)


def test_a_sweep_without_figures_is_not_drawn() -> None:
    subject = ReportedArtifact(1, Row("a", "a", "onnxruntime"), is_baseline=False)
    assert curve(subject, "batches") == []
    assert curves_chart([subject], "batches", "batch size") == ""


def test_what_is_missing_is_not_drawn(source: ReportSource) -> None:
    bare = [_subject(1, "a", is_baseline=True), _subject(2, "b")]
    runs = [{"artifacts": {"b": {"speedup": 2.0}}}]
    assert not any(draw(bare) for draw in (latency_chart, pareto_chart, precision_chart))
    assert not speedup_chart(bare, "a", "99% interval")
    assert not drop_chart(bare, "top1")
    assert not history_chart(runs, bare)
    assert not errors_chart(replace(source.layers[0][1], layers=()))


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
    root = ElementTree.fromstring(speedup_chart(subjects, name, "99% interval"))
    printable = "".join(letter if letter.isprintable() or letter == "\t" else "�" for letter in name)
    assert any(str(title.text).startswith(printable[:20]) for title in root.iter("title"))


def _percent(element: ElementTree.Element, name: str) -> float:
    return float(element.get(name, "").removesuffix("%"))


def _subject(
    index: int, name: str, *, is_baseline: bool = False, latency_ms: float = 10.0,
    speedup: tuple[float, float, float] | None = None, drop: Interval | None = None,
    size_bytes: int | None = None,
) -> ReportedArtifact:  # fmt: skip
    ratio = Speedup(*speedup, 20, verdict_of(*speedup[1:])) if speedup else None
    accuracy = Accuracy("top1", 0.9, *astuple(drop)) if drop else None
    row = Row(
        name, name, "onnxruntime", latency=Latency(median_ms=latency_ms), speedup=ratio, accuracy=accuracy,
        size_bytes=size_bytes,
    )  # fmt: skip
    return ReportedArtifact(index, row, is_baseline)
