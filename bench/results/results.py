"""Results: versioned JSON in which every number has its unit in its name and its environment beside it.

`results.schema.json` beside this file is their JSON Schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ...errors import ArtifactError
from ...files import require_file, write_json
from .file_types import KIND, READABLE, kind_and_version, problem_of
from .row import Row
from .row_json import read_row, row_json

SCHEMA_VERSION = 2
SCHEMA = Path(__file__).with_name("results.schema.json")
_OLDER_CONFIDENCE = 0.95  # of speed-ups in files that do not say it


@dataclass(frozen=True)
class Measured:
    """What one machine's part of several is compared with, and what it ran on."""

    baseline: str
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class Results:
    """What one `bench` measured, or several on machines of their own.

    Attributes:
        baseline: Name of the row that the others are compared with.
        rows: One per artifact.
        environment: What does not change, and `before`, `after` and `noise`.
        settings: What was asked for.
        created: When, ISO 8601 in UTC; empty in files of version 1.
        history: Summaries of earlier runs that were written to the same file, oldest first.
        interrupted: Whether it was ended by hand, and holds what there was until then.
        machines: Machine to what was measured there, where there are several: `Row.machine` names them.
    """

    baseline: str
    rows: Sequence[Row]
    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    created: str = ""
    history: Sequence[Mapping[str, Any]] = ()
    interrupted: bool = False
    machines: Mapping[str, Measured] = field(default_factory=dict)

    def baseline_of(self, row: Row) -> str:
        """Return the name of the row that a row is compared with: the one of its machine."""
        measured = self.machines.get(row.machine)
        return measured.baseline if measured else self.baseline

    def row(self, name: str) -> Row:
        """Return the row of an artifact.

        Raises:
            KeyError: If there is none.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    @property
    def confidence(self) -> float:
        """Of the intervals of the speed-ups."""
        return float(self.settings.get("confidence", _OLDER_CONFIDENCE))

    def as_json(self) -> dict[str, Any]:
        """Return the form of `results.json`."""
        return {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "created": self.created,
            "interrupted": self.interrupted,
            "baseline": self.baseline,
            "settings": dict(self.settings),
            "environment": dict(self.environment),
            "artifacts": [row_json(row) for row in self.rows],
            "history": [dict(run) for run in self.history],
            **({"machines": _machines_json(self.machines)} if self.machines else {}),
        }


class BenchInterrupted(KeyboardInterrupt):
    """Measuring was ended by Ctrl-C; `results` holds what there was, and is written already."""

    def __init__(self, results: Results) -> None:
        super().__init__("interrupted")
        self.results = results


def now() -> str:
    """Return this moment, ISO 8601 in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def save_results(results: Results, path: Path) -> None:
    """Write results atomically."""
    write_json(path, results.as_json())


def load_results(path: Path) -> Results:
    """Read results, of version 1 too.

    Raises:
        MissingFile: If the file is not there.
        ArtifactError: If it is not results, or of another version.
    """
    return parse_results(require_file(path, what="results").read_bytes(), path)


def parse_results(content: bytes, path: Path) -> Results:
    """Return the results that a file holds.

    Raises:
        ArtifactError: As `load_results`.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise _no_results(path, problem) from error
    kind, version = kind_and_version(value)
    if kind != KIND or version not in READABLE:
        raise ArtifactError(
            f"{path}: not a results file: {kind or 'a file of no kind'} of version {version}; "
            f"{KIND} of version {' or '.join(map(str, READABLE))} is required",
            hint="a newer qcompile wrote it: use that one" if kind == KIND else "",
            file=path,
        )
    problem = problem_of(value)
    if problem:
        raise _no_results(path, problem)
    try:
        return read_results(value)
    except ValueError as error:
        raise _no_results(path, str(error)) from error


def _no_results(path: Path, problem: str) -> ArtifactError:
    return ArtifactError(f"{path}: not a results file ({problem})", hint="measure again", file=path)


def read_results(value: Mapping[str, Any]) -> Results:
    """Return the results that a JSON value of a known version and of the right types holds.

    Raises:
        ValueError: If its rounds are damaged.
    """
    return Results(
        value["baseline"],
        [read_row(row) for row in value["artifacts"]],
        dict(value["environment"]),
        dict(value["settings"]),
        created=value.get("created", ""),
        history=value.get("history", []),
        interrupted=value.get("interrupted", False),
        machines={
            name: Measured(one["baseline"], dict(one["environment"]))
            for name, one in value.get("machines", {}).items()
        },
    )


def _machines_json(machines: Mapping[str, Measured]) -> dict[str, Any]:
    return {
        name: {"baseline": one.baseline, "environment": dict(one.environment)}
        for name, one in machines.items()
    }
