from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_results import layers_json, results_json, write

from qcompile.errors import ArtifactError, MissingFile
from qcompile.reporting.source import family_of, read_source


def test_subjects_are_numbered_with_the_baseline_first(tmp_path: Path) -> None:
    value = results_json(4)
    value["baseline"] = "pytorch-compile"
    source = read_source(write(tmp_path / "r.json", value))
    assert [s.number for s in source.subjects] == list(range(1, 7))
    assert source.subjects[0].name == "pytorch-compile"
    assert source.baseline is source.subjects[0]
    assert [s.name for s in source.subjects if not s.is_measured] == ["onnx-int8-broken", "rtx-int8"]


@pytest.mark.parametrize("latency", [None, {}, {"median": None}, {"median": float("nan")}, {"median": 0}])
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
