"""The report of a sweep: what it says, that it loads nothing, and that strangers' texts stay texts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from html_outline import Outline
from sweep_files import write_sweep_json

from qcompile.errors import InvalidOption, MissingFile
from qcompile.reporting.sweep_page import write_sweep_report


def page(folder: Path, **options: Any) -> tuple[str, Outline]:
    path = write_sweep_report(write_sweep_json(folder / "sweep.json", **options), folder / "sweep.html")
    text = path.read_text(encoding="utf-8")
    return text, Outline(text)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Outline]:
    return page(tmp_path_factory.mktemp("sweep"))


def test_the_page_shows_the_matrix_of_each_model_and_the_reasons(full: tuple[str, Outline]) -> None:
    _, outline = full
    assert [text for level, text in outline.headings if level == 1] == ["Sweep of fleet"]
    titles = [text for level, text in outline.headings if level == 2]
    assert titles == ["small", "large", "Failed", "Not possible", "All figures"]
    assert "12 of 16 cells are done, 3 failed." in outline.text
    assert "large-b8-tensorrt-rtx-int8-sm86 the builder found no tactic" in outline.text
    assert "Speed-ups are against onnxruntime-fp32, measured in the same rounds." in outline.text
    assert "1.60× faster" in outline.text
    assert "0.40 points" in outline.text
    captions = [text for level, text in outline.headings if level == 3]
    assert captions == ["small, b1", "small, b8", "large, b1", "large, b8"]


def test_the_page_loads_nothing_and_its_ids_are_unique(full: tuple[str, Outline]) -> None:
    text, outline = full
    assert not re.search(r"https?://", text)
    assert not {tag for tag, _ in outline.tags} & {"script", "iframe", "object", "embed", "img", "form"}
    ids = [str(a["id"]) for _, a in outline.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for tag, attributes in outline.tags:
        if tag == "a":
            assert str(attributes["href"])[1:] in ids
    tags = [tag for tag, _ in outline.tags]
    assert tags.count("caption") == tags.count("table") == 5


def test_strangers_texts_stay_texts(tmp_path: Path) -> None:
    text, outline = page(
        tmp_path, name="<script>alert(1)</script>", reason="<img src=x onerror=alert(1)>\x1b[31m"
    )
    assert "<script" not in text
    assert "<img" not in text
    assert "\x1b" not in text
    assert "<script>alert(1)</script>" in outline.text


def test_an_unfinished_sweep_says_so(tmp_path: Path) -> None:
    _, outline = page(tmp_path, planned=40)
    assert "24 cells were not reached: the sweep was ended before." in outline.text


def test_an_empty_sweep_and_many_models_are_pages(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    write_sweep_json(path, planned=0)
    value = {**msgspec.json.decode(path.read_bytes()), "cells": []}
    path.write_bytes(msgspec.json.encode(value))
    text = write_sweep_report(path, tmp_path / "sweep.html").read_text(encoding="utf-8")
    assert "0 of 0 cells are done." in text
    text, outline = page(tmp_path, models=[f"m{number}" for number in range(40)])
    assert sum(1 for tag, _ in outline.tags if tag == "figure") == 24


def test_what_is_no_page_or_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"\.html or \.htm is required"):
        write_sweep_report(tmp_path / "sweep.json", tmp_path / "sweep.txt")
    with pytest.raises(MissingFile):
        write_sweep_report(tmp_path / "sweep.json", tmp_path / "sweep.html")
