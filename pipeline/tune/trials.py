"""Trials of `tune`: quantize, build and score a candidate, here or elsewhere, and measure its latency here.

TrialSetting ─▶ TrialMaker ── TrialAsk ─▶ files and Score
             └▶ Elsewhere  ── TrialAsk ─▶ files and Score, several at a time
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ...bench.benchmark import benchmark
from ...bench.measure.artifacts import pair_outputs
from ...bench.metrics.accuracy import ScoreSums, accuracy, read_metric
from ...bench.metrics.metric import LABELS_HINT, Metric, Outputs, Scored, Truth
from ...building.build import request_for
from ...building.lower import lower
from ...calibration import Ranges, load_ranges, parse_method
from ...compiler.quantize.sensitivity import LayerSensitivity, rank_layers
from ...core.artifact import size_bytes
from ...core.files.write import link_or_copy
from ...core.progress import Progress, silent
from ...data.batches import Data
from ...data.readers import Batch
from ...engines.build import build_engine
from ...engines.registry import engine
from ...errors import DataError, QCompileError
from ...model.graph.graph import model_io
from ...model.graph.graph_rules import graph_target
from ...model.graph.onnx_file import read_graph
from ...spec.artifacts import BuildSpec
from ...spec.decode import parse_spec
from ...spec.tensors import Feeds
from ...spec.words import FloatPrecision, Isa, Target

_RANKING_SAMPLES = 8  # number of samples that rank the layers


@dataclass(frozen=True)
class TrialSetting:
    """Common inputs of the trials of one tuning: float model, its ranges, and at most `samples` of the data.

    `method` None selects the method of the ranges. `exclude` are patterns of nodes that remain in floating
    point. `threads` applies to every artifact; 0 means every core. `isa` is the instruction set that INT8
    targets on every machine. The confidence of the drops' intervals covers `candidates` trials together.
    """

    model: Path
    ranges: Path
    data: str
    metric: str
    samples: int | None = None
    method: str | None = None
    exclude: tuple[str, ...] = ()
    threads: int = 0
    isa: Isa = "auto"
    candidates: int = 1


@dataclass(frozen=True)
class TrialRequest:
    """One trial: "fp32", "bf16" or "int8" for a target, and the name of its files.

    For INT8, the layers `in_float` remain in floating point and compute in `float_precision`.
    """

    name: str
    target: Target
    precision: str
    in_float: frozenset[str] = frozenset()
    float_precision: FloatPrecision = "fp32"

    @property
    def file(self) -> str:
        return f"{self.name}{engine(self.target).suffix}"


class Score(msgspec.Struct, frozen=True):
    """Metric of an artifact, its drop against the float model with a paired interval, and a statement."""

    value: float
    drop: float
    low: float | None
    high: float | None
    statement: str = ""


class TrialExecutor(Protocol):
    """Makes trials and ranks layers elsewhere, up to `parallel` at a time, each call in a separate thread."""

    parallel: int

    def make(self, ask: TrialRequest) -> tuple[Score, Sequence[Path]]:
        """Make one trial; return its score and the paths of its files on this machine."""

    def rank(self, target: Target, part: int, parts: int) -> list[LayerSensitivity]:
        """Return `rank_part` for the part `part`, from 1 to `parts`."""

    def close(self) -> None:
        """Release the resources; no call follows."""


class TrialMaker:
    """Makes trials of one float model in this process; raises `DataError` for missing samples or labels."""

    def __init__(self, setting: TrialSetting, progress: Progress = silent) -> None:
        self.setting = setting
        io = read_graph(setting.model).io
        self.ranges: Ranges = load_ranges(setting.ranges)
        metric = read_metric(setting.metric).for_inputs(io.inputs)
        self.batches: list[Batch] = list(Data(setting.data, io.inputs, limit=setting.samples))
        if metric.needs_labels and any(batch.labels is None for batch in self.batches):
            raise DataError(
                f"{setting.data}: has no labels, and metric {metric.name} needs them",
                hint=f"{LABELS_HINT}; or give `metric` cosine",
            )
        self.samples = sum(batch.samples for batch in self.batches)
        if not self.batches:
            raise DataError(f"{setting.data}: holds no samples; accuracy needs at least one")
        progress("run the float model")
        with engine("onnxruntime").open(str(setting.model), threads=setting.threads) as runner:
            self.reference: list[Outputs] = [runner.infer(batch.feeds) for batch in self.batches]
        truths = [Truth(batch.labels, batch.samples, batch.where) for batch in self.batches]
        self.metric: Metric = metric.resolve(self.reference[0], truths[0])
        self.scored = [
            self.metric.score(outputs, outputs, truth)
            for truth, outputs in zip(truths, self.reference, strict=True)
        ]
        self._float = self._sums(self.scored)
        self.float_value = self._float.value()

    def make(self, ask: TrialRequest, folder: Path, progress: Progress = silent) -> Score:
        """Build an artifact in a folder and return its score."""
        spec, runtime = self._spec(ask), engine(ask.target)
        path, graph = folder / ask.file, folder / f"{ask.name}.graph.onnx"
        lowered = lower(self.setting.model, spec, runtime, graph, ranges=self.ranges)
        progress(f"build {ask.name}")
        request = request_for(runtime, self.setting.model, spec, lowered, path, silent)
        build_engine(runtime, replace(request, is_trial=True))
        progress(f"accuracy of {ask.name}")
        scored = []
        with runtime.open(str(path), threads=self.setting.threads) as runner:
            for batch, expected in zip(self.batches, self.reference, strict=True):
                outputs = pair_outputs(expected, runner.infer(batch.feeds))
                truth = Truth(batch.labels, batch.samples, batch.where)
                scored.append(self.metric.score(outputs, expected, truth))
        measured = accuracy(self._sums(scored), self._float, self.setting.candidates)
        assert measured.drop is not None, "the float model is the reference of every artifact"
        return Score(
            measured.value, measured.drop.value, measured.drop.low, measured.drop.high, measured.statement
        )

    def _spec(self, ask: TrialRequest) -> BuildSpec:
        """Return the build options of a trial; artifacts that miss their precision are measured, too."""
        setting = self.setting
        options: dict[str, Any] = {"target": ask.target, "precision": ask.precision, "isa": setting.isa}
        if ask.precision == "int8":
            options |= {
                "float_precision": ask.float_precision, "method": setting.method,
                "exclude": (*setting.exclude, *sorted(ask.in_float)), "correct_bias": False,
            }  # fmt: skip
        return parse_spec(BuildSpec, {**options, "threads": setting.threads, "allow_fallback": True})

    def _sums(self, scored: Sequence[Scored]) -> ScoreSums:
        sums = ScoreSums(self.metric)
        for batch, scores, reference in zip(self.batches, scored, self.scored, strict=True):
            sums.add(scores, reference, batch.samples)
        return sums


def rank_part(
    setting: TrialSetting, target: Target, part: int = 1, parts: int = 1, *, progress: Progress = silent
) -> list[LayerSensitivity]:
    """Return the damage of the layers in one part of the graph, by default in all parts, worst first."""
    model = read_graph(setting.model).load()
    io = model_io(model)
    fixed = [tensor.shape[0] for tensor in io.inputs if tensor.shape and isinstance(tensor.shape[0], int)]
    limit = max([_RANKING_SAMPLES, *fixed])  # at least one batch of a fixed batch size
    return rank_layers(
        model,
        graph_target(target),
        load_ranges(setting.ranges),
        Data(setting.data, io.inputs, batch_size=1, limit=limit, is_spread=True),
        method=parse_method(setting.method) if setting.method else None,
        exclude=setting.exclude,
        part=(part, parts),
        progress=progress,
    )


@dataclass
class Trial:
    """One measured artifact, with the fields of its `TrialRequest`.

    `value` is the metric, a share for metrics in points. `drop` is the loss against the float model, with a
    paired interval (None with too few samples) and the evidence in words, `statement`. `latency_ms` is the
    median, 0 before the measurement; `speedup` is relative to the FP32 trial of the first target.
    """

    name: str
    target: Target
    precision: str
    in_float: frozenset[str]
    path: Path
    value: float
    drop: float
    float_precision: FloatPrecision = "fp32"
    drop_low: float | None = None
    drop_high: float | None = None
    statement: str = ""
    latency_ms: float = 0.0
    speedup: dict[str, Any] = field(default_factory=dict)
    size_bytes: int = 0

    def as_json(self) -> dict[str, Any]:
        values = {**vars(self), "in_float": sorted(self.in_float), "file": str(self.path)}
        del values["path"]
        return values


class TrialRunner:
    """Makes and records the trials of one float model in one folder, several at a time with `elsewhere`."""

    def __init__(
        self, maker: TrialMaker, folder: Path, progress: Progress, elsewhere: TrialExecutor | None = None
    ) -> None:
        self.maker, self.folder, self.progress, self.elsewhere = maker, folder, progress, elsewhere
        self.trials: dict[str, Trial] = {}
        self._started: dict[TrialRequest, Future[tuple[Score, Sequence[Path]]]] = {}
        self._rankings: dict[Target, list[Future[list[LayerSensitivity]]]] = {}
        self._threads = ThreadPoolExecutor(self.parallel, "qcompile-tune") if elsewhere else None

    @property
    def parallel(self) -> int:
        return max(1, self.elsewhere.parallel) if self.elsewhere else 1

    def in_float(self, target: Target, precision: FloatPrecision) -> Trial:
        """Return the trial of the float model for a target."""
        return self._trial(TrialRequest(f"{target}-{precision}", target, precision))

    def int8(
        self,
        target: Target,
        in_float: frozenset[str] = frozenset(),
        *,
        float_precision: FloatPrecision = "fp32",
    ) -> Trial:
        """Return the INT8 trial with these float layers in `float_precision`; a trial is made only once."""
        int8 = [
            trial for trial in self.trials.values() if (trial.target, trial.precision) == (target, "int8")
        ]
        for trial in int8:
            if (trial.in_float, trial.float_precision) == (in_float, float_precision):
                return trial
        mix = f"-mix{len(int8)}" if in_float else ""
        name = f"{target}-int8{mix}" + f"-{float_precision}" * (float_precision != "fp32")
        layers = f": {len(in_float)} layers in float" if in_float else ""
        self.progress(f"quantize {name}{layers}")
        return self._trial(TrialRequest(name, target, "int8", in_float, float_precision))

    def begin(self, targets: Sequence[Target]) -> None:
        """With `elsewhere`, start the work of every tuning: the rankings and the first trials."""
        if self._threads is None or self.elsewhere is None:
            return
        for target in targets:
            rank, parts = self.elsewhere.rank, self.parallel
            futures = [self._threads.submit(rank, target, part, parts) for part in range(1, parts + 1)]
            self._rankings[target] = futures
            for precision in (*engine(target).tuned_floats, "int8"):
                ask = TrialRequest(f"{target}-{precision}", target, precision)
                self._started[ask] = self._threads.submit(self.elsewhere.make, ask)

    def rank(self, target: Target) -> list[LayerSensitivity]:
        """Return the damage of every layer that would be quantized, the most damaging first."""
        parts = self._rankings.pop(target, None)
        if parts is None:
            return rank_part(self.maker.setting, target, progress=self.progress)
        self.progress("damage of each layer")
        # The parts are in graph order, and the sort is stable: of equal damage, the earlier layer is first.
        return sorted((layer for part in parts for layer in part.result()), key=lambda layer: -layer.noise)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self.elsewhere is not None:
            self.elsewhere.close()

    def time(self, trials: Sequence[Trial], *, batch_size: int | None, max_time_s: float) -> None:
        """Measure the latency of trials in interleaved rounds, against the FP32 trial of the first target."""
        wait([future for future in self._started.values() if not future.cancel()])  # unused trials
        self._started.clear()
        base = next(trial for trial in trials if trial.precision == "fp32")
        results = benchmark(
            {trial.name: str(trial.path) for trial in trials},
            baseline=base.name,
            data=self.maker.setting.data,
            batch_size=batch_size,
            threads=self.maker.setting.threads,
            max_time_s=max_time_s,
            progress=self.progress,
        )
        for trial in trials:
            row = results.row(trial.name)
            if row.latency is None:
                raise QCompileError(f"{trial.name}: could not be measured: {row.reason}")
            trial.latency_ms, ratio = row.latency.median_ms, row.speedup
            trial.speedup = {"value": 1.0, "low": 1.0, "high": 1.0, "verdict": "the baseline"}
            if ratio:
                trial.speedup = {name: getattr(ratio, name) for name in trial.speedup}

    def _trial(self, ask: TrialRequest) -> Trial:
        path = self.folder / ask.file
        if self.elsewhere is None:
            score = self.maker.make(ask, self.folder, self.progress)
        else:
            future = self._started.pop(ask, None)
            score, paths = self.elsewhere.make(ask) if future is None else future.result()
            files = sorted(paths, key=lambda file: file.suffix == ".json")  # manifests last
            for file in reversed(files):  # manifests first, so that none describes a file of another tuning
                (self.folder / file.name).unlink(missing_ok=True)
            for file in files:
                link_or_copy(file, self.folder / file.name)
        trial = Trial(
            ask.name, ask.target, ask.precision, ask.in_float, path, score.value, score.drop,
            ask.float_precision, score.low, score.high, score.statement, size_bytes=size_bytes(path),
        )  # fmt: skip
        self.trials[ask.name] = trial
        return trial


def slower_layers(
    int8: Trial, in_float: Trial, layers: Sequence[str], feeds: Feeds, threads: int
) -> list[str]:
    """Return the layers with slower kernels in INT8 than in floating point, the largest loss first."""
    times = [
        by_layer(engine(trial.target).kernel_times(str(trial.path), feeds, threads=threads), layers)
        for trial in (int8, in_float)
    ]
    return slower_in_int8(*times)


def slower_in_int8(int8_ms: Mapping[str, float], float_ms: Mapping[str, float]) -> list[str]:
    """Return the names in both mappings with a longer INT8 time, the largest difference first."""
    losses_ms = {name: int8_ms[name] - time_ms for name, time_ms in float_ms.items() if name in int8_ms}
    return sorted((name for name, loss in losses_ms.items() if loss > 0), key=lambda name: -losses_ms[name])


def by_layer(kernels_ms: Mapping[str, float], layers: Sequence[str]) -> dict[str, float]:
    """Return the kernel time of each layer; a kernel belongs to the longest layer name at its beginning."""
    times: dict[str, float] = {}
    longest_first = sorted(layers, key=len, reverse=True)
    for kernel, time_ms in kernels_ms.items():
        layer = next((name for name in longest_first if kernel.startswith(name)), None)
        if layer is not None:
            times[layer] = times.get(layer, 0.0) + time_ms
    return times
