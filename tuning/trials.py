"""Trials: each candidate is quantized and built, and its accuracy and latency are measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..artifact import size_bytes
from ..bench.benchmark import benchmark
from ..bench.metrics.accuracy import ScoreSums, accuracy
from ..bench.metrics.metric import Metric, Outputs, Scored, Truth
from ..bench.outputs import paired
from ..building import build_lowered
from ..calibration import Ranges
from ..data.readers import Batch
from ..engines.base import Runner
from ..engines.capabilities import capabilities
from ..engines.registry import engine
from ..errors import DataError, QCompileError
from ..lowering import lower
from ..progress import Progress
from ..spec.artifacts import BuildSpec
from ..spec.decode import given
from ..spec.words import FloatPrecision, Target


@dataclass
class Trial:
    """One artifact that was tried.

    Attributes:
        name: Unique; also that of its file.
        target: Name of the engine.
        precision: "fp32", "bf16" or "int8".
        in_float: Layers that were left in float, for INT8.
        float_precision: What they are computed in.
        path: The artifact.
        value: Of the metric: a share for metrics in points, the metric's own units otherwise.
        drop: What it lost against the float model, in the metric's unit.
        drop_low, drop_high: Ends of its paired interval; None with too few samples.
        latency_ms: Median; 0 until it is measured.
        speedup: Against the float model on the same runtime as the reference.
        size_bytes: Of the artifact.
    """

    name: str
    target: Target
    precision: str
    in_float: frozenset[str]
    path: Path
    value: float
    drop: float
    latency_ms: float = 0.0
    speedup: dict[str, Any] = field(default_factory=dict)
    size_bytes: int = 0
    float_precision: FloatPrecision = "fp32"
    drop_low: float | None = None
    drop_high: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the `--json` form."""
        return {
            "name": self.name,
            "target": self.target,
            "precision": self.precision,
            "in_float": sorted(self.in_float),
            "float_precision": self.float_precision,
            "file": str(self.path),
            "value": self.value,
            "drop": self.drop,
            "drop_low": self.drop_low,
            "drop_high": self.drop_high,
            "latency_ms": self.latency_ms,
            "speedup": self.speedup,
            "size_bytes": self.size_bytes,
        }


