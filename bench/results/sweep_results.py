"""`sweep.json`: what became of each cell of a sweep, one line each, whole or not at all.

`docs/sweep.md` says what the keys mean; `docs/sweep.schema.json` is their JSON Schema.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...errors import ArtifactError
from ...figures import DASH, drop_text, times
from ...files import read_bytes, writing
from ..statistics.speedup import Verdict

RESULTS = "sweep.json"
KIND = "qcompile.sweep"
SCHEMA_VERSION = 1

State = Literal["done", "failed", "impossible"]
"""What became of a cell.

| done       | the artifact is built, and measured where the recipe says so |
| failed     | it was not built, or not measured: a later run tries again   |
| impossible | the options forbid it, or the machines lack what it needs    |
"""
Ratio = Annotated[float, Meta(gt=0)]
Milliseconds = Annotated[float, Meta(gt=0)]
Bytes = Annotated[int, Meta(ge=0)]


class CellLatency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Latency of a call with the whole batch.

    Attributes:
        median_ms: Over every timed call.
        low_ms, high_ms: Ends of the interval, over several processes, at `confidence` of the results file.
        p99_ms: Over every timed call.
    """

    median_ms: Milliseconds
    low_ms: Milliseconds | None = None
    high_ms: Milliseconds | None = None
    p99_ms: Milliseconds | None = None


class CellSpeedup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many times faster than the baseline, which was measured in the same rounds.

    Attributes:
        baseline: Name of its cell or row.
        value: Above 1 is faster.
        low, high: Ends of its interval, at `confidence` of the results file.
        verdict: What the interval supports.
    """

    baseline: str
    value: Ratio
    low: Ratio
    high: Ratio
    verdict: Verdict


class CellAccuracy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The metric over the evaluation data, and how much worse it is than the baseline's.

    Attributes:
        metric: Its spelling.
        value: A share, or in the metric's own unit.
        drop: How much worse than the baseline, in `unit`; negative is better.
        drop_low, drop_high: Ends of its 95% interval.
        unit: Percentage points, or the metric's own unit.
    """

    metric: str
    value: float
    drop: float | None = None
    drop_low: float | None = None
    drop_high: float | None = None
    unit: Literal["points", "units"] = "points"


class CellResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cell.

    Attributes:
        name: Unique in the file.
        model, target, precision: As the matrix names them.
        shape: Label of the shape; empty where the matrix has one alone.
        gpu: Compute capability that it is built for; empty for a processor.
        state: "done": built, and measured where the recipe says so. "failed": a later run tries again.
            "impossible": the options forbid it, or the machines lack what it needs.
        reason: Why it is not done.
        artifact: Its file, relative to the folder of this one; empty where it was not built.
        digest: Of that file.
        size_bytes: Of it, with its side files.
        batch_size: Samples per call that were measured.
        inputs: Input to shape that were measured.
        measurement: Results file of the measurement, relative to the folder of this one: latencies of one
            measurement may be compared with each other, others may not.
        latency, speedup, accuracy: What was measured; null where it was not.
        built_on, measured_on: Names of the workers; empty for the process of the sweep itself.
    """

    name: str
    model: str
    target: str
    precision: str
    state: State
    shape: str = ""
    gpu: str = ""
    reason: str = ""
    artifact: str = ""
    digest: str = ""
    size_bytes: Bytes | None = None
    batch_size: Annotated[int, Meta(ge=1)] | None = None
    inputs: dict[str, str] = {}
    measurement: str = ""
    latency: CellLatency | None = None
    speedup: CellSpeedup | None = None
    accuracy: CellAccuracy | None = None
    built_on: str = ""
    measured_on: str = ""

    @property
    def is_baseline(self) -> bool:
        """Whether the others of its measurement are compared with it."""
        return self.latency is not None and self.speedup is None

    @property
    def speedup_words(self) -> str:
        """The speed-up and its verdict, for people."""
        if self.speedup is None:
            return "baseline" if self.is_baseline else DASH
        return f"{times(self.speedup.value)} {self.speedup.verdict}"

    @property
    def drop_words(self) -> str:
        """The drop in accuracy with its unit, for people."""
        if self.accuracy is None or self.accuracy.drop is None:
            return DASH
        return f"{drop_text(self.accuracy.drop, self.accuracy.unit)} {self.accuracy.unit}"


class SweepResults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file.

    Attributes:
        kind: What it is.
        schema_version: Of the format.
        created: When it was written, ISO 8601 in UTC.
        name: Of the recipe.
        planned: Cells of the matrix.
        finished: Whether each of them was reached; a run that was ended by hand or killed did not.
        cells: Those that were reached.
    """

    kind: Literal["qcompile.sweep"]
    schema_version: Literal[1]
    created: str
    name: str
    planned: Annotated[int, Meta(ge=0)]
    finished: bool
    cells: tuple[CellResult, ...]


def write_results(path: Path, head: dict[str, Any], cells: Iterable[bytes]) -> None:
    """Write the file atomically, one cell at a time: memory does not depend on their number.

    Args:
        path: The file.
        head: All keys but `cells`.
        cells: Each as JSON.
    """
    with writing(path) as temporary, temporary.open("wb") as file:
        file.write(msgspec.json.encode(head)[:-1] + b',"cells":[')
        for index, cell in enumerate(cells):
            file.write((b",\n" if index else b"\n") + cell)
        file.write(b"\n]}\n")


def head(name: str, *, created: str, planned: int, finished: bool) -> dict[str, Any]:
    """Return all keys of a file but its cells."""
    return {
        "kind": KIND, "schema_version": SCHEMA_VERSION, "created": created, "name": name, "planned": planned,
        "finished": finished,
    }  # fmt: skip


def load_sweep(path: str | Path) -> SweepResults:
    """Read the results of a sweep.

    Raises:
        MissingFile: If the file is not there.
        ArtifactError: If it is no sweep, of another version, or holds two cells of one name.
    """
    path = Path(path)
    return parse_sweep(read_bytes(path, what="results of a sweep"), path)


def parse_sweep(content: bytes, path: Path) -> SweepResults:
    """Return the results that a file holds.

    Raises:
        ArtifactError: As `load_sweep`.
    """
    try:
        about = msgspec.json.decode(content, type=_About)
        if about.kind != KIND or about.schema_version != SCHEMA_VERSION:
            raise _wrong(
                path,
                f"{about.kind or 'a file of no kind'} of version {about.schema_version}; "
                f"{KIND} of version {SCHEMA_VERSION} is required",
                "a newer qcompile wrote it: use that one" if about.kind == KIND else "",
            )
        results = msgspec.json.decode(content, type=SweepResults)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _wrong(path, str(error), "run the sweep again") from error
    seen: set[str] = set()
    for cell in results.cells:
        if cell.name in seen:
            raise _wrong(path, f"two cells have the name {cell.name!r}", "run the sweep again")
        seen.add(cell.name)
    return results


class _About(msgspec.Struct):
    """What says whether the rest can be read."""

    kind: str = ""
    schema_version: int = 0


def _wrong(path: Path, problem: str, hint: str) -> ArtifactError:
    return ArtifactError(f"{path}: not results of a sweep: {problem}", hint=hint, file=path)


def sweep_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "qcompile sweep",
        **msgspec.json.schema(SweepResults),
    }
