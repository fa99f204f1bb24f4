"""Files of results: older ones are read, damaged ones refused, and the schema says what is in them."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from qcompile.bench.results import SCHEMA, load_results
from qcompile.errors import ArtifactError, MissingFile


def test_results_of_version_1_are_read(tmp_path: Path) -> None:
    old = {
        "kind": "qcompile.results", "schema_version": 1, "baseline": "a",
        "settings": {"threads": 1, "inputs": {"x": "1x16"}}, "environment": {"processor": "some"},
        "artifacts": [
            {"name": "a", "artifact": "a.onnx", "engine": "onnxruntime", "precision": "fp32",
             "runs_on": "CPU", "status": "measured", "reason": "", "size_bytes": 7,
             "latency_ms": {"median": 1.0, "p90": 1.0, "p99": 1.0, "calls": 9}, "throughput_per_s": 1.0,
             "load_ms": 1.0, "peak_memory_bytes": 1, "contains": "", "speedup": None, "accuracy": None,
             "difference": None, "round_medians_ms": [1.0], "warnings": []},
        ],
    }  # fmt: skip
    path = tmp_path / "old.json"
    path.write_text(json.dumps(old))
    results = load_results(path)
    assert results.entry("a").round_medians_ms == [1.0]
    assert results.as_json()["schema_version"] == 2
    path.write_text(json.dumps(old | {"schema_version": 3}))
    with pytest.raises(ArtifactError, match=r"of version 3; .* of version 1 or 2 is required"):
        load_results(path)


RESULT = {
    "kind": "qcompile.results", "schema_version": 2, "baseline": "a", "settings": {}, "environment": {},
}  # fmt: skip


def test_engines_of_older_results_ran_on_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    artifacts = [{"name": name, "artifact": name, "engine": name} for name in ("tensorrt", "onnxruntime")]
    path.write_text(json.dumps({**RESULT, "artifacts": artifacts}))
    assert [entry.device for entry in load_results(path).entries] == ["cuda:0", "cpu"]


@pytest.mark.parametrize(
    "damage",
    [
        {"launch_rounds": None}, {"launch_rounds": 5}, {"launch_rounds": ["20"]}, {"launch_rounds": [5.0]},
        {"launch_rounds": [50, -10]}, {"round_medians_ms": None}, {"round_medians_ms": [1.0, 0.0]},
        {"round_medians_ms": [float("nan")]}, {"round_medians_ms": ["1"]},
    ],
)  # fmt: skip
def test_damaged_rounds_are_refused(tmp_path: Path, damage: dict[str, object]) -> None:
    path = tmp_path / "bad.json"
    entry = {"name": "a", "artifact": "a.onnx", "engine": "onnxruntime", "round_medians_ms": [1.0] * 40}
    path.write_text(json.dumps({**RESULT, "artifacts": [{**entry, **damage}]}))
    with pytest.raises(ArtifactError, match=r"bad\.json: not a results file"):
        load_results(path)


def test_every_field_of_an_entry_is_in_the_schema() -> None:
    from dataclasses import fields

    from qcompile.bench.results import Entry

    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert list(schema["$defs"]["artifact"]["properties"]) == [field.name for field in fields(Entry)]


@pytest.mark.parametrize("text", ["", "{", '{"kind": "x", "schema_version": 1}', "[]"])
def test_files_that_are_no_results_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match=r"results\.json"):
        load_results(path)
    with pytest.raises(MissingFile):
        load_results(tmp_path / "none.json")
