"""Results: versioned JSON in which every number has its unit in its name and its environment beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..artifact import require_file, write_json
from ..errors import ArtifactError

SCHEMA_VERSION = 1
KIND = "qcompile.results"

Status = Literal["measured", "not run", "failed"]


@dataclass
class Entry:
    """One artifact's row.

    Attributes:
        name: Short name.
        artifact: Path or MODEL spelling.
        engine: What runs it.
        precision: Of its manifest; "fp32" for a MODEL.
        runs_on: "CPU", or the GPUs it was built for.
        status: Whether it was measured; `reason` says why not.
        size_bytes: File with its side files; None for a MODEL.
        latency_ms: median, p90, p99 over every timed call, and their number.
        throughput_per_s: Samples per second over every timed block.
        load_ms: From nothing to a loaded artifact, importing the runtime included.
        peak_memory_bytes: Largest resident memory of the worker.
        contains: What a latency contains.
        speedup: value, low, high, rounds, verdict against the baseline.
        accuracy: metric, value, drop_points, samples.
        difference: snr_db, max_abs_error, agreement, passed, tolerance against the baseline's outputs.
        round_medians_ms: One per round, for later comparison.
        warnings: What the user should know.
    """

    name: str
    artifact: str
    engine: str
    precision: str = "fp32"
    runs_on: str = "CPU"
    status: Status = "measured"
    reason: str = ""
    size_bytes: int | None = None
    latency_ms: dict[str, float] | None = None
    throughput_per_s: float | None = None
    load_ms: float | None = None
    peak_memory_bytes: int | None = None
    contains: str = ""
    speedup: dict[str, Any] | None = None
    accuracy: dict[str, Any] | None = None
    difference: dict[str, Any] | None = None
    round_medians_ms: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass
class Results:
    """What one `bench` measured."""

    baseline: str
    entries: list[Entry]
    environment: Mapping[str, Any]
    settings: Mapping[str, Any]

    def entry(self, name: str) -> Entry:
        """Return the row of an artifact.

        Raises:
            KeyError: If there is none.
        """
        return next(entry for entry in self.entries if entry.name == name)

    def as_json(self) -> dict[str, Any]:
        """Return the form of `results.json`."""
        return {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "baseline": self.baseline,
            "settings": dict(self.settings),
            "environment": dict(self.environment),
            "artifacts": [asdict(entry) for entry in self.entries],
        }


def save_results(results: Results, path: Path) -> None:
    """Write results atomically."""
    write_json(path, results.as_json())


def load_results(path: Path) -> Results:
    """Read results.

    Raises:
        MissingFile: If the file is not there.
        ArtifactError: If it is not results, or of another version.
    """
    require_file(path, what="results")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["kind"] != KIND or value["schema_version"] != SCHEMA_VERSION:
            raise ArtifactError(
                f"{path}: {value['kind']} of version {value['schema_version']}; "
                f"{KIND} of version {SCHEMA_VERSION} is required",
                file=path,
            )
        entries = [Entry(**entry) for entry in value["artifacts"]]
        return Results(value["baseline"], entries, value["environment"], value["settings"])
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path}: not a results file ({error})", file=path) from error
