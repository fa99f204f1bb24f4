"""Results: versioned JSON in which every number has its unit in its name and its environment beside it.

`results.schema.json` beside this file is their JSON Schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from ..artifact import require_file, write_json
from ..errors import ArtifactError
from .launches import split_launches

SCHEMA_VERSION = 2
KIND = "qcompile.results"
SCHEMA = Path(__file__).with_name("results.schema.json")
_READABLE = (1, 2)

Status = Literal["measured", "not run", "failed"]


@dataclass
class Entry:
    """One artifact's row. What was not measured is None or empty.

    Attributes:
        name: Short name.
        artifact: Path or MODEL spelling.
        engine: What runs it.
        precision: Of its manifest; "fp32" for a MODEL.
        runs_on: "CPU", "GPU", or the GPUs it was built for.
        device: "cpu", or the GPU it ran on as "cuda:0".
        status: Whether it was measured; `reason` says why not.
        size_bytes: File with its side files; None for a MODEL.
        latency_ms: min, median, p90, p99, max over every timed call, and their number.
        throughput_per_s: Samples per second over every timed block.
        load_ms: From nothing to a loaded artifact, importing the runtime included.
        peak_memory_bytes: Largest resident memory of the worker, until the timing ended.
        contains: What a latency contains.
        speedup: value, low, high, rounds, verdict, correlation_rounds, launches against the baseline.
        accuracy: metric, value, drop_points, low, high, samples, agreement, per_class, higher_is_better.
        difference: snr_db, max_abs_error, agreement, passed, tolerance against the baseline's outputs.
        round_medians_ms: One per round, for later comparison.
        launch_rounds: How many of these each launch had; empty in older files, which had one launch.
        warnings: What the user should know.
        mode: How PyTorch runs a MODEL: eager, trace, script, freeze or compile.
        interpreter: Python that ran it, where that was another one.
        packages: Versions of what the worker had loaded.
        latency_quantiles_ms: 0%, 1%, ... 100% of every timed call.
        gpu_latency_ms: Medians by the GPU's clock: compute, with_transfers; and enqueue by the host's.
        warm_up: calls, seconds, stable.
        cold_start_ms: process, load, first_result, total; the files may be in the system's cache.
        gpu_memory_bytes: What the worker has on the GPU.
        energy: mj_per_sample and source, or unavailable with the reason.
        batches: batch_size, median_ms, p90_ms, p99_ms, throughput_per_s of each batch size.
        concurrency: clients, median_ms, p99_ms, throughput_per_s of each number of clients.
        size_ratio: How many times smaller than the baseline's file, or than the first float file.
        layers_by_precision: From the manifest's proof.
        output_tail: Last output of a worker that failed.
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
    launch_rounds: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    mode: str = "eager"
    device: str = "cpu"
    interpreter: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    latency_quantiles_ms: list[float] = field(default_factory=list)
    gpu_latency_ms: dict[str, float] | None = None
    warm_up: dict[str, Any] | None = None
    cold_start_ms: dict[str, float] | None = None
    gpu_memory_bytes: int | None = None
    energy: dict[str, Any] | None = None
    batches: list[dict[str, float]] = field(default_factory=list)
    concurrency: list[dict[str, float]] = field(default_factory=list)
    size_ratio: float | None = None
    layers_by_precision: dict[str, Any] | None = None
    output_tail: str = ""

    @property
    def launches_ms(self) -> list[list[float]]:
        """The round medians of each launch."""
        return split_launches(self.round_medians_ms, self.launch_rounds)


@dataclass
class Results:
    """What one `bench` measured.

    Attributes:
        baseline: Name of the entry that the others are compared with.
        entries: One per artifact.
        environment: What does not change, and `before`, `after` and `noise`.
        settings: What was asked for.
        created: When, ISO 8601 in UTC; empty in files of version 1.
        history: Summaries of earlier runs that were written to the same file, oldest first.
        interrupted: Whether it was ended by hand, and holds what there was until then.
    """

    baseline: str
    entries: list[Entry]
    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    created: str = ""
    history: Sequence[Mapping[str, Any]] = ()
    interrupted: bool = False

    def entry(self, name: str) -> Entry:
        """Return the row of an artifact.

        Raises:
            KeyError: If there is none.
        """
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise KeyError(name)

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
            "artifacts": [asdict(entry) for entry in self.entries],
            "history": [dict(run) for run in self.history],
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
    require_file(path, what="results")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["kind"] != KIND or value["schema_version"] not in _READABLE:
            raise ArtifactError(
                f"{path}: {value['kind']} of version {value['schema_version']}; "
                f"{KIND} of version {' or '.join(map(str, _READABLE))} is required",
                hint="a newer qcompile wrote it: use that one" if value["kind"] == KIND else "",
                file=path,
            )
        return Results(
            value["baseline"],
            [_read_entry(entry) for entry in value["artifacts"]],
            value["environment"],
            value["settings"],
            created=value.get("created", ""),
            history=value.get("history", []),
            interrupted=value.get("interrupted", False),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{path}: not a results file ({error})", file=path) from error


def _read_entry(value: Mapping[str, Any]) -> Entry:
    """An entry; older files tell no device, and TensorRT's engines ran on a GPU then, too."""
    entry = Entry(**value)
    if "device" not in value and entry.engine.startswith("tensorrt"):
        entry.device = "cuda:0"
    if not all(isinstance(count, int) and count >= 0 for count in entry.launch_rounds):
        raise ValueError(f"launch_rounds of {entry.name}")
    if not all(0.0 < median < math.inf for median in entry.round_medians_ms):
        raise ValueError(f"round_medians_ms of {entry.name}")
    return entry


def entry_fields() -> tuple[str, ...]:
    """Return the names of an entry's fields, in order."""
    return tuple(item.name for item in fields(Entry))