class TrialRunner:
    """Makes trials of one float model in one folder, and remembers them."""

    def __init__(
        self,
        model: Path,
        ranges: Ranges,
        batches: Sequence[Batch],
        metric: Metric,
        folder: Path,
        *,
        method: str | None,
        exclude: Sequence[str],
        threads: int,
        progress: Progress,
    ) -> None:
        self.model, self.ranges, self.batches, self.metric, self.folder = (
            model, ranges, batches, metric, folder,
        )  # fmt: skip
        self.method, self.exclude, self.threads, self.progress = method, tuple(exclude), threads, progress
        if metric.needs_labels and any(batch.labels is None for batch in batches):
            raise DataError(
                f"metric {metric.name} needs labels, and the data has none",
                hint="yield (inputs, labels), put `labels` beside the arrays, or give `metric` cosine",
            )
        if not batches:
            raise DataError("the data is empty; accuracy needs at least one sample")
        progress("run the float model")
        with engine("onnxruntime").open(str(model), threads=threads) as runner:
            self.reference: list[Outputs] = [runner.infer(batch.feeds) for batch in batches]
        truths = [Truth(batch.labels, batch.samples, batch.where) for batch in batches]
        self.metric = metric = metric.resolved(self.reference[0], truths[0])
        self.scored = [
            metric.score(outputs, outputs, truth)
            for truth, outputs in zip(truths, self.reference, strict=True)
        ]
        self._float = self._sums(self.scored)
        self.float_value = self._float.value()
        self.trials: dict[str, Trial] = {}

    def in_float(self, target: Target, precision: FloatPrecision) -> Trial:
        """The float model, built for a target."""
        return self._trial(f"{target}-{precision}", self._spec(target=target, precision=precision))

    def int8(
        self,
        target: Target,
        in_float: frozenset[str] = frozenset(),
        *,
        float_precision: FloatPrecision = "fp32",
    ) -> Trial:
        """INT8 for a target with some layers left in float, computed in `float_precision`; made once.

        Raises:
            QuantizationError: If nothing is left to quantize.
        """
        for known in self.trials.values():
            same = (known.target, known.precision, known.in_float, known.float_precision)
            if same == (target, "int8", in_float, float_precision):
                return known
        number = sum(trial.target == target and trial.precision == "int8" for trial in self.trials.values())
        name = (
            f"{target}-int8"
            + (f"-mix{number}" if in_float else "")
            + (f"-{float_precision}" * (float_precision != "fp32"))
        )
        self.progress(f"quantize {name}: {len(in_float)} layers in float" if in_float else f"quantize {name}")
        spec = self._spec(
            target=target, precision="int8", float_precision=float_precision, method=self.method,
            exclude=(*self.exclude, *sorted(in_float)), correct_bias=False,
        )  # fmt: skip
        return self._trial(name, spec, in_float)

    def time(self, trials: Sequence[Trial], *, data: str | None, batch_size: int | None, max_time_s: float,
             progress: Callable[..., None]) -> None:  # fmt: skip
        """Measure the latency of trials in interleaved rounds, against the float model on ONNX Runtime.

        Raises:
            QCompileError: If one of them fails.
        """
        base = next(trial for trial in trials if trial.precision == "fp32")
        results = benchmark(
            {trial.name: str(trial.path) for trial in trials},
            baseline=base.name,
            data=data,
            batch_size=batch_size,
            threads=self.threads,
            max_time_s=max_time_s,
            progress=progress,
        )
        for trial in trials:
            row = results.row(trial.name)
            if row.latency is None:
                raise QCompileError(f"{trial.name}: could not be measured: {row.reason}")
            trial.latency_ms, ratio = row.latency.median_ms, row.speedup
            trial.speedup = {
                "value": ratio.value if ratio else 1.0,
                "low": ratio.low if ratio else 1.0,
                "high": ratio.high if ratio else 1.0,
                "verdict": ratio.verdict if ratio else "the baseline",
            }

    def _spec(self, **options: Any) -> BuildSpec:
        """What a trial is; what an artifact is worth is measured, also of one that missed its precision."""
        return given(BuildSpec, {**options, "threads": self.threads, "allow_fallback": True})

    def _trial(self, name: str, spec: BuildSpec, in_float: frozenset[str] = frozenset()) -> Trial:
        chosen = engine(spec.target)
        path, graph = self.folder / f"{name}{chosen.suffix}", self.folder / f"{name}.graph.onnx"
        lowered = lower(self.model, spec, capabilities(chosen), graph, ranges=self.ranges)
        self.progress(f"build {name}")
        build_lowered(self.model, path, spec, lowered)
        self.progress(f"accuracy of {name}")
        found = accuracy(self._sums(self._score(chosen.open(str(path), threads=self.threads))), self._float)
        assert found.drop is not None, "every artifact is compared with the float model"
        trial = Trial(
            name, spec.target, spec.precision, in_float, path, found.value, found.drop.value,
            size_bytes=size_bytes(path), float_precision=spec.float_precision,
            drop_low=found.drop.low, drop_high=found.drop.high,
        )  # fmt: skip
        self.trials[name] = trial
        return trial

    def _score(self, runner: Runner) -> list[Scored]:
        """Score an artifact batch by batch; its outputs are forgotten."""
        scored = []
        with runner:
            for batch, expected in zip(self.batches, self.reference, strict=True):
                outputs = paired(expected, runner.infer(batch.feeds))
                truth = Truth(batch.labels, batch.samples, batch.where)
                scored.append(self.metric.score(outputs, expected, truth))
        return scored

    def _sums(self, scored: Sequence[Scored]) -> ScoreSums:
        sums = ScoreSums(self.metric)
        for batch, own, reference in zip(self.batches, scored, self.scored, strict=True):
            sums.add(own, reference, batch.samples)
        return sums


def as_table(trials: Mapping[str, Trial]) -> list[dict[str, Any]]:
    """Return the trials that were timed, the fastest first."""
    timed = [trial for trial in trials.values() if trial.latency_ms]
    return [trial.as_json() for trial in sorted(timed, key=lambda trial: trial.latency_ms)]
