"""The page of a report, the files that it is made of, and what `inspect` says of other files."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_results import layers_json, nothing_json, recommendable, results_json, results_of, write

from qcompile.bench.report import write_report
from qcompile.bench.report.inspection import inspect
from qcompile.bench.report.source import family_of, read_source
from qcompile.calibration.histogram import Histogram
from qcompile.calibration.ranges import Ranges
from qcompile.calibration.ranges_file import save_ranges
from qcompile.core.artifact import Manifest
from qcompile.errors import ArtifactError, InvalidOption, MissingFile

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
    text, outline = full
    titles = [text for level, text in outline.headings if level == 2]
    assert titles == [
        "Before you rely on it", "Results", "Speed-up", "Accuracy, latency and size", "Latency distributions",
        "Accuracy", "Batch sizes", "Concurrent clients", "Inferences in flight",
        "Start, memory, energy",
        "Precision of the layers", "Time of the layers", "Errors of the layers", "Calibration", "History",
        "Failures and warnings", "Environment", "Reproduction",
    ]  # fmt: skip
    assert outline.headings[0][1].startswith("Use")
    for words in (
        "onnx-int8-static", "By the GPU's clock, medians.", "the worker ended with signal 9",
        "no NVIDIA driver (libcuda.so.1 is missing)",
    ):  # fmt: skip
        assert words in outline.text
    assert "&lt;b&gt;Killed&lt;/b&gt; &amp; gone" in text


def test_the_page_loads_nothing(full: tuple[str, Outline]) -> None:
    text, outline = full
    policy = next(a["content"] for t, a in outline.tags if t == "meta" and a.get("http-equiv"))
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert [t for t, _ in outline.tags if t == "script"] == ["script"] * len(scripts) == ["script"]
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}';")
    loading = {"iframe", "object", "embed", "img", "base", "form"}
    assert {t for t, _ in outline.tags} & loading == set()
    for tag, attributes in outline.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "src", "xlink:href"):
                assert str(value).startswith("#") or value == "data:,", (tag, value)
    assert "@import" not in text
    assert "url(http" not in text
    assert not re.search(r"https?://", text)


def test_title_and_header_name_the_model_the_data_and_the_samples(full: tuple[str, Outline]) -> None:
    text, _ = full
    about = "out/pytorch.onnx · data.py:evaluation · 1,000 samples"
    assert f"<title>onnx-int8-static · {about} · qcompile report</title>" in text
    assert f'<p class="about">{about}</p>' in text


@pytest.mark.parametrize(
    ("settings", "about"),
    [
        ({}, "model.py:build · random input"),
        ({"data": "/data/photos?samples=4"}, "model.py:build · data/photos?samples=4"),
    ],
)
def test_without_an_evaluation_the_header_names_the_input(
    settings: dict[str, Any], about: str, tmp_path: Path
) -> None:
    value = results_of(recommendable("a", 10.0, artifact="model.py:build"), recommendable("b", 5.0))
    assert f'<p class="about">{about}</p>' in page(tmp_path, {**value, "settings": settings})[0]


def test_layers_beside_the_results_are_shown_by_the_names_of_modules(tmp_path: Path) -> None:
    value = results_of(recommendable("a", 10.0), recommendable("b", 5.0, artifact="out/model.int8.onnx"))
    layers = layers_json()
    layers["tensors"][0]["module"] = "backbone.layer1.conv0"
    write(tmp_path / "layers.json", layers)
    write(tmp_path / "layers-other.json", layers | {"artifact": "other.onnx"})
    text, outline = page(tmp_path, value)
    assert outline.text.count("against model.onnx") == 1
    assert 'title="backbone.layer1.conv0"' in text
    assert "layers-other.json" not in text


def test_without_compared_layers_the_calibration_shows_the_rounding_of_each(tmp_path: Path) -> None:
    ranges = Ranges("m", modules={"t0": "stages.0.conv"})
    for name in ("t0", "t1"):
        ranges.histograms[name] = Histogram()
        ranges.histograms[name].add(np.random.default_rng(0).standard_normal(4000).astype(np.float32))
    save_ranges(ranges, tmp_path / "m.ranges")
    text, outline = page(tmp_path, results_json(2), ranges=tmp_path / "m.ranges")
    assert "Rounding to INT8, by layer" in outline.text
    for name in ("stages.0.conv", "t1"):
        assert f'<span class="name" title="{name}">' in text


def test_a_reader_without_eyes_finds_the_way(full: tuple[str, Outline]) -> None:
    """Headings go down one level at a time, ids are unique, anchors lead somewhere, tables have headers."""
    _, outline = full
    levels = [level for level, _ in outline.headings]
    assert levels[0] == levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    ids = [str(attributes["id"]) for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in outline.tags:
        if tag == "a":
            assert str(attributes["href"])[1:] in ids
        assert attributes.get("aria-labelledby", ids[0]) in ids
        assert tag != "th" or attributes.get("scope") in ("row", "col")
    tags = [tag for tag, _ in outline.tags]
    assert tags.count("caption") == tags.count("table") > 5


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
    assert "Omitted sections" in titles
    for title in (
        "Latency distributions", "Accuracy", "Batch sizes", "Concurrent clients", "Calibration",
    ):  # fmt: skip
        assert title not in titles
        assert f"{title}: " in outline.text
    assert "batch_sizes 1,8,32" in outline.text


def test_code_between_backticks_is_code(tmp_path: Path) -> None:
    value = nothing_json() | {"settings": {"recipe": "# `kept` as it is"}}
    value["artifacts"][0]["warnings"] = ["raise `max_time_s`, or `a<b>` & 1 ` alone"]
    text, _ = page(tmp_path, value)
    assert "raise <code>max_time_s</code>, or <code>a&lt;b&gt;</code> &amp; 1 ` alone" in text
    assert "<code>evaluation</code>" in text
    shown = text.partition("<body>")[2]
    assert shown.count("# `kept` as it is") == 1
    assert shown.count("`") == 2 + 1  # of the recipe, and of the warning


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
    assert [t for t, _ in outline.tags if t in ("script", "img")] == ["script"]
    assert "alert(1)" in outline.text


@pytest.mark.parametrize("rows", [0, 1, 30])
def test_any_number_of_artifacts_makes_a_page(rows: int, tmp_path: Path) -> None:
    text, outline = page(tmp_path, results_json(rows) if rows else nothing_json())
    assert outline.headings[0][0] == 1
    assert len(text.encode()) < 1_500_000
    if not rows:
        assert "No artifact was measured." in outline.text


@pytest.mark.parametrize("hole", [None, float("nan")])
def test_holes_in_the_figures_are_dashes(hole: Any, tmp_path: Path) -> None:
    value = results_json(4)
    one = value["artifacts"][2]
    one["speedup"] = {"value": hole, "low": hole, "high": hole, "rounds": hole, "verdict": None}
    one["accuracy"] |= {"value": hole, "drop_points": hole, "low": hole, "high": hole, "agreement": hole}
    one["latency_ms"] |= {"p90": hole, "p99": hole}
    one |= {"latency_quantiles_ms": [], "cold_start_ms": {"load": hole}, "peak_memory_bytes": None}
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
    program = (
        "import sys; sys.modules['jinja2'] = None; import qcompile.cli as c; c.main(['report', 'r.json'])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "jinja2 cannot be imported" in done.stderr
    assert "pip install 'jinja2>=3.1'" in done.stderr
    assert not (tmp_path / "report.html").exists()


def test_subjects_are_numbered_with_the_baseline_first(tmp_path: Path) -> None:
    value = results_json(4)
    value["baseline"] = "pytorch-compile"
    source = read_source(write(tmp_path / "r.json", value))
    assert [s.number for s in source.subjects] == list(range(1, 7))
    assert source.subjects[0].name == "pytorch-compile"
    assert source.baseline is source.subjects[0]
    assert [s.name for s in source.subjects if not s.is_measured] == ["onnx-int8-broken", "rtx-int8"]


@pytest.mark.parametrize("latency", [None, {}, {"median": None}, {"median": float("nan")}])
def test_without_a_latency_nothing_counts_as_measured(latency: Any, tmp_path: Path) -> None:
    value = results_json(2)
    value["artifacts"][1]["latency_ms"] = latency
    source = read_source(write(tmp_path / "r.json", value))
    assert [s.name for s in source.measured] == ["pytorch"]


@pytest.mark.parametrize(
    "change",
    [{"kind": "other"}, {"schema_version": 2}, {"tensors": None}, {"tensors": [1]}, {"tensors": [{}]}],
)
def test_what_is_no_file_of_layers_is_said(change: dict[str, Any], tmp_path: Path) -> None:
    results = write(tmp_path / "r.json", results_json(1))
    layers = write(tmp_path / "layers.json", {**layers_json(), **change})
    with pytest.raises(ArtifactError, match=r"layers\.json"):
        read_source(results, layers=[layers])


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    results = write(tmp_path / "r.json", results_json(1))
    for options in ({"layers": [tmp_path / "x"]}, {"ranges": tmp_path / "x"}, {"recipe": tmp_path / "x"}):
        with pytest.raises(MissingFile):
            read_source(results, **options)  # type: ignore[arg-type]
    with pytest.raises(MissingFile):
        read_source(tmp_path / "none.json")


def test_a_recipe_beside_the_results_comes_before_theirs(tmp_path: Path) -> None:
    results = write(tmp_path / "r.json", results_json(1))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("version = 1 # mine\n")
    assert read_source(results, recipe=recipe).recipe == "version = 1 # mine\n"
    assert 'name = "digits"' in str(read_source(results).recipe)


def test_texts_that_no_file_can_hold_are_replaced(tmp_path: Path) -> None:
    value = results_json(2)
    value["artifacts"][1]["name"] = "bad\ud800\x00name"
    path = tmp_path / "r.json"
    path.write_text(json.dumps(value))
    assert read_source(path).subjects[1].name == "bad��name"


@pytest.mark.parametrize(
    ("precision", "family"),
    [("fp32", "float"), ("BF16", "half"), ("uint8", "int8"), ("float8_e4m3fn", "low"), ("int4", "low"),
     ("int32", "mixed"), ("best", "mixed"), ("", "mixed")],
)  # fmt: skip
def test_precisions_have_families(precision: str, family: str) -> None:
    assert family_of(precision) == family


@pytest.mark.parametrize(
    ("file", "content", "what", "hint"),
    [
        ("int8.onnx.json", json.dumps(Manifest("onnx", "build").as_json()), "is a manifest", "inspect"),
        ("layers.json", json.dumps({"kind": "qcompile.layers", "schema_version": 1}),
         "holds layers that `qcompile diff` compared", "qcompile report"),
        ("m.cache", "TRT-8503-EntropyCalibration2\nx: 3c010a14\n", "is a calibration cache of TensorRT",
         "`ranges`"),
        ("interrupted.checkpoint", "no file of ours", "unknown file type", ""),
    ],
)  # fmt: skip
def test_a_file_that_is_no_artifact_is_named_with_what_shows_it(
    file: str, content: str, what: str, hint: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(InvalidOption) as caught:
        inspect(tmp_path / file)
    assert what in caught.value.message
    assert hint in caught.value.hint
