"""What was timed becomes figures of an entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..errors import InvalidOption, QCompileError
from .compare import speedup
from .launches import percentile
from .measure import Timed
from .results import Entry

_QUANTILES = 101
_FEW_LAUNCHES = 3


def record_failure(entry: Entry, error: QCompileError) -> None:
    """Write why an artifact has no figures, and what its worker said last."""
    entry.status, entry.reason = "failed", error.message
    entry.output_tail = str(error.data.get("output", ""))


def record_timings(entries: Mapping[str, Entry], timed: Mapping[str, Timed], base: str, samples: int) -> None:
    """Write the figures of all, and their speed-ups against the baseline.

    Args:
        entries: Name to row.
        timed: Name to what was timed; whole rounds, also where measuring was interrupted.
        base: Name of the baseline.
        samples: In a call.
    """
    for name, one in timed.items():
        entry = entries[name]
        if one.failure is not None:
            record_failure(entry, one.failure)
        elif not one.round_medians_ms:
            entry.status, entry.reason = "not run", "interrupted before its first round"
        else:
            _record_latency(entry, one, samples)
            if name != base and timed[base].failure is None:
                _record_speedup(entry, timed[base], one)


def note_doubt(entries: Iterable[Entry], precision_target: float) -> None:
    """Warn of speed-ups whose interval is wider than was asked for."""
    for entry in entries:
        ratio = entry.speedup
        if ratio and ratio.get("launches", 1) < _FEW_LAUNCHES:
            continue  # it was said why
        width = (ratio["high"] - ratio["low"]) / ratio["value"] if ratio else 0.0
        if width > precision_target:
            entry.warnings.append(
                f"the interval of its speed-up is wider than {precision_target:.1%}: "
                "measure longer (max time), or on a quieter machine"
            )


def note_places(entries: Mapping[str, Entry], base: str) -> None:
    """Warn of speed-ups that compare a GPU with a processor: they say little about the artifact."""
    reference = entries[base]
    for entry in entries.values():
        if entry.speedup and entry.device != reference.device:
            entry.warnings.append(
                f"ran on {entry.device}, the baseline on {reference.device}: the speed-up compares devices "
                "as well; --device says where PyTorch and ONNX Runtime run"
            )


def note_sizes(entries: Sequence[Entry], base: str) -> None:
    """Write how many times smaller each file is than the baseline's, or than the first float file."""
    own = next((entry.size_bytes for entry in entries if entry.name == base), None)
    floats = (entry.size_bytes for entry in entries if entry.precision == "fp32" and entry.size_bytes)
    reference = own or next(floats, None)
    for entry in entries:
        if reference and entry.size_bytes:
            entry.size_ratio = reference / entry.size_bytes


def latency_figures(latencies_ms: Sequence[float]) -> dict[str, float]:
    """Return min, median, p90, p99 and max, each a latency that was measured but the median of an even
    number, and their number."""
    return {
        "min": min(latencies_ms),
        "median": float(np.median(latencies_ms)),
        "p90": percentile(latencies_ms, 0.90),
        "p99": percentile(latencies_ms, 0.99),
        "max": max(latencies_ms),
        "calls": len(latencies_ms),
    }


def _record_latency(entry: Entry, timed: Timed, samples: int) -> None:
    latencies = timed.latencies_ms
    entry.latency_ms = latency_figures(latencies)
    quantiles = np.quantile(np.asarray(latencies), np.linspace(0.0, 1.0, _QUANTILES))
    entry.latency_quantiles_ms = [float(value) for value in quantiles]
    entry.throughput_per_s = samples * len(latencies) / (sum(latencies) / 1e3)
    entry.round_medians_ms = timed.round_medians_ms
    entry.launch_rounds = [len(launch) for launch in timed.launches_ms]
    shown = timed.unsettled or timed.warm_up
    entry.warm_up = shown.as_json() if shown else None
    if len(latencies) < 100:
        entry.warnings.append(f"p99 from {len(latencies)} calls is the slowest of them; measure longer")
    if timed.unsettled:
        entry.warnings.append(
            f"its latency had not settled after {timed.unsettled.seconds:.0f} s of warm-up in one launch or "
            "more: measure again, on a quieter machine"
        )
    if timed.restless:
        entry.warnings.append("its threads never come to rest; it was stopped while others were measured")


def _record_speedup(entry: Entry, base: Timed, own: Timed) -> None:
    try:
        ratio = speedup(base.launches_ms, own.launches_ms)
    except InvalidOption as error:
        entry.warnings.append(f"no speed-up: {error.message}")
        return
    if ratio.launches < _FEW_LAUNCHES:
        counted = "one launch" if ratio.launches == 1 else f"{ratio.launches} launches"
        entry.warnings.append(
            f"its speed-up rests on {counted}, and processes of one file differ: measure longer (max time)"
        )
    entry.speedup = {
        "value": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "rounds": ratio.rounds,
        "verdict": ratio.verdict,
        "correlation_rounds": ratio.correlation_rounds,
        "launches": ratio.launches,
    }
    if entry.precision == "int8" and ratio.verdict == "slower":
        entry.warnings.append("INT8 is slower than the baseline; hand out the float artifact")
