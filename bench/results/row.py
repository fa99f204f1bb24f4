"""The measurements of one artifact: `Row` is the `artifacts` entry of `results.json`, key for key.

In the file a group's key contains the unit (`latency_ms.median`), in the types each figure's name
(`latency.median_ms`). A figure that was not measured is None.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import force_setattr

from ...spec.words import METRICS, is_user_metric
from .statistics import Positive, Speedup

Status = Literal["measured", "not run", "failed"]
Unit = Literal["points", "units"]
Curve = Literal["batches", "concurrency", "in_flight"]
State = Literal["equal", "finite", "not finite"]
Whole = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Count = Annotated[int, Meta(ge=1)]

_IN_OWN_UNITS = ("perplexity", "kl", "mse")


def unit_of(metric: str) -> Unit:
    """Return the unit of a metric's drop: "points" for values within -1 and 1, "units" for other metrics."""
    name = metric.partition(":")[0]
    is_share = name in METRICS and name not in _IN_OWN_UNITS and not is_user_metric(metric)
    return "points" if is_share else "units"


def _without_unit(name: str) -> str:
    return name.removesuffix("_ms")


class Latency(Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_without_unit):
    """The latency of a call, over every timed call.

    Attributes:
        min_ms, median_ms, p90_ms, p99_ms, max_ms: Percentiles.
        calls: Number of timed calls.
    """

    min_ms: Positive | None = None
    median_ms: Positive
    p90_ms: Positive | None = None
    p99_ms: Positive | None = None
    max_ms: Positive | None = None
    calls: Whole | None = None


class GpuLatency(Struct, frozen=True, rename=_without_unit):
    """Medians by the GPU's clock, and the host's time to enqueue."""

    compute_ms: float
    with_transfers_ms: float
    enqueue_ms: float


class WarmUp(Struct, frozen=True):
    """How an artifact warmed up.

    Attributes:
        calls: Calls before the timed ones, which do not count.
        seconds: Duration of these calls.
        stable: Whether the latency had stopped changing; False if the limit came first.
    """

    calls: Whole
    seconds: float
    stable: bool


class ColdStart(Struct, frozen=True, rename=_without_unit):
    """Times from a new process to its first result; files may be in the system's cache."""

    process_ms: float
    load_ms: float
    first_result_ms: float
    total_ms: float = 0.0

    def __post_init__(self) -> None:
        total_ms = self.process_ms + self.load_ms + self.first_result_ms
        force_setattr(self, "total_ms", total_ms)


class Interval(Struct, frozen=True):
    """A value and the ends of its interval; the ends are None with too few samples."""

    value: float
    low: float | None = None
    high: float | None = None


class ClassChange(Struct, frozen=True):
    """The metric of one class: the baseline's, the artifact's, and the samples in which the class occurs."""

    label: Whole
    baseline: float
    value: float
    samples: Whole


class Accuracy(Struct, frozen=True):
    """The metric over the evaluation data, against the baseline.

    Attributes:
        metric: Name of the metric, see `metrics.names`; the chosen one with `auto`.
        value: The artifact's value: a share for metrics in points, the metric's unit otherwise.
        drop_points: Loss against the baseline, in `unit`; negative if the artifact is better.
        low, high: Ends of the drop's interval; null with too few samples.
        samples: Number of evaluated samples.
        agreement: Share of predictions equal to the baseline's; null without predictions.
        per_class: The classes that changed most.
        higher_is_better: Whether a larger value is better.
        agreement_low: Lower bound of `agreement`; null if a sample has several predictions.
        units, changed: Scored samples (batches if only these have a score), and those with another score.
        lost, gained: Samples that became wrong, and right; null if no answer is right or wrong.
        candidates: Artifacts judged on the samples; all their intervals together have the confidence.
        statement: Evidence of the samples, in words.
        suspicion: Of the baseline: why the labels or the preprocessing look wrong; empty if they do not.
    """

    metric: str
    value: float
    drop_points: float | UnsetType = UNSET
    low: float | UnsetType | None = UNSET
    high: float | UnsetType | None = UNSET
    samples: Whole | None = None
    agreement: float | None = None
    per_class: tuple[ClassChange, ...] | None = None
    higher_is_better: bool = True
    agreement_low: float | None = None
    units: Whole | None = None
    changed: Whole | None = None
    lost: Whole | None = None
    gained: Whole | None = None
    candidates: Count = 1
    statement: str = ""
    suspicion: str = ""

    def __post_init__(self) -> None:
        ends = UNSET if self.drop_points is UNSET else None
        for name in ("low", "high"):
            if getattr(self, name) in (None, UNSET):
                force_setattr(self, name, ends)

    @property
    def drop(self) -> Interval | None:
        if self.drop_points is UNSET:
            return None
        return Interval(self.drop_points, *(None if end is UNSET else end for end in (self.low, self.high)))

    @property
    def unit(self) -> Unit:
        return unit_of(self.metric)


