"""Update the rows of a running benchmark: the only module that changes rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from msgspec.structs import replace

from ...errors import ArtifactError, InvalidOption, QCompileError
from ...model.graph.graph import WeightStats
from ..results.row import MOST_CALLS, Latency, Row, WarmUp
from ..results.statistics import percentile, speedup
from .rounds import TimingSeries

_QUANTILES = 101
_FEW_LAUNCHES = 3

T = TypeVar("T")


class Recorder:
    def __init__(self, rows: Iterable[Row], base: str) -> None:
        self._rows, self.base = {row.name: row for row in rows}, base

    def __getitem__(self, name: str) -> Row:
        return self._rows[name]

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def is_measured(self, name: str) -> bool:
        return self._rows[name].status == "measured"

    def attempt(self, name: str, step: Callable[[], T], figure: str = "") -> T | None:
        """Run `step`; return its result and record it as `figure`, or return None and mark the row failed."""
        try:
            answer = step()
        except QCompileError as error:
            self.record_failure(name, error)
            return None
        if figure:
            self.change(name, **{figure: answer})
        return answer

    def record_failure(self, name: str, error: QCompileError) -> None:
        tail = str(error.data.get("output", ""))
        refused = isinstance(error, ArtifactError) and error.hint
        reason = f"{error.message}; {error.hint}" if refused else error.message
        self.change(name, status="failed", reason=reason, output_tail=tail)

    def warn(self, name: str, *texts: str) -> None:
        self.change(name, warnings=(*self._rows[name].warnings, *texts))

    def weights(self, name: str, weights: WeightStats) -> None:
        """Record the size, parameters and precision of the weights of a loaded artifact."""
        precision, parameters = weights.precision or self._rows[name].precision, weights.parameters or None
        self.change(name, parameters=parameters, weights_bytes=weights.bytes, precision=precision)

    def record_timings(self, series: Mapping[str, TimingSeries], samples: int) -> None:
        for name, timing in series.items():
            if timing.failure is not None:
                self.record_failure(name, timing.failure)
            elif not timing.round_medians_ms:
                self.change(name, status="not run", reason="interrupted before its first round")
            else:
                self._latency(name, timing, samples)
                if name != self.base and series[self.base].failure is None:
                    self._speedup(name, series[self.base], timing)

    def conclude(self, precision_target: float) -> None:
        """Record the ratios of sizes and memory; warn of wide intervals and of rows on different devices."""
        reference = self._rows[self.base]
        floats = (row.size_bytes for row in self.rows if row.precision == "fp32" and row.size_bytes)
        size_bytes = reference.held_bytes or next(floats, None)
        peak_bytes = reference.peak_memory_bytes
        for row in self.rows:
            if size_bytes and row.held_bytes:
                self.change(row.name, size_ratio=size_bytes / row.held_bytes)
            if peak_bytes and row.peak_memory_bytes:
                self.change(row.name, memory_ratio=peak_bytes / row.peak_memory_bytes)
            if row.speedup is None:
                continue
            has_few_launches = row.speedup.launches < _FEW_LAUNCHES  # `_speedup` has warned already
            if not has_few_launches and row.speedup.width > precision_target:
                self.warn(
                    row.name,
                    f"the interval of its speed-up is wider than {precision_target:.1%}: "
                    "measure longer (max time), or on a quieter machine",
                )
            if row.device != reference.device:
                self.warn(
                    row.name,
                    f"ran on {row.device}, the baseline on {reference.device}: the speed-up compares devices "
                    "as well; `devices` says where PyTorch and ONNX Runtime run",
                )

    def change(self, name: str, **fields: Any) -> None:
        self._rows[name] = replace(self._rows[name], **fields)

    def _latency(self, name: str, series: TimingSeries, samples: int) -> None:
        latencies = series.latencies_ms
        warm_up = series.unsettled or series.warm_up
        self.change(
            name,
            latency=latency_of(latencies),
            throughput_per_s=samples * len(latencies) / (sum(latencies) / 1e3),
            latency_quantiles_ms=tuple(np.quantile(latencies, np.linspace(0.0, 1.0, _QUANTILES)).tolist()),
            calls_ms=tuple(float(f"{ms:.4g}") for ms in latencies[:: -(-len(latencies) // MOST_CALLS)]),
            round_medians_ms=tuple(series.round_medians_ms),
            launch_rounds=tuple(map(len, series.launches_ms)),
            gpu_memory_rounds_bytes=tuple(series.gpu_memory_bytes),
            warm_up=warm_up and WarmUp(warm_up.calls, warm_up.seconds, warm_up.stable),
        )
        if len(latencies) < 100:
            self.warn(name, f"p99 from {len(latencies)} calls is the slowest of them; measure longer")
        if series.unsettled:
            self.warn(
                name,
                f"its latency had not settled after {series.unsettled.seconds:.0f} s of warm-up in one "
                "launch or more: measure again, on a quieter machine",
            )
        if series.keeps_spinning:
            self.warn(name, "its threads never stop spinning; it was paused while others were measured")

    def _speedup(self, name: str, base: TimingSeries, timing: TimingSeries) -> None:
        try:
            ratio = speedup(base.launches_ms, timing.launches_ms)
        except InvalidOption as error:
            self.warn(name, f"no speed-up: {error.message}")
            return
        self.change(name, speedup=ratio)
        if ratio.launches < _FEW_LAUNCHES:
            counted = "one launch" if ratio.launches == 1 else f"{ratio.launches} launches"
            self.warn(
                name,
                f"its speed-up comes from {counted}, and launches of one artifact differ: "
                "measure longer (max time)",
            )
        if self._rows[name].precision == "int8" and ratio.verdict == "slower":
            self.warn(name, "INT8 is slower than the baseline; use the float artifact")


def latency_of(latencies_ms: Sequence[float]) -> Latency:
    """Return the percentiles of calls: measured latencies, except that a median may be the mean of two."""
    return Latency(
        median_ms=float(np.median(latencies_ms)),
        p90_ms=percentile(latencies_ms, 0.90),
        p99_ms=percentile(latencies_ms, 0.99),
        min_ms=min(latencies_ms),
        max_ms=max(latencies_ms),
        calls=len(latencies_ms),
    )
