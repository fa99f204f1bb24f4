"""The types of a results file of any version: what is read is checked against them first.

A figure may be null or NaN, which counts as not measured. Unknown keys are
ignored: they are another version's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..statistics.speedup import Verdict
from .row import Status

Figure = float | None
Texts = dict[str, str]
KIND = "qcompile.results"
READABLE = (1, 2)
_DEEPEST = 64


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the file; every key may be missing in an older one."""


class Noise(_Part, frozen=True, kw_only=True):
    """What disturbed the run."""

    noisy: bool = False
    reasons: tuple[str, ...] = ()


class Environment(_Part, frozen=True, kw_only=True):
    """What it ran on; most of it is shown as it is."""

    processor: str | None = None
    architecture: str | None = None
    features: tuple[str, ...] | None = None
    cores_usable: int | None = None
    gpu: str | None = None
    packages: Texts = {}
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    noise: Noise | None = None


class Settings(_Part, frozen=True, kw_only=True):
    """What was asked for."""

    threads: int | None = None
    inputs: Texts | None = None
    batch_size: int | None = None
    data: str | None = None
    evaluation: str | None = None
    metric: str | None = None
    metric_note: str | None = None
    confidence: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    command: tuple[str, ...] | None = None
    recipe: str | None = None


class Speedup(_Part, frozen=True, kw_only=True):
    """Against the baseline."""

    value: Figure = None
    low: Figure = None
    high: Figure = None
    rounds: Figure = None
    verdict: Verdict | None = None
    correlation_rounds: Figure = None
    launches: Figure = None


class ClassChange(_Part, frozen=True, kw_only=True):
    """Accuracy of one class."""

    label: Figure = None
    baseline: Figure = None
    value: Figure = None
    samples: Figure = None


class Accuracy(_Part, frozen=True, kw_only=True):
    """What a metric says."""

    metric: str
    value: Figure = None
    drop_points: Figure = None
    low: Figure = None
    high: Figure = None
    samples: Figure = None
    agreement: Figure = None
    per_class: tuple[ClassChange, ...] | None = None
    higher_is_better: bool = True


class Difference(_Part, frozen=True, kw_only=True):
    """Of the outputs."""

    output: str = ""
    snr_db: Figure = None
    state: Literal["equal", "finite", "not finite"] | None = None
    max_abs_error: Figure = None
    mean_abs_error: Figure = None
    agreement: Figure = None
    passed: bool = False
    criterion: str = ""


class Energy(_Part, frozen=True, kw_only=True):
    """Energy, or why there is none."""

    mj_per_sample: Figure = None
    source: str = ""
    unavailable: str = ""


class WarmUp(_Part, frozen=True, kw_only=True):
    """Calls that do not count."""

    calls: Figure = None
    seconds: Figure = None
    stable: bool = False


Curve = tuple[dict[str, Figure], ...] | None
Figures = dict[str, Figure] | None


class Artifact(_Part, frozen=True, kw_only=True):
    """A row."""

    name: str
    engine: str
    artifact: str
    precision: str | None = None
    runs_on: str | None = None
    mode: str | None = None
    device: str | None = None
    interpreter: str | None = None
    machine: str | None = None
    status: Status = "measured"
    reason: str | None = None
    output_tail: str | None = None
    contains: str | None = None
    size_bytes: Figure = None
    size_ratio: Figure = None
    parameters: Figure = None
    weights_bytes: Figure = None
    latency_ms: Figures = None
    latency_quantiles_ms: tuple[Figure, ...] | None = None
    throughput_per_s: Figure = None
    speedup: Speedup | None = None
    accuracy: Accuracy | None = None
    difference: Difference | None = None
    load_ms: Figure = None
    peak_memory_bytes: Figure = None
    gpu_memory_bytes: Figure = None
    memory_ratio: Figure = None
    energy: Energy | None = None
    gpu_latency_ms: Figures = None
    warm_up: WarmUp | None = None
    cold_start_ms: Figures = None
    batches: Curve = None
    concurrency: Curve = None
    in_flight: Curve = None
    packages: Texts | None = None
    layers_by_precision: dict[str, Any] | None = None
    layer_times_ms: Figures = None
    round_medians_ms: tuple[Annotated[float, Meta(gt=0, le=1e300)], ...] = ()
    launch_rounds: tuple[Annotated[int, Meta(ge=0, le=1 << 31)], ...] = ()
    warnings: tuple[str, ...] | None = None


class Run(_Part, frozen=True, kw_only=True):
    """An earlier run that was written to the same file."""

    created: str = ""
    machine: str = ""
    artifacts: dict[str, dict[str, Figure]] = {}


class Measured(_Part, frozen=True, kw_only=True):
    """One machine of several."""

    baseline: str
    environment: Environment


class ResultsFile(_Part, frozen=True, kw_only=True):
    """The whole file."""

    baseline: str
    settings: Settings
    environment: Environment
    artifacts: tuple[Artifact, ...]
    created: str = ""
    interrupted: bool = False
    history: tuple[Run, ...] = ()
    machines: dict[str, Measured] = {}


def kind_and_version(value: object) -> tuple[str, int]:
    """Return what a file of ours says that it is: "" and 0 where it does not."""
    kind, version = (value.get("kind"), value.get("schema_version")) if isinstance(value, dict) else ("", 0)
    return kind if isinstance(kind, str) else "", version if type(version) is int else 0


def problem_of(value: object) -> str:
    """Return what in a file has the wrong type, by its key; empty where nothing has."""
    if _depth(value) > _DEEPEST:
        return f"nested more than {_DEEPEST} deep"
    try:
        msgspec.convert(value, ResultsFile)
    except msgspec.ValidationError as error:
        text, _, place = str(error).rpartition(" - at `$")
        return f"key '{place.rstrip('`').lstrip('.')}': {text}" if text and place != "`" else str(error)
    except UnicodeError as error:  # in a message about a key that no file can hold
        return str(error)
    return ""


def _depth(value: object) -> int:
    """How many tables and lists lie in each other: what shows a file goes down by calling itself."""
    depth, level = 0, [value]
    while level and depth <= _DEEPEST:
        inner: list[object] = []
        for one in level:
            items = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
            inner += [item for item in items if isinstance(item, dict | list)]
        depth, level = depth + 1, inner
    return depth
