"""Candidates: each is really quantized and built, its accuracy and its latency are really measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..artifact import size_bytes
from ..bench import benchmark
from ..calibration import Batch, Ranges
from ..compiler import quantize
from ..compiler.choice import exactly
from ..compiler.int8.placement import graph_target
from ..engines.base import BuildRequest, Precision, Runner
from ..engines.build import build_engine
from ..engines.registry import engine
from ..errors import DataError, QCompileError
from ..progress import Progress
from .metric import Metric, Outputs


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
        value: Of the metric.
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
        self.labels = [batch.labels for batch in batches if batch.labels is not None]
        if metric.needs_labels and len(self.labels) != len(batches):
            raise DataError(
                f"metric {metric.name} needs labels, and the data has none",
                hint="yield (inputs, labels), put `labels` beside the arrays, or give --metric cosine",
            )
        if not batches:
            raise DataError("the data is empty: there is nothing to measure accuracy on")
        progress("run the float model")
        self.reference = self._outputs(engine("onnxruntime").open(str(model), threads=threads))
        self.float_value = metric.value(self.reference, self.labels, self.reference)
        self.trials: dict[str, Trial] = {}
        self.missed: dict[str, tuple[str, ...]] = {}  # what a runtime was found to compute in float

    def in_float(self, target: str, precision: Precision) -> Trial:
        """The float model, built for a target."""
        return self._trial(f"{target}-{precision}", target, precision, frozenset(), self.model)

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
        graph = self.folder / f"{name}.graph.onnx"
        self.progress(f"quantize {name}: {len(in_float)} layers in float" if in_float else f"quantize {name}")
        self._quantize(graph, target, in_float)
        if target not in self.missed:
            request = BuildRequest(str(graph), graph, "int8", threads=self.threads, rest=rest)
            self.missed[target] = tuple(engine(target).missed_layers(request))
            if self.missed[target]:
                self._quantize(graph, target, in_float)  # without Q/DQ that only cost conversions
        return self._trial(name, target, "int8", in_float, graph, rest=rest)

    def _quantize(self, graph: Path, target: str, in_float: frozenset[str]) -> None:
        missed = map(exactly, self.missed.get(target, ()))
        quantize(
            self.model,
            graph,
            ranges=self.ranges,
            target=graph_target(target),
            method=self.method,
            exclude=[*self.exclude, *sorted(in_float), *missed],
        )

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
            entry = results.entry(trial.name)
            if entry.latency_ms is None:
                raise QCompileError(f"{trial.name}: could not be measured: {entry.reason}")
            trial.latency_ms = entry.latency_ms["median"]
            trial.speedup = entry.speedup or {
                "value": 1.0,
                "low": 1.0,
                "high": 1.0,
                "verdict": "the baseline",
            }

    def _trial(
        self,
        name: str,
        target: str,
        precision: Precision,
        in_float: frozenset[str],
        graph: Path,
        *,
        rest: str = "fp32",
    ) -> Trial:
        path = self.folder / f"{name}{engine(target).suffix}"
        self.progress(f"build {name}")
        request = BuildRequest(str(graph), path, precision, threads=self.threads, rest=rest)
        build_engine(target, request, allow_fallback=True)  # what it is worth is measured
        self.progress(f"accuracy of {name}")
        outputs = self._outputs(engine(target).open(str(path), threads=self.threads))
        value = self.metric.value(outputs, self.labels, self.reference)
        trial = Trial(
            name, target, precision, in_float, path, value, self.float_value - value,
            size_bytes=size_bytes(path), rest=rest,
        )  # fmt: skip
        self.trials[name] = trial
        return trial

    def _outputs(self, runner: Runner) -> list[Outputs]:
        with runner:
            return [runner.infer(batch.feeds) for batch in self.batches]


def as_table(trials: Mapping[str, Trial]) -> list[dict[str, Any]]:
    """Return the trials that were timed, the fastest first."""
    timed = [trial for trial in trials.values() if trial.latency_ms]
    return [trial.as_json() for trial in sorted(timed, key=lambda trial: trial.latency_ms)]
