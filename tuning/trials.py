"""Trials: each candidate is quantized and built, and its accuracy and latency are measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..artifact import size_bytes
from ..bench.benchmark import benchmark
from ..bench.metrics.accuracy import ScoreSums
from ..bench.metrics.metric import Metric, Outputs, Scored, Truth
from ..bench.outputs import paired
from ..calibration import Ranges
from ..data.readers import Batch
from ..engines.base import Precision, Runner
from ..engines.capabilities import capabilities
from ..engines.registry import engine
from ..errors import DataError, QCompileError
from ..intent import build_intent
from ..lowering import lower
from ..preparation import Intent
from ..progress import Progress


@dataclass
class Trial:
    """One artifact that was tried.

    Attributes:
        name: Unique; also that of its file.
        target: Name of the engine.
        precision: "fp32", "bf16" or "int8".
        in_float: Layers that were left in float, for INT8.
        rest: What they are computed in.
        path: The artifact.
        value: Of the metric: a share for metrics in points, the metric's own units otherwise.
        drop: What it lost against the float model, in the metric's unit.
        latency_ms: Median; 0 until it is measured.
        speedup: Against the float model on the same runtime as the reference.
        size_bytes: Of the artifact.
    """

    name: str
    target: str
    precision: str
    in_float: frozenset[str]
    path: Path
    value: float
    drop: float
    latency_ms: float = 0.0
    speedup: dict[str, Any] = field(default_factory=dict)
    size_bytes: int = 0
    rest: str = "fp32"

    def as_json(self) -> dict[str, Any]:
        """Return the `--json` form."""
        return {
            "name": self.name,
            "target": self.target,
            "precision": self.precision,
            "in_float": sorted(self.in_float),
            "rest": self.rest,
            "file": str(self.path),
            "value": self.value,
            "drop": self.drop,
            "latency_ms": self.latency_ms,
            "speedup": self.speedup,
            "size_bytes": self.size_bytes,
        }


class Workbench:
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
        self.scored = [
            metric.score(outputs, outputs, Truth(batch.labels, batch.samples, batch.where))
            for batch, outputs in zip(batches, self.reference, strict=True)
        ]
        self.float_value = self._value(self.scored)
        self.trials: dict[str, Trial] = {}

    def in_float(self, target: str, precision: Precision) -> Trial:
        """The float model, built for a target."""
        return self._trial(f"{target}-{precision}", Intent(self.model, target, precision), frozenset())

    def int8(self, target: str, in_float: frozenset[str] = frozenset(), *, rest: str = "fp32") -> Trial:
        """INT8 for a target with some layers left in float, computed in `rest`; made once.

        Raises:
            QuantizationError: If nothing is left to quantize.
        """
        for known in self.trials.values():
            same = (known.target, known.precision, known.in_float, known.rest)
            if same == (target, "int8", in_float, rest):
                return known
        number = sum(trial.target == target and trial.precision == "int8" for trial in self.trials.values())
        name = f"{target}-int8" + (f"-mix{number}" if in_float else "") + (f"-{rest}" * (rest != "fp32"))
        self.progress(f"quantize {name}: {len(in_float)} layers in float" if in_float else f"quantize {name}")
        intent = Intent(
            self.model, target, "int8", ranges=self.ranges, method=self.method, rest=rest,
            exclude=[*self.exclude, *sorted(in_float)], correct_bias=False,
        )  # fmt: skip
        return self._trial(name, intent, in_float)

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

    def _trial(self, name: str, intent: Intent, in_float: frozenset[str]) -> Trial:
        target, chosen = intent.target, engine(intent.target)
        intent, path = replace(intent, threads=self.threads), self.folder / f"{name}{chosen.suffix}"
        lowered = lower(intent, capabilities(chosen), self.folder / f"{name}.graph.onnx")
        self.progress(f"build {name}")
        build_intent(intent, path, allow_fallback=True, lowered=lowered)  # what it is worth is measured
        self.progress(f"accuracy of {name}")
        value = self._value(self._score(chosen.open(str(path), threads=self.threads)))
        drop = float(self.metric.drop(self.float_value, value)) + 0.0
        trial = Trial(
            name, target, intent.precision, in_float, path, value, drop,
            size_bytes=size_bytes(path), rest=intent.rest,
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

    def _value(self, scored: Sequence[Scored]) -> float:
        sums = ScoreSums(self.metric)
        for batch, own, reference in zip(self.batches, scored, self.scored, strict=True):
            sums.add(own, reference, batch.samples)
        return sums.value()


def as_table(trials: Mapping[str, Trial]) -> list[dict[str, Any]]:
    """Return the trials that were timed, the fastest first."""
    timed = [trial for trial in trials.values() if trial.latency_ms]
    return [trial.as_json() for trial in sorted(timed, key=lambda trial: trial.latency_ms)]
