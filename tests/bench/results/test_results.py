"""Files of results: older ones are read, damaged ones refused, and the schema says what is in them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import pytest

from qcompile.bench.results.results import SCHEMA, Results, load_results, save_results
from qcompile.bench.results.row import Difference, Row
from qcompile.bench.results.row_json import row_json
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
    assert results.row("a").round_medians_ms == (1.0,)
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
    assert [row.device for row in load_results(path).rows] == ["cuda:0", "cpu"]


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
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert list(schema["$defs"]["artifact"]["properties"]) == list(row_json(Row("a", "a", "a")))


@pytest.mark.parametrize("text", ["", "{", '{"kind": "x", "schema_version": 1}', "[]"])
def test_files_that_are_no_results_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match=r"results\.json"):
        load_results(path)
    with pytest.raises(MissingFile):
        load_results(tmp_path / "none.json")


DATA = Path(__file__).parents[2] / "samples/bench"
"""Files that earlier versions wrote: one model, a worse one, the same again, one whose outputs are NaN."""


@pytest.mark.parametrize("version", [1, 2])
def test_files_of_earlier_versions_say_what_they_said(version: int, tmp_path: Path) -> None:
    path = DATA / f"results.version-{version}.json"
    written = json.loads(path.read_text())
    results = load_results(path)
    assert [row.name for row in results.rows] == [entry["name"] for entry in written["artifacts"]]
    for row, entry in zip(results.rows, written["artifacts"], strict=True):
        again = row_json(row)
        for key in set(entry) - {"difference"}:
            known = entry[key]
            found = {part: again[key][part] for part in known} if isinstance(known, dict) else again[key]
            assert found == (pytest.approx(known) if isinstance(known, dict) else known), key
    worse, wrong = results.row("off.onnx"), results.row("nan.onnx")
    assert worse.difference.snr_db == pytest.approx(34.0, abs=0.1)
    assert (wrong.difference.passed, wrong.difference.snr_db) == (False, -math.inf)
    save_results(results, tmp_path / "again.json")
    assert load_results(tmp_path / "again.json") == results
    if version == 2:  # the settings of version 1 were fewer
        jsonschema.validate(results.as_json(), json.loads(SCHEMA.read_text()))


def test_equal_outputs_of_earlier_files_are_equal() -> None:
    same = load_results(DATA / "results.version-2.json").row("plain.onnx (2)")
    assert (same.difference.passed, same.difference.snr_db) == (True, math.inf)


@pytest.mark.parametrize(
    ("difference", "state"),
    [
        (Difference(True, "y", math.inf, 0.0), "equal"),
        (Difference(True, "y", 31.2, 0.1), "finite"),
        (Difference(False, "y", -math.inf, math.inf), "not finite"),
        (Difference(False, "y", -math.inf, 0.5), "not finite"),  # the reference is zero
    ],
)
def test_equal_and_infinitely_wrong_are_told_apart(
    difference: Difference, state: str, tmp_path: Path
) -> None:
    """Both were a null `snr_db`, and a NaN output was shown as "equal"."""
    row = Row("a", "a.onnx", "onnxruntime", difference=difference)
    results = Results("a", [row], {}, {})
    save_results(results, tmp_path / "r.json")
    written = json.loads((tmp_path / "r.json").read_text(), parse_constant=pytest.fail)
    assert written["artifacts"][0]["difference"]["state"] == state
    assert load_results(tmp_path / "r.json").rows[0].difference == difference


def test_rows_of_0_2_0_that_measured_arriving_requests_keep_their_other_figures(tmp_path: Path) -> None:
    """What a server held, too: its row says where it ran, in the words that were written."""
    written = json.loads((DATA / "results.version-2.json").read_text())
    load = {"arrivals": [{"rate_per_s": 20.0, "keeps_up": False}], "largest_rate": {"per_s": 50.0}}
    served = {"engine": "kserve", "device": "served", "precision": "unknown", "size_bytes": None}
    written["artifacts"][1] |= {**load, **served}
    written["settings"] |= {"rates": [20.0], "p99_below_ms": 50.0, "arrivals_seed": 1}
    path = tmp_path / "results.json"
    path.write_text(json.dumps(written))
    row = load_results(path).rows[1]
    assert (row.engine, row.device, row.precision, row.size_bytes) == ("kserve", "served", "unknown", None)
    assert row.latency == load_results(DATA / "results.version-2.json").rows[1].latency
    assert not {"arrivals", "largest_rate"} & row_json(row).keys()
