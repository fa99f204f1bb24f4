from __future__ import annotations

import itertools
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_results import layers_json, results_json, write

from qcompile.calibration.histogram import Histogram
from qcompile.calibration.ranges import Ranges
from qcompile.calibration.ranges_file import save_ranges
from qcompile.errors import InvalidOption, MissingFile
from qcompile.reporting import write_report

VOID = {"meta", "link", "br", "path", "circle", "rect"}


class Outline(HTMLParser):
    """Tags, attributes, headings and texts of a page; refuses what is not well nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[tuple[int, str]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append((int(tag[1]), ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.open and re.fullmatch(r"h[1-6]", self.open[-1]) and self.headings:
            level, text = self.headings[-1]
            self.headings[-1] = (level, text + data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(folder: Path, value: dict[str, Any], **options: Any) -> tuple[str, Outline]:
    path = write_report(write(folder / "results.json", value), folder / "report.html", **options)
    text = path.read_text(encoding="utf-8")
    return text, Outline(text)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Outline]:
    """A page with everything."""
    folder = tmp_path_factory.mktemp("report")
    ranges = Ranges("m")
    for index in range(10):
        ranges.histograms[f"/block.{index}/conv"] = Histogram()
        ranges.histograms[f"/block.{index}/conv"].add(
            np.random.default_rng(index).standard_t(3, 4000).astype(np.float32)
        )
    save_ranges(ranges, folder / "m.ranges")
    layers = write(folder / "layers.json", layers_json())
    return page(folder, results_json(), layers=[layers], ranges=folder / "m.ranges")


def test_a_page_with_everything_leaves_nothing_out(full: tuple[str, Outline]) -> None:
    _, outline = full
    titles = [text for level, text in outline.headings if level == 2]
    assert titles == [
        "Before you rely on it", "Results", "Speed-up", "Accuracy, latency and size", "Latency distributions",
        "Accuracy", "Batch sizes", "Concurrent clients", "Inferences in flight",
        "Start, memory, energy",
        "Precision of the layers", "Time of the layers", "Errors of the layers", "Calibration", "History",
        "Not measured, and warnings", "Environment", "To repeat it",
    ]  # fmt: skip
    assert outline.headings[0] == (1, "Use ") or outline.headings[0][1].startswith("Use")
    assert "onnx-int8-static" in outline.text
    assert "By the GPU's clock, medians." in outline.text


def test_headings_go_down_one_level_at_a_time(full: tuple[str, Outline]) -> None:
    levels = [level for level, _ in full[1].headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_the_page_loads_nothing(full: tuple[str, Outline]) -> None:
    text, outline = full
    policy = next(a["content"] for t, a in outline.tags if t == "meta" and a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    loading = {"script", "iframe", "object", "embed", "img", "base", "form"}
    assert {t for t, _ in outline.tags} & loading == set()
    for tag, attributes in outline.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "src", "xlink:href"):
                assert str(value).startswith("#") or value == "data:,", (tag, value)
    assert "@import" not in text
    assert "url(http" not in text
    assert not re.search(r"https?://", text)


def test_ids_are_unique_and_anchors_lead_somewhere(full: tuple[str, Outline]) -> None:
    ids = [str(a["id"]) for _, a in full[1].tags if "id" in a]
    assert len(ids) == len(set(ids))
    for tag, attributes in full[1].tags:
        if tag == "a":
            assert str(attributes["href"])[1:] in ids
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in ids


def test_tables_have_captions_and_headers_with_scopes(full: tuple[str, Outline]) -> None:
    tags = [tag for tag, _ in full[1].tags]
    assert tags.count("caption") == tags.count("table") > 5
    assert all(a.get("scope") in ("row", "col") for t, a in full[1].tags if t == "th")


def test_the_table_says_what_was_measured(full: tuple[str, Outline]) -> None:
    entry = results_json()["artifacts"][6]
    row = next(
        " ".join(re.sub(r"<[^>]+>", " ", found).split())
        for found in re.findall(r"<tr>.*?</tr>", full[0], re.S)
        if entry["name"] in found
    )
    for figure in (
        f"{entry['latency_ms']['median']:.2f}", f"{entry['speedup']['value']:.2f}×",
        f"[{entry['speedup']['low']:.2f}, {entry['speedup']['high']:.2f}]", "11.3 MB", "3.96×", "94.40%",
        "0.20", "[−0.30, 0.80]", "recommended",
    ):  # fmt: skip
        assert figure in row


def test_what_cannot_be_shown_is_left_out_with_a_reason(tmp_path: Path) -> None:
    value = results_json(3)
    for entry in value["artifacts"]:
        for key in ("latency_quantiles_ms", "batches", "concurrency"):
            entry[key] = []
        for key in ("accuracy", "layers_by_precision"):
            entry[key] = None
    value["history"] = []
    _, outline = page(tmp_path, value)
    titles = [text for level, text in outline.headings if level == 2]
    assert "Left out" in titles
    for title in (
        "Latency distributions", "Accuracy", "Batch sizes", "Concurrent clients", "Calibration",
    ):  # fmt: skip
        assert title not in titles
        assert f"{title}: " in outline.text
    assert "`batch_sizes` 1,8,32" in outline.text


def test_failed_artifacts_are_listed_with_reason_and_last_output(full: tuple[str, Outline]) -> None:
    text, outline = full
    assert "the worker ended with signal 9" in outline.text
    assert "no NVIDIA driver (libcuda.so.1 is missing)" in outline.text
    assert "&lt;b&gt;Killed&lt;/b&gt; &amp; gone" in text


def test_everything_from_files_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    value = results_json(3)
    for entry in value["artifacts"]:
        for key in ("name", "artifact", "engine", "precision", "reason", "contains", "runs_on"):
            entry[key] = f"{evil}{entry.get(key)}"
        entry["warnings"] = [evil]
        entry["output_tail"] = evil
        if entry.get("layers_by_precision"):
            entry["layers_by_precision"] = {evil: {evil: 3}}
        if entry.get("accuracy"):
            entry["accuracy"]["metric"] = evil
    value["baseline"] = value["artifacts"][0]["name"]
    value["settings"] = {evil: evil, "recipe": evil, "command": [evil], "inputs": {evil: evil}}
    value["environment"] = {evil: evil, "processor": evil, "noise": {"noisy": True, "reasons": [evil]}}
    value["created"] = evil
    value["history"] = [{"created": evil, "machine": evil, "artifacts": {
        value["artifacts"][1]["name"]: {"speedup": 2.0, "low": 1.9, "high": 2.1}}}]  # fmt: skip
    names = {"tensor": evil, "operator": evil, "node": evil}
    layers = layers_json() | {"reference": evil, "artifact": evil, "first_bad": names}
    layers["tensors"][0] |= names
    text, outline = page(tmp_path, value, layers=[write(tmp_path / "layers.json", layers)])
    assert evil not in text
    assert not [t for t, _ in outline.tags if t in ("script", "img")]
    assert "alert(1)" in outline.text


@pytest.mark.parametrize("rows", [0, 1, 30])
def test_any_number_of_artifacts_makes_a_page(rows: int, tmp_path: Path) -> None:
    text, outline = page(tmp_path, results_json(rows) if rows else _nothing())
    assert outline.headings[0][0] == 1
    assert len(text.encode()) < 1_500_000
    if not rows:
        assert "Nothing was measured." in outline.text


@pytest.mark.parametrize("hole", [None, float("nan")])
def test_holes_in_the_figures_are_dashes(hole: Any, tmp_path: Path) -> None:
    value = results_json(4)
    one = value["artifacts"][2]
    one["speedup"] = {"value": hole, "low": hole, "high": hole, "rounds": hole, "verdict": None}
    one["accuracy"] |= {"value": hole, "drop_points": hole, "low": hole, "high": hole, "agreement": hole}
    one["latency_ms"] |= {"p90": hole, "p99": hole}
    one |= {"latency_quantiles_ms": [hole] * 101, "cold_start_ms": {"load": hole}, "peak_memory_bytes": hole}
    one["batches"] = [{"batch_size": hole, "median_ms": hole, "throughput_per_s": hole}]
    _, outline = page(tmp_path, value)
    assert "pytorch-compile" in outline.text
    assert not re.search(r"\b(nan|inf|None)\b", outline.text)


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text("the one before")
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    with pytest.raises(Exception, match="not a results file"):
        write_report(bad, report)
    assert report.read_text() == "the one before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.json", "report.html"]


def test_wrong_outputs_and_missing_files_are_refused_first(tmp_path: Path) -> None:
    results = write(tmp_path / "r.json", results_json(1))
    with pytest.raises(InvalidOption, match=r"\.html or \.htm is required"):
        write_report(results, tmp_path / "report.pdf")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(InvalidOption, match="is a folder"):
        write_report(results, tmp_path / "folder.html")
    with pytest.raises(MissingFile):
        write_report(tmp_path / "none.json", tmp_path / "report.html")


def test_equal_results_make_equal_pages(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert page(tmp_path / "a", results_json(2))[0] == page(tmp_path / "b", results_json(2))[0]


def test_without_jinja_the_way_to_install_it_is_said(tmp_path: Path) -> None:
    write(tmp_path / "r.json", results_json(1))
    program = """
import sys
sys.modules["jinja2"] = None
from qcompile.cli import main
main(["report", "r.json"])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "jinja2 cannot be imported" in done.stderr
    assert "pip install 'qcompile[report]'" in done.stderr
    assert not (tmp_path / "report.html").exists()


def _nothing() -> dict[str, Any]:
    value = results_json(1)
    value["artifacts"] = value["artifacts"][1:]
    value |= {"baseline": "rtx-int8", "settings": {}, "environment": {}, "history": []}
    return value
