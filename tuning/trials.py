"""Trials: each candidate is made once, and its latency is measured; `making` makes them.

With an `Elsewhere`, rankings and the first trials of all targets are begun together.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..artifact import size_bytes
from ..bench.benchmark import benchmark
from ..compiler.quantize.sensitivity import LayerSensitivity
from ..engines.registry import engine
from ..errors import QCompileError
from ..progress import Progress
from ..spec.words import FloatPrecision, Target
from ..tensors import Feeds
from .making import Elsewhere, Score, TrialAsk, TrialMaker, rank_part


@dataclass
class Trial:
    """One artifact that was tried, as `TrialAsk` has it.

    Attributes:
        value: Of the metric: a share for metrics in points, the metric's own units otherwise.
        drop: What it lost against the float model, in the metric's unit.
        drop_low, drop_high: Ends of its paired interval; None with too few samples.
        latency_ms: Median; 0 until it is measured.
        speedup: Against the float model on the same runtime as the reference.
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
    latency_ms: float = 0.0
    speedup: dict[str, Any] = field(default_factory=dict)
    size_bytes: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the `--json` form."""
        values = {**vars(self), "in_float": sorted(self.in_float), "file": str(self.path)}
        del values["path"]
        return values


def float_ask(target: Target, precision: FloatPrecision) -> TrialAsk:
    """Return what the float model is asked as, for a target."""
    return TrialAsk(f"{target}-{precision}", target, precision)


class TrialRunner:
    """Has trials of one float model made in one folder, several at a time by `elsewhere`; remembers them."""

    def __init__(
        self, maker: TrialMaker, folder: Path, progress: Progress, elsewhere: Elsewhere | None = None
    ) -> None:
        self.maker, self.folder, self.progress, self.elsewhere = maker, folder, progress, elsewhere
        self.trials: dict[str, Trial] = {}
        self._begun: dict[TrialAsk, Future[tuple[Score, Sequence[Path]]]] = {}
        self._ranks: dict[Target, list[Future[list[LayerSensitivity]]]] = {}
        self._threads = ThreadPoolExecutor(self.parallel, "qcompile-tune") if elsewhere else None

    @property
    def parallel(self) -> int:
        """Trials at a time."""
        return max(1, self.elsewhere.parallel) if self.elsewhere else 1

    def in_float(self, target: Target, precision: FloatPrecision) -> Trial:
        """The float model, built for a target."""
        return self._trial(float_ask(target, precision))

    def int8(
        self,
        target: Target,
        in_float: frozenset[str] = frozenset(),
        *,
        float_precision: FloatPrecision = "fp32",
    ) -> Trial:
        """INT8 for a target with some layers left in float, computed in `float_precision`; made once."""
        mix = (target, "int8", in_float, float_precision)
        for trial in self.trials.values():
            if (trial.target, trial.precision, trial.in_float, trial.float_precision) == mix:
                return trial
        made = sum((trial.target, trial.precision) == (target, "int8") for trial in self.trials.values())
        mix = f"-mix{made}" if in_float else ""
        name = f"{target}-int8{mix}" + f"-{float_precision}" * (float_precision != "fp32")
        ask = TrialAsk(name, target, "int8", in_float, float_precision)
        left = f": {len(in_float)} layers in float" if in_float else ""
        self.progress(f"quantize {ask.name}{left}")
        return self._trial(ask)

    def begin(self, targets: Sequence[Target]) -> None:
        """Begin what is asked for anyhow, where it is made elsewhere: rankings and the first trials."""
        if self._threads is None or self.elsewhere is None:
            return
        for target in targets:
            rank, parts = self.elsewhere.rank, self.parallel
            futures = [self._threads.submit(rank, target, part, parts) for part in range(1, parts + 1)]
            self._ranks[target] = futures
            floats = [float_ask(target, precision) for precision in engine(target).tuned_floats]
            for ask in [*floats, TrialAsk(f"{target}-int8", target, "int8")]:
                self._begun[ask] = self._threads.submit(self.elsewhere.make, ask)

    def rank(self, target: Target) -> list[LayerSensitivity]:
        """Return the damage of every layer that would be quantized, the most damaging first."""
        parts = self._ranks.pop(target, None)
        if parts is None:
            return rank_part(self.maker.setting, target, progress=self.progress)
        self.progress("damage of each layer")
        # Parts follow each other in the graph: of equal damage, the earlier layer stays in front.
        return sorted((one for part in parts for one in part.result()), key=lambda one: -one.noise)

    def close(self) -> None:
        """Begin nothing more."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self.elsewhere is not None:
            self.elsewhere.close()

    def time(self, trials: Sequence[Trial], *, batch_size: int | None, max_time_s: float) -> None:
        """Measure the latency of trials in interleaved rounds, against the float model on ONNX Runtime."""
        wait([begun for begun in self._begun.values() if not begun.cancel()])  # nobody asked for it
        self._begun.clear()
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

    def _trial(self, ask: TrialAsk) -> Trial:
        path = self.folder / ask.file
        if self.elsewhere is None:
            score = self.maker.make(ask, self.folder, self.progress)
        else:
            begun = self._begun.pop(ask, None)
            score, made = self.elsewhere.make(ask) if begun is None else begun.result()
            files = sorted(made, key=lambda one: one.suffix == ".json")  # manifests last
            for file in reversed(files):  # a manifest never stands beside a file of another tuning
                (self.folder / file.name).unlink(missing_ok=True)
            for file in files:
                _take(file, self.folder / file.name)
        trial = Trial(
            ask.name, ask.target, ask.precision, ask.in_float, path, score.value, score.drop,
            ask.float_precision, score.low, score.high, size_bytes=size_bytes(path),
        )  # fmt: skip
        self.trials[ask.name] = trial
        return trial


def as_table(trials: Mapping[str, Trial]) -> list[dict[str, Any]]:
    """Return the trials that were timed, the fastest first."""
    timed = [trial for trial in trials.values() if trial.latency_ms]
    return [trial.as_json() for trial in sorted(timed, key=lambda trial: trial.latency_ms)]


def _take(source: Path, target: Path) -> None:
    """Give a file a name here as well; its content is shared where the file system can."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def slower_layers(
    int8: Trial, in_float: Trial, layers: Sequence[str], feeds: Feeds, threads: int
) -> list[str]:
    """Return the layers that are slower in INT8 than in float by their kernels, the costliest first."""
    times = [
        by_layer(engine(trial.target).kernel_times(str(trial.path), feeds, threads=threads), layers)
        for trial in (int8, in_float)
    ]
    return compare_times(*times)


def compare_times(int8_ms: Mapping[str, float], float_ms: Mapping[str, float]) -> list[str]:
    """Return the names in both whose INT8 time is the longer one, by what they lose."""
    lost = {name: int8_ms[name] - taken for name, taken in float_ms.items() if name in int8_ms}
    return sorted((name for name, loss in lost.items() if loss > 0), key=lambda name: -lost[name])


def by_layer(kernels_ms: Mapping[str, float], layers: Sequence[str]) -> dict[str, float]:
    """Return layer to the time of its kernels: those whose names begin with the layer's, the longest one."""
    times: dict[str, float] = {}
    known = sorted(layers, key=len, reverse=True)
    for kernel, taken in kernels_ms.items():
        layer = next((name for name in known if kernel.startswith(name)), None)
        if layer is not None:
            times[layer] = times.get(layer, 0.0) + taken
    return times
