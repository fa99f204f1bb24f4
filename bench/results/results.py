"""The results file: versioned JSON, with the unit of each figure in its key, and the environment of the run.

`Results` mirrors the file, key for key; `results.schema.json` beside this file is generated from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from ...core.figures import finite
from ...core.files import require_file, write_json
from ...core.notebook import Plot, frame_of, html_of, plot_of
from ...errors import ArtifactError
from .environment import machine_text
from .row import Row, without_nulls
from .statistics import CONFIDENCE

KIND = "qcompile.results"
SCHEMA_VERSION = 2
SCHEMA = Path(__file__).with_name("results.schema.json")
HISTORY_LIMIT = 100
_DEEPEST = 64
_KEY = re.compile(r"(?P<text>.*) - at `\$\.?(?P<key>.+)`\Z", re.DOTALL)


class Measured(Struct, frozen=True):
    """Baseline and environment of one machine, in results of several."""

    baseline: str
    environment: dict[str, Any]


class Results(Struct, frozen=True, kw_only=True, tag_field="kind", tag=KIND):
    """Results of one `bench`, or of several on different machines. Names contain the units.

    Attributes:
        schema_version: Version of the format.
        created: Time of the run, ISO 8601 in UTC.
        interrupted: Whether the user ended the run, so that the results are incomplete.
        baseline: Name of the row that the others are compared with.
        settings: Options of the run: `Settings`, and other keys.
        environment: Machine and versions: `Environment`, and other keys.
        artifacts: One row per artifact.
        history: Summaries of earlier runs that were written to the same file, oldest first.
        machines: Baseline and environment by machine, in results of several; see `Row.machine`.
    """

    schema_version: int = SCHEMA_VERSION
    created: str = ""
    interrupted: bool = False
    baseline: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    rows: list[Row] = field(name="artifacts")
    history: list[dict[str, Any]] = []
    machines: dict[str, Measured] = {}

    def baseline_of(self, row: Row) -> str:
        """Return the name of a row's baseline: that of its machine."""
        measured = self.machines.get(row.machine)
        return measured.baseline if measured else self.baseline

    def row(self, name: str) -> Row:
        return {row.name: row for row in self.rows}[name]

    @property
    def confidence(self) -> float:
        """Level of the intervals of the speed-ups."""
        return float(self.settings.get("confidence", CONFIDENCE))

    def plot(self) -> Plot:
        """Return a picture: the latency distribution of each artifact."""
        return plot_of(self)

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each artifact and the columns of the CSV file.

        Raises:
            EngineUnavailable: If pandas is not installed; the hint is the command that installs it.
        """
        return frame_of(self)

    def _repr_html_(self) -> str:
        return html_of(self)

    def as_json(self) -> dict[str, Any]:
        value: dict[str, Any] = finite(msgspec.to_builtins(self))
        if not self.machines:
            del value["machines"]
        for row in value["artifacts"]:
            for series in ("calls_ms", "gpu_memory_rounds_bytes"):
                if not row[series]:  # not stored, or no GPU
                    del row[series]
        return value


class BenchInterrupted(KeyboardInterrupt):
    """Ctrl-C ended the measurement; `results` holds the figures until then and is written already."""

    def __init__(self, results: Results) -> None:
        super().__init__("interrupted")
        self.results = results


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def save_results(results: Results, path: Path) -> None:
    write_json(path, results.as_json())


def load_results(path: Path) -> Results:
    return parse_results(require_file(path, what="results").read_bytes(), path)


def parse_results(content: bytes, path: Path) -> Results:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise _not_results(path, problem) from error
    kind, version = kind_and_version(value)
    if kind != KIND or version != SCHEMA_VERSION:
        raise ArtifactError(
            f"{path}: not a results file: {kind or 'a file of no kind'} of version {version}; "
            f"{KIND} of version {SCHEMA_VERSION} is required",
            hint="measure again" if kind == KIND else "",
            file=path,
        )
    if _depth(value) > _DEEPEST:
        raise _not_results(path, f"nested more than {_DEEPEST} deep")
    try:
        return read_results(value)
    except UnicodeError as error:  # a key with a lone surrogate, in the message about it
        raise _not_results(path, str(error)) from error
    except ValueError as error:
        problem = _KEY.sub(r"key '\g<key>': \g<text>", str(error))
        raise _not_results(path, problem) from error


def _not_results(path: Path, problem: str) -> ArtifactError:
    return ArtifactError(f"{path}: not a results file ({problem})", hint="measure again", file=path)


def read_results(value: Mapping[str, Any]) -> Results:
    if isinstance(entries := value.get("artifacts"), list):
        value = {**value, "artifacts": [without_nulls(entry) for entry in entries]}
    msgspec.convert(value, _Typed)
    return msgspec.convert(value, Results)


class Noise(Struct):
    """Disturbances of the run, each with a remedy."""

    noisy: bool = False
    reasons: tuple[str, ...] = ()


class Environment(Struct):
    """Machine and versions of the run. Keys without a type here are preserved.

    Attributes:
        processor: Name of the processor.
        architecture: Result of `platform.machine`.
        features: Its instruction sets that accelerate inference.
        cores_usable: Cores that the process may use.
        gpu: Name of the GPU; null without a GPU.
        packages: Package to version.
        before, after: Load, clocks and temperatures at the beginning and at the end.
        noise: Other load on the machine during the run.
    """

    processor: str | None = None
    architecture: str | None = None
    features: tuple[str, ...] | None = None
    cores_usable: int | None = None
    gpu: str | None = None
    packages: dict[str, str] = {}
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    noise: Noise | None = None


class Settings(Struct):
    """Options of the run. Keys without a type here are preserved.

    Attributes:
        threads: Threads of every artifact.
        inputs: Input to shape.
        batch_size: Samples per call.
        data: Samples, of which the first batch is timed, or "made input".
        evaluation: Labelled samples of the accuracy.
        metric: The chosen metric of accuracy.
        metric_note: The reason of `auto` for its choice, or the form of the outputs.
        confidence: Level of the speed-ups' intervals, such as 0.99.
        command: Words that repeat the run.
        recipe: Text of the recipe of the run.
    """

    threads: int | None = None
    inputs: dict[str, str] | None = None
    batch_size: int | None = None
    data: str | None = None
    evaluation: str | None = None
    metric: str | None = None
    metric_note: str | None = None
    confidence: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    command: tuple[str, ...] | None = None
    recipe: str | None = None


class Run(Struct):
    """An earlier run: when, where, and the figures of each artifact."""

    created: str = ""
    machine: str = ""
    artifacts: dict[str, dict[str, float | None]] = {}


class _Machine(Struct):
    environment: Environment


class _Typed(Struct):
    """The parts that `Results` holds as plain dictionaries, with types."""

    settings: Settings
    environment: Environment
    history: list[Run] = []
    machines: dict[str, _Machine] = {}


def kind_and_version(value: object) -> tuple[str, int]:
    """Return the `kind` and `schema_version` of decoded JSON; "" and 0 if it has none."""
    kind, version = (value.get("kind"), value.get("schema_version")) if isinstance(value, dict) else ("", 0)
    return kind if isinstance(kind, str) else "", version if type(version) is int else 0


def earlier_runs(path: str | Path | None) -> list[dict[str, Any]]:
    """Return the history of a results file plus a summary of its run; empty for other files."""
    if path is None or not Path(path).is_file():
        return []
    try:
        previous = load_results(Path(path))
    except ArtifactError:
        return []  # the new results replace it anyway
    return [*previous.history, _summary(previous)][-HISTORY_LIMIT:]


def _summary(results: Results) -> dict[str, Any]:
    """Return the history entry of a run: time, machine, and the figures of each measured artifact."""
    return {
        "created": results.created,
        "machine": machine_text(results.environment),
        "artifacts": {row.name: _figures(row) for row in results.rows if row.status == "measured"},
    }


def _figures(row: Row) -> dict[str, Any]:
    ratio = row.speedup
    return {
        "median_ms": row.latency and row.latency.median_ms,
        "speedup": ratio and ratio.value, "low": ratio and ratio.low, "high": ratio and ratio.high,
        "accuracy": row.accuracy and row.accuracy.value,
    }  # fmt: skip


def _depth(value: object) -> int:
    """Return the nesting depth of tables and lists, to `_DEEPEST` + 1: the printing of a file recurses."""
    depth, level = 0, [value]
    while level and depth <= _DEEPEST:
        inner: list[object] = []
        for outer in level:
            items = outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ()
            inner += [item for item in items if isinstance(item, dict | list)]
        depth, level = depth + 1, inner
    return depth


# Join results of several machines, or of several GPUs of one: each row is compared on its machine.
#
# results.cpu.json   pytorch, int8                      results.json   pytorch, int8
# results.sm90.json  pytorch, engine             ─▶                    pytorch (sm90), engine


def join_results(parts: Mapping[str, Results], *, history: Sequence[dict[str, Any]] = ()) -> Results:
    """Return the joined results of several measurements, by machine, such as "sm90" or "cuda:1".

    The first part provides settings and environment, and names its rows. If another part has a row of the
    same name, the machine is appended to it: every machine measures the baseline.
    """
    (first_name, first), *_ = parts.items()
    if len(parts) == 1:
        return replace(first, history=[*history])
    rows, machines = list[Row](), dict[str, Measured]()
    for part_name, results in parts.items():
        used_names = {row.name for row in rows}
        names = {row.name: _unique_name(row.name, part_name, used_names) for row in results.rows}
        single_machine = {"": Measured(results.baseline, results.environment)}
        for inner, measured in (results.machines or single_machine).items():
            machines[_machine_name(part_name, inner)] = replace(measured, baseline=names[measured.baseline])
        rows += [
            replace(row, name=names[row.name], machine=_machine_name(part_name, row.machine))
            for row in results.rows
        ]
    noise = {name: results.environment.get("noise") or {} for name, results in parts.items()}
    noisy = any(part.get("noisy") for part in noise.values())
    reasons = [f"{name}: {reason}" for name, part in noise.items() for reason in part.get("reasons", ())]
    return replace(
        first,
        baseline=machines[_machine_name(first_name, next(iter(first.machines), ""))].baseline,
        rows=rows,
        machines=machines,
        history=[*history],
        created=max(part.created for part in parts.values()),
        interrupted=any(part.interrupted for part in parts.values()),
        environment={**first.environment, "noise": {"noisy": noisy, "reasons": reasons}},
    )


def _machine_name(part: str, machine: str) -> str:
    return f"{part} {machine}".rstrip()


def _unique_name(name: str, machine: str, used_names: set[str]) -> str:
    while name in used_names:
        name = f"{name} ({machine})"
    return name
