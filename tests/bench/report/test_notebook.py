"""What Jupyter shows of qcompile's objects: small escaped tables, pictures, and a table for pandas."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from report_results import results_json
from written_ranges import full, make

from qcompile.bench.diff.diff import AccuracyComparison, OutputComparison
from qcompile.bench.metrics.output_verdict import OutputDifference
from qcompile.bench.report.recommendation import Recommendation
from qcompile.bench.results.results import Results, parse_results
from qcompile.core.artifact import Artifact, Check, Manifest
from qcompile.core.notebook import Plot, html_of
from qcompile.errors import EngineUnavailable, InvalidOption

NASTY = "<img src=x onerror=alert(1)>\x1b[2J"


@pytest.fixture
def results() -> Results:
    return parse_results(json.dumps(results_json()).encode(), Path("results.json"))


def parsed(html: str) -> ElementTree.Element:
    """Every table is well-formed, and no name in it became markup."""
    root = ElementTree.fromstring(f"<div>{html}</div>")
    assert {element.tag for element in root.iter()} <= {
        "div", "table", "caption", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    return root


def texts(html: str) -> list[str]:
    return [
        "".join(element.itertext()) for element in parsed(html).iter() if element.tag in ("td", "caption")
    ]


def test_an_artifact_shows_its_precision_checks_and_warnings() -> None:
    proof = {"layers_by_precision": {"int8": {"Conv": 20, "Gemm": 1}, "fp32": {}}}
    checks = [Check("ONNX checker", True, ""), Check(NASTY, False, "")]
    manifest = Manifest("onnx", "build", "onnxruntime", "int8", proof=proof, checks=checks, warnings=["slow"])
    found = texts(Artifact(Path(NASTY), replace(manifest, size_bytes=2_000_000))._repr_html_())
    assert "onnx onnxruntime int8" in found
    assert "int8: 21" in found
    assert found[-4:] == ["check FAILED", NASTY.replace("\x1b", "\\x1b"), "warning", "slow"]


def test_results_show_a_row_for_each_artifact_with_the_reason_of_a_failure(results: Results) -> None:
    rows = [*results.rows]
    rows[1] = msgspec.structs.replace(rows[1], name=NASTY)
    html = msgspec.structs.replace(results, rows=rows)._repr_html_()
    assert len(list(parsed(html).iter("tr"))) == len(rows) + 1
    found = texts(html)
    assert "pytorch (baseline)" in found
    assert NASTY.replace("\x1b", "\\x1b") in found
    assert any(text.startswith("failed: ") for text in found)


def test_a_comparison_shows_its_verdicts_and_the_accuracy() -> None:
    outputs = [OutputDifference("logits", False, "SNR ≥ 15 dB", 0.5, 12.0, 0.9)]
    accuracy = AccuracyComparison("top1", "", 0.9, 0.8, 10.0, 5.0, 15.0, 100, 0.85, None, "")
    found = texts(OutputComparison("a.onnx", "b.onnx", "int8", 100, outputs, accuracy)._repr_html_())
    assert {"logits", "MISMATCH", "12.0 dB", "SNR ≥ 15 dB", "top1", "100"} <= set(found)


def test_a_recommendation_shows_its_sentence_and_the_reasons() -> None:
    answer = Recommendation("int8", "", "Use int8.", None, None, {"fp16": "slower"}, ("few samples",))
    assert texts(html_of(answer)) == ["Use int8.", "fp16", "slower", "caveat", "few samples"]


def test_ranges_show_the_worst_tensors_first() -> None:
    found = texts(full()._repr_html_())
    assert found[0].startswith("8 samples, ")
    assert "x" in found


def test_plots_are_pictures_that_can_be_saved(results: Results, tmp_path: Path) -> None:
    for plot in (full().plot(top=1), results.plot()):
        root = ElementTree.fromstring(plot._repr_svg_())
        assert root.tag.endswith("svg")
        assert plot.save(tmp_path / "plot.svg").read_text(encoding="utf-8") == plot.svg
    shown = "".join(root.itertext())
    assert "onnx-int8-static" in shown
    assert "latency of a call, ms" in shown
    with pytest.raises(InvalidOption, match=r"plot\.png: \.svg is required"):
        Plot("").save(tmp_path / "plot.png")


def test_a_plot_of_nothing_is_refused(results: Results) -> None:
    failed = [row for row in results.rows if row.status != "measured"]
    with pytest.raises(InvalidOption, match="no artifact was measured"):
        msgspec.structs.replace(results, rows=failed).plot()
    with pytest.raises(InvalidOption, match="no tensor has values"):
        make({"x": np.zeros(0, np.float32)}).plot()


def test_pandas_gets_numbers_under_the_titles_of_the_csv(results: Results) -> None:
    pytest.importorskip("pandas", reason="to_pandas")
    frame = results.to_pandas()
    assert len(frame) == len(results.rows)
    medians = frame.set_index("name")["latency_median_ms"]
    latency = results.row("onnx-fp32").latency
    assert latency
    assert medians["onnx-fp32"] == latency.median_ms


def test_a_missing_pandas_is_named_with_the_command(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(EngineUnavailable, match="pandas cannot be imported") as caught:
        results.to_pandas()
    assert caught.value.hint == "pip install pandas"
