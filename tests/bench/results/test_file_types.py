"""Results of wrong types are refused by the key that is wrong, before anything uses them."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qcompile.bench.results.results import load_results, parse_results
from qcompile.errors import ArtifactError

SAMPLE = json.loads((Path(__file__).parents[2] / "samples/bench/results.version-2.json").read_text())


def changed(place: str, value: object) -> dict[str, Any]:
    """The sample with another value at a path such as `artifacts.0.name`."""
    whole = copy.deepcopy(SAMPLE)
    *steps, last = [int(step) if step.isdigit() else step for step in place.split(".")]
    table: Any = whole
    for step in steps:
        table = table[step]
    table[last] = value
    return whole


@pytest.mark.parametrize(
    ("place", "value", "key"),
    [
        ("settings", [], "settings"),
        ("settings.inputs", 3, "settings.inputs"),
        ("settings.confidence", "high", "settings.confidence"),
        ("settings.confidence", float("nan"), "settings.confidence"),
        ("settings.threads", "two", "settings.threads"),
        ("environment.noise", {"reasons": 4}, "environment.noise.reasons"),
        ("artifacts", {}, "artifacts"),
        ("artifacts.0", "plain", "artifacts[0]"),
        ("artifacts.1.name", None, "artifacts[1].name"),
        ("artifacts.1.size_bytes", "many", "artifacts[1].size_bytes"),
        ("artifacts.1.size_bytes", 10**400, "artifacts[1].size_bytes"),
        ("artifacts.1.latency_ms", [1], "artifacts[1].latency_ms"),
        ("artifacts.1.warnings", 5, "artifacts[1].warnings"),
        ("artifacts.1.warnings", [5], "artifacts[1].warnings[0]"),
        ("artifacts.1.packages", ["a"], "artifacts[1].packages"),
        ("artifacts.1.speedup", 2.0, "artifacts[1].speedup"),
        ("artifacts.1.status", "well", "artifacts[1].status"),
        ("artifacts.1.launch_rounds", [True], "artifacts[1].launch_rounds[0]"),
        ("history", 5, "history"),
        ("history", [5], "history[0]"),
        ("history", [{"artifacts": {"a": 3}}], "history[0].artifacts[...]"),
        ("interrupted", "no", "interrupted"),
        ("created", 7, "created"),
    ],
)
def test_a_wrong_type_is_refused_with_file_and_key(
    tmp_path: Path, place: str, value: object, key: str
) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(changed(place, value)))
    with pytest.raises(ArtifactError) as caught:
        load_results(path)
    assert caught.value.message.startswith(f"{path}: not a results file (key '{key}': ")
    assert caught.value.data["file"] == path


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"null", b"7" * 5000])
def test_what_is_no_table_is_refused(content: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"r\.json: not a results file"):
        parse_results(content, Path("r.json"))


@settings(max_examples=50)
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner)))
def test_any_value_is_read_or_refused(value: object) -> None:
    for whole in (value, *({**SAMPLE, key: value} for key in SAMPLE)):
        with contextlib.suppress(ArtifactError):
            parse_results(json.dumps(whole).encode(), Path("r.json"))