class Difference(Struct, frozen=True, kw_only=True):
    """The difference of the outputs from the baseline's, of the worst output.

    Infinite figures are null in the file; `state` distinguishes the two infinities of the ratio.

    Attributes:
        output: Name of the worst output.
        snr_db: Its signal-to-noise ratio: `inf` for equal outputs, `-inf` for an infinite error, other
            shapes or a zero reference; None if not in the file.
        state: "equal" for an `snr_db` of `inf`, "not finite" for `-inf`.
        max_abs_error: Its largest error, possibly `inf`; None if not in the file.
        mean_abs_error: Its mean absolute error; infinite and missing as `max_abs_error`.
        agreement: Share of rows with the same argmax; None if the output holds no classes.
        passed: Whether every output passed.
        criterion: Requirement, in words.
        mismatch: Outputs that are missing or differ in shape or type; data-dependent extents may differ.
    """

    output: str = ""
    snr_db: float | None = None
    state: State | UnsetType = UNSET
    max_abs_error: float | UnsetType | None = None
    mean_abs_error: float | UnsetType | None = UNSET
    agreement: float | None = None
    passed: bool
    criterion: str = ""
    mismatch: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.snr_db is not None:
            force_setattr(self, "state", state_of(self.snr_db))
        elif self.state is not UNSET:
            force_setattr(self, "snr_db", math.inf if self.state == "equal" else -math.inf)
        for name, unknown in (
            ("max_abs_error", UNSET if self.state is UNSET else None),
            ("mean_abs_error", UNSET),
        ):
            if getattr(self, name) is None:
                force_setattr(self, name, math.inf if self.state == "not finite" else unknown)


def state_of(snr_db: float) -> State:
    """Return the class of a signal-to-noise ratio: JSON stores null for both infinities."""
    return "equal" if snr_db == math.inf else "finite" if snr_db > -math.inf else "not finite"


class Energy(Struct, frozen=True, omit_defaults=True):
    """Energy of an inference and its counter `source`, or the reason why it was not measured."""

    mj_per_sample: float | None = None
    source: str = ""
    unavailable: str = ""


class CurvePoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Latency and throughput at one batch size, number of clients, or number of inferences in flight."""

    batch_size: Count | None = None
    clients: Count | None = None
    streams: Count | None = None
    median_ms: Positive
    p90_ms: Positive | None = None
    p99_ms: Positive | None = None
    throughput_per_s: Positive

    @property
    def count(self) -> int:
        return self.batch_size or self.clients or self.streams or 0


class Row(Struct, frozen=True):
    """One artifact of a bench, in the order of the file.

    Attributes:
        name: Short and unique name.
        artifact: Path, or spelling of a MODEL.
        engine: Runtime that runs it.
        precision: Precision in its manifest; "fp32" for a MODEL, "unknown" on a server.
        runs_on: "CPU", "GPU", the GPUs it was built for, or its server.
        status: Whether it was measured; `reason` explains why not.
        size_bytes: File with its side files; None for a MODEL.
        throughput_per_s: Samples per second over every timed block.
        load_ms: Time to load it, including the import of the runtime.
        peak_memory_bytes: Largest resident memory of the worker until the timing ended.
        contains: Steps within a latency, such as "host to host".
        speedup: Speed-up over the baseline; None for the baseline itself.
        round_medians_ms: The median latency of each round, in the order of measuring.
        launch_rounds: Number of rounds in each launch.
        warnings: Warnings for the user.
        mode: Mode of PyTorch for a MODEL: eager, or one of `words.TORCH_MODES`; cuda-graph for an engine of
            TensorRT.
        device: "cpu", or the GPU it ran on as "cuda:0".
        interpreter: Python that ran it, if another one.
        packages: Versions of the packages that the worker had loaded.
        latency_quantiles_ms: 0%, 1%, ... 100% of the calls; empty if not stored.
        calls_ms: The calls in the order of measuring, each one batch; every n-th beyond `MOST_CALLS`.
        gpu_memory_bytes: GPU memory of the worker; `gpu_memory_rounds_bytes` after each round.
        batches, concurrency, in_flight: Curves over batch sizes, numbers of clients, and numbers of
            inferences in flight.
        size_ratio: How many times smaller `held_bytes` are than the baseline's, or than the first float file.
        layers_by_precision: Layers from the verification in the manifest.
        output_tail: Last output of a worker that failed.
        parameters: Number of weight values, without scales and zero points; None if unknown.
        weights_bytes: Size of the weights, with scales and buffers; None if unknown.
        memory_ratio: How many times smaller its peak memory is than the baseline's.
        machine: Key of `Results.machines`, in results of several machines.
        layer_times_ms: Layer to its median time, by its runtime's profiler; empty if not measured.
    """

    name: str
    artifact: str
    engine: str
    precision: str = "fp32"
    runs_on: str = "CPU"
    status: Status = "measured"
    reason: str = ""
    size_bytes: Whole | None = None
    latency: Latency | None = field(default=None, name="latency_ms")
    throughput_per_s: Positive | None = None
    load_ms: float | None = None
    peak_memory_bytes: Whole | None = None
    contains: str = ""
    speedup: Speedup | None = None
    accuracy: Accuracy | None = None
    difference: Difference | None = None
    round_medians_ms: tuple[Positive, ...] = ()
    launch_rounds: tuple[Annotated[int, Meta(ge=0, le=1 << 31)], ...] = ()
    warnings: tuple[str, ...] = ()
    mode: str = "eager"
    device: str = "cpu"
    interpreter: str = ""
    packages: Mapping[str, str] = {}
    latency_quantiles_ms: tuple[Positive, ...] = ()
    calls_ms: tuple[Positive, ...] = ()
    gpu_latency: GpuLatency | None = field(default=None, name="gpu_latency_ms")
    warm_up: WarmUp | None = None
    cold_start: ColdStart | None = field(default=None, name="cold_start_ms")
    gpu_memory_bytes: Whole | None = None
    gpu_memory_rounds_bytes: tuple[Whole, ...] = ()
    energy: Energy | None = None
    batches: tuple[CurvePoint, ...] = ()
    concurrency: tuple[CurvePoint, ...] = ()
    in_flight: tuple[CurvePoint, ...] = ()
    size_ratio: Positive | None = None
    layers_by_precision: Mapping[str, Any] | None = None
    output_tail: str = ""
    parameters: Whole | None = None
    weights_bytes: Whole | None = None
    memory_ratio: Positive | None = None
    machine: str = ""
    layer_times_ms: Mapping[str, Positive] = {}

    def __post_init__(self) -> None:
        rounds = len(self.round_medians_ms)
        if sum(self.launch_rounds) != rounds:
            force_setattr(self, "launch_rounds", (rounds,) if rounds else ())

    @property
    def has_failed(self) -> bool:
        """Whether it failed, or its outputs do not match the baseline's in name, shape and type."""
        return self.status == "failed" or bool(self.difference and self.difference.mismatch)

    @property
    def held_bytes(self) -> int | None:
        """Size of its file; for a MODEL, which has no file, of its weights."""
        return self.size_bytes or self.weights_bytes

    @property
    def launches_ms(self) -> Sequence[Sequence[float]]:
        """The round medians by launch, as `speedup` takes them."""
        ends = itertools.accumulate(self.launch_rounds)
        return [self.round_medians_ms[end - n : end] for n, end in zip(self.launch_rounds, ends, strict=True)]


MOST_CALLS = 4096  # stored calls of an artifact
_GROUPS: Mapping[str, type[Struct]] = {
    "latency_ms": Latency, "gpu_latency_ms": GpuLatency, "warm_up": WarmUp, "cold_start_ms": ColdStart,
    "speedup": Speedup, "accuracy": Accuracy, "energy": Energy,
}  # fmt: skip


def without_nulls(entry: Any) -> Any:
    """Return an `artifacts` entry without the figures that were NaN or infinite: JSON holds null for them.

    A group without a required figure was not measured: it becomes None.
    """
    if not isinstance(entry, Mapping):
        return entry  # `msgspec.convert` rejects it
    return {key: _group(_GROUPS[key], value) if key in _GROUPS else value for key, value in entry.items()}


def _group(kind: type[Struct], table: Any) -> Any:
    if not isinstance(table, Mapping):
        return table  # None, or a value that `msgspec.convert` rejects
    figures = {
        name: value
        for name, value in table.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }
    if isinstance(classes := figures.get("per_class"), list):
        changes = (_group(ClassChange, change) for change in classes)
        figures["per_class"] = [change for change in changes if change is not None] or None
    required = {info.encode_name for info in msgspec.structs.fields(kind) if info.required}
    return figures if required <= figures.keys() else None
