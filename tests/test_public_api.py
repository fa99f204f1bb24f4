"""The promise of docs/reliability.md: names, keywords, flags and keys only grow within a major version."""

from __future__ import annotations

import copy
import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from public_api import public_api

import qcompile

SAMPLES = sorted((Path(__file__).parent / "samples").glob("api-*.json"))


def broken(before: dict[str, Any], today: dict[str, Any]) -> Iterator[str]:
    """Yield what a caller of the version before stumbles over."""
    for part in ("python", "commands"):
        for name, given in before[part].items():
            if name not in today[part]:
                yield f"{name} is gone"
                continue
            yield from changed(name, given, today[part][name])
    for part in ("errors", "recipe"):
        gone = set(before[part]) - set(today[part])
        yield from (f"{name} is gone" for name in gone)


def changed(name: str, before: dict[str, str], today: dict[str, str]) -> Iterator[str]:
    for one, kind in before.items():
        allowed = {kind, kind.replace("required", "optional")}
        if kind.endswith("by name"):
            allowed |= {text.replace("by name", "by position") for text in allowed}
        if today.get(one) not in allowed:
            yield f"{name}: {one} was {kind}, is {today.get(one, 'gone')}"
    yield from (
        f"{name}: {one} is new and required"
        for one, kind in today.items()
        if one not in before and kind.startswith("required")
    )
    positions = [one for one, kind in before.items() if kind.endswith("by position")]
    if [one for one, kind in today.items() if kind.endswith("by position")][: len(positions)] != positions:
        yield f"{name}: positions were {', '.join(positions)}"


@pytest.fixture(scope="module")
def api() -> dict[str, Any]:
    return public_api()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_what_was_released_is_still_taken(sample: Path, api: dict[str, Any]) -> None:
    assert not list(broken(json.loads(sample.read_text()), api))


def test_the_version_of_today_has_its_sample_with_all_public_names() -> None:
    """`tests/support/public_api.py` writes it."""
    (sample,) = (path for path in SAMPLES if path.name == f"api-{qcompile.__version__}.json")
    assert sorted(json.loads(sample.read_text())["python"]) == sorted({*qcompile.__all__} - {"__version__"})
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        qcompile.nothing  # noqa: B018


def test_what_would_break_a_caller_is_seen(api: dict[str, Any]) -> None:
    today = copy.deepcopy(api)
    del today["python"]["tune"]
    del today["python"]["export"]["opset_version"]
    today["python"]["simplify"]["progress"] = "required by name"
    today["python"]["calibrate"] = dict(reversed(today["python"]["calibrate"].items()))
    today["python"]["load"]["key"] = "required by name"
    today["python"]["run"]["recipe"] = "required by name"
    del today["commands"]["qcompile bench"]["--threads"]
    today["errors"].remove("ModelError")
    today["recipe"].remove("bench.max_time_s")
    assert sorted(broken(api, today)) == [
        "ModelError is gone",
        "bench.max_time_s is gone",
        "calibrate: positions were model, data, output, spec",
        "export: opset_version was optional by name, is gone",
        "load: key is new and required",
        "qcompile bench: --threads was optional, is gone",
        "run: positions were recipe, spec",
        "run: recipe was required by position, is required by name",
        "simplify: progress was optional by name, is required by name",
        "tune is gone",
    ]


def test_what_a_caller_does_not_notice_may_change(api: dict[str, Any]) -> None:
    today = copy.deepcopy(api)
    today["python"]["another"] = {"x": "required by position"}
    today["python"]["tune"] |= {"max_drop": "optional by name", "seed": "optional by name"}
    today["commands"]["qcompile bench"]["--another"] = "optional"
    today["recipe"].append("bench.another")
    assert not list(broken(api, today))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("qcompile.engines", "load"),
        ("qcompile.calibration.ranges_file", "load_ranges"),
        ("qcompile.core.processes.untrusted", "Limits"),
        ("qcompile.bench.results.render", "markdown"),
        ("qcompile.cli", "main"),  # python -m qcompile, and the command
    ],
)
def test_names_in_documents_stay_in_their_modules(module: str, name: str) -> None:
    assert callable(getattr(importlib.import_module(module), name))


def test_the_command_is_the_entry_point() -> None:
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="qcompile")
    assert command.value == "qcompile.cli:main"
