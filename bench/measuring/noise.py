"""Detect what disturbed a benchmark, and say what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..statistics.launches import median

_OTHERS = 0.05  # of the time of all usable cores
_STOLEN = 0.01
_DRIFT = 0.05
_FREQUENCY = 0.10
_SWITCHES_PER_S = 100.0
_FEWEST_ROUNDS = 9  # three thirds of three


@dataclass(frozen=True)
class Effort:
    """What the measuring itself has used.

    Attributes:
        seconds: From the first state to the second.
        cpu_s: Processor time of the workers and of this process.
        involuntary_switches: Times that the system took a core away from a worker's thread.
        worker_cpu_s: Processor time of the workers alone.
    """

    seconds: float
    cpu_s: float
    involuntary_switches: int
    worker_cpu_s: float


def noise(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    effort: Effort,
    baseline_medians_ms: Sequence[float],
    *,
    governor: str | None = None,
) -> dict[str, Any]:
    """Return `{"noisy", "reasons"}`.

    Args:
        before, after: From `environment.state`.
        effort: What the measuring used between them.
        baseline_medians_ms: Of the baseline's rounds.
        governor: Of the processor's clock.
    """
    reasons = [
        *_other_work(before, after, effort),
        *_drift(baseline_medians_ms),
        *_clock(before, after, governor),
        *_gpu(before.get("gpu"), after.get("gpu")),
    ]
    return {"noisy": bool(reasons), "reasons": reasons}


def _other_work(before: Mapping[str, Any], after: Mapping[str, Any], effort: Effort) -> list[str]:
    reasons = []
    first, second = before.get("cpu_ticks"), after.get("cpu_ticks")
    if first and second:
        spent = {name: second[name] - first[name] for name in first}
        capacity = max(sum(spent.values()), 1e-9)
        others = max(spent["busy_s"] - effort.cpu_s, 0.0) / capacity
        if others > _OTHERS:
            reasons.append(
                f"other processes took {others:.0%} of the processor: end them, or measure at another time"
            )
        if spent["stolen_s"] / capacity > _STOLEN:
            reasons.append(
                f"the hypervisor took {spent['stolen_s'] / capacity:.1%} of the processor away: "
                "measure on a machine of your own"
            )
    limited = (after.get("cpu_limited_us") or 0.0) - (before.get("cpu_limited_us") or 0.0)
    if limited > 0.01 * effort.seconds * 1e6:
        reasons.append(
            f"the container's CPU limit kept threads waiting for {limited / 1e6:.1f} s: "
            "give it as many cores as `threads`"
        )
    rate = effort.involuntary_switches / max(effort.worker_cpu_s, 1e-9)
    if rate > _SWITCHES_PER_S:
        reasons.append(
            f"workers lost their core {rate:.0f} times per second of work: "
            "give fewer `threads` than cores, or end what else runs"
        )
    return reasons


def _drift(medians_ms: Sequence[float]) -> list[str]:
    if len(medians_ms) < _FEWEST_ROUNDS:
        return []
    third = len(medians_ms) // 3
    first, last = median(medians_ms[:third]), median(medians_ms[-third:])
    change = last / first - 1.0
    if abs(change) <= _DRIFT:
        return []
    became = f"{abs(change):.0%} {'slower' if change > 0 else 'faster'}"
    return [
        f"the baseline became {became} while it was measured: "
        "let the machine cool down or settle, then measure again"
    ]


def _clock(before: Mapping[str, Any], after: Mapping[str, Any], governor: str | None) -> list[str]:
    reasons = []
    first, second = before.get("frequency_mhz"), after.get("frequency_mhz")
    # Under a governor that follows the load, an idle core's clock says nothing of a busy one's.
    if first and second and governor in (None, "performance") and abs(second / first - 1.0) > _FREQUENCY:
        reasons.append(
            f"the processor's clock went from {first:.0f} to {second:.0f} MHz: "
            "fix it (governor performance, turbo off), or let the machine cool down"
        )
    if governor == "powersave":
        reasons.append(
            "the processor's governor is powersave: choose performance "
            "(cpupower frequency-set --governor performance)"
        )
    return reasons


def _gpu(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[str]:
    reasons = sorted({*(before or {}).get("throttled", ()), *(after or {}).get("throttled", ())})
    if not reasons:
        return []
    return [
        f"the GPU was throttled ({', '.join(reasons)}): cool it, raise its power limit, or lock lower clocks"
    ]
