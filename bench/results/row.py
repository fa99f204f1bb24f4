"""The measurements of one artifact: `Row` is the `artifacts` entry of `results.json`, key for key.

In the file the unit of a group stands at its key (`latency_ms.median`), in the types at each figure
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

from ...spec.words import METRICS, is_own_metric
from .statistics import Positive, Speedup

Status = Literal["measured", "not run", "failed"]
Unit = Literal["points", "units"]
Curve = Literal["batches", "concurrency", "in_flight"]
State = Literal["equal", "finite", "not finite"]
Whole = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Count = Annotated[int, Meta(ge=1)]

_IN_OWN_UNITS = ("perplexity", "kl", "mse")


def unit_of(metric: str) -> Unit:
    """Return what a metric's drop is counted in: "points" of a value within -1 and 1, or its own "units"."""
    name = metric.partition(":")[0]
    is_share = name in METRICS and name not in _IN_OWN_UNITS and not is_own_metric(metric)
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
        calls: Calls that were made and do not count.
        seconds: What they took.
        stable: Whether the latency had stopped changing; False where the limit came first.
    """

    calls: Whole
    seconds: float
    stable: bool


class ColdStart(Struct, frozen=True, rename=_without_unit):
    """From a new process to its first result; files may be in the system's cache."""

    process_ms: float
    load_ms: float
    first_result_ms: float
    total_ms: float = 0.0

    def __post_init__(self) -> None:
        total_ms = self.process_ms + self.load_ms + self.first_result_ms
        force_setattr(self, "total_ms", total_ms)


class Interval(Struct, frozen=True):
    """A value and the ends of its interval, which are None where there are too few samples for one."""

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
        metric: Its spelling, see `metrics.names`; the chosen one where it was to be chosen.
        value: Of the artifact: a share for metrics in points, the metric's own units otherwise.
        drop_points: How much worse it is than the baseline, in `unit`; negative where it is better.
        low, high: Ends of the drop's interval; null where there are too few samples for one.
        samples: How many were evaluated.
        agreement: Share of predictions that are the baseline's; null where nothing is predicted.
        per_class: The classes that changed most.
        higher_is_better: Whether more of the metric is better.
        agreement_low: Lower bound of `agreement`; null where a sample has several predictions.
        units, changed: Samples, or batches where only these have a value; those of another score.
        lost, gained: Samples that became wrong, and right; null where no answer is right or wrong.
        candidates: Artifacts judged on the samples, for which all intervals together have their confidence.
        statement: What the samples show, in words.
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

    Infinite figures are null in the file, and `state` says which infinity the ratio is.

    Attributes:
        output: Name of the worst.
        snr_db: Its signal-to-noise ratio: `inf` where the outputs are equal, `-inf` where an error is
            infinite, the shapes differ, or the reference is zero; None where the file does not say.
        state: Which infinity `snr_db` is, if any.
        max_abs_error: Its largest error; `inf` where one is infinite; None where the file does not say.
        mean_abs_error: Its mean absolute error; as `max_abs_error` where it is infinite or not known.
        agreement: Share of rows with the same argmax; None where the output is no classes.
        passed: Whether every output passed.
        criterion: What was required, in words.
        mismatch: Outputs of another shape or type, or that are missing; not of extents that values decide.
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
    """Return which infinity a signal-to-noise ratio is, if any: in JSON, null stands for both."""
    return "equal" if snr_db == math.inf else "finite" if snr_db > -math.inf else "not finite"


class Energy(Struct, frozen=True, omit_defaults=True):
    """Energy of an inference, and which counter `source` is; or why it was not measured."""

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
        artifact: Path or MODEL spelling.
        engine: What runs it.
        precision: Of its manifest; "fp32" for a MODEL, "unknown" on a server.
        runs_on: "CPU", "GPU", or the GPUs it was built for; the server that holds it.
        status: Whether it was measured; `reason` says why not.
        size_bytes: File with its side files; None for a MODEL.
        throughput_per_s: Samples per second over every timed block.
        load_ms: From nothing to a loaded artifact, importing the runtime included.
        peak_memory_bytes: Largest resident memory of the worker until the timing ended.
        contains: What a latency contains.
        speedup: Against the baseline; None for the baseline itself.
        round_medians_ms: The median latency of each round, in the order of measuring.
        launch_rounds: How many of these each process of the artifact has.
        warnings: What the user should know.
        mode: How PyTorch runs a MODEL: eager, or one of `words.TORCH_MODES`; or cuda-graph, of an engine of
            TensorRT.
        device: "cpu", or the GPU it ran on as "cuda:0".
        interpreter: Python that ran it, where that was another one.
        packages: Versions of what the worker had loaded.
        latency_quantiles_ms: 0%, 1%, ... 100% of the calls; empty where the file does not hold them.
        calls_ms: The calls in the order of measuring, each one batch; every n-th where there are more than
            `MOST_CALLS`.
        gpu_memory_bytes: What the worker has on the GPU; `gpu_memory_rounds_bytes` behind each round.
        batches, concurrency, in_flight: Curves over batch sizes, numbers of clients, and numbers of
            inferences in flight.
        size_ratio: How many times smaller `held_bytes` are than the baseline's, or than the first float file.
        layers_by_precision: From the manifest's proof.
        output_tail: Last output of a worker that failed.
        parameters: Values of its weights, without scales and zero points; None where that is not known.
        weights_bytes: What its weights take, with scales and buffers; None where that is not known.
        memory_ratio: How many times smaller its peak memory is than the baseline's.
        machine: Where it was measured, where there are several: `Results.machines`.
        layer_times_ms: Layer to its median time, by its runtime's profiler; empty where it was not measured.
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
        """Whether it failed, or has other outputs than the baseline."""
        return self.status == "failed" or bool(self.difference and self.difference.mismatch)

    @property
    def held_bytes(self) -> int | None:
        """Its size: of the file; of a MODEL, which has none, of the weights."""
        return self.size_bytes or self.weights_bytes

    @property
    def launches_ms(self) -> Sequence[Sequence[float]]:
        """The round medians of each launch, as `speedup` takes them."""
        ends = itertools.accumulate(self.launch_rounds)
        return [self.round_medians_ms[end - n : end] for n, end in zip(self.launch_rounds, ends, strict=True)]


MOST_CALLS = 4096  # that a file keeps of an artifact
_GROUPS: Mapping[str, type[Struct]] = {
    "latency_ms": Latency, "gpu_latency_ms": GpuLatency, "warm_up": WarmUp, "cold_start_ms": ColdStart,
    "speedup": Speedup, "accuracy": Accuracy, "energy": Energy,
}  # fmt: skip


def without_nulls(entry: Any) -> Any:
    """Return an `artifacts` entry without the figures that were NaN or infinite: JSON holds null for them.

    A group that lacks a figure that its type requires was not measured: it is None.
    """
    if not isinstance(entry, Mapping):
        return entry  # the types refuse it
    return {key: _group(_GROUPS[key], value) if key in _GROUPS else value for key, value in entry.items()}


def _group(kind: type[Struct], table: Any) -> Any:
    if not isinstance(table, Mapping):
        return table  # None, or what the types refuse
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
