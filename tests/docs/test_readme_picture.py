"""The README's picture is drawn from a results file, whole, in light and dark."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from browser import installed_browser
from readme_picture import caption, pictures
from report_results import results_json, write

from qcompile.bench.report.source import ReportSource, read_source

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CUT = """
[...document.querySelectorAll('text')].filter(text => {
  const box = text.getBoundingClientRect(), page = document.documentElement.getBoundingClientRect();
  return box.left < 0 || box.top < 0 || box.right > page.right || box.bottom > page.bottom;
}).map(text => text.textContent)
"""


@pytest.fixture
def source(tmp_path: Path) -> ReportSource:
    return read_source(write(tmp_path / "results.json", results_json()))


def test_the_picture_has_the_figures_of_every_measured_artifact(source: ReportSource) -> None:
    drawn = pictures(source)
    words = [
        text.text for text in ElementTree.fromstring(drawn["light"]).iter("{http://www.w3.org/2000/svg}text")
    ]
    for subject in source.measured:
        figures = (subject.text.latency, subject.text.accuracy)
        assert all(figure in words for figure in figures), subject.name
    assert "median latency of a call, ms" in words
    assert drawn["light"] != drawn["dark"]
    assert "var(" not in drawn["light"] + drawn["dark"]
    assert "2026-11-21" in caption(source)


def test_no_word_of_the_picture_is_cut(source: ReportSource, tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    path.write_text(pictures(source)["dark"], encoding="utf-8")
    with installed_browser(tmp_path / "profile") as browser:
        browser.show(path, width=1280, height=900)
        assert browser.run(CUT) == []


def test_the_readme_shows_small_pictures_that_load_nothing() -> None:
    files = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert files == ["docs/assets/digits-dark.svg", "docs/assets/digits-light.svg"]
    for file in files:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert len(text) < 30_000
        assert not re.search(r"href|url\(|<script|<image", text)
