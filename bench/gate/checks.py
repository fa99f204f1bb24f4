"""The checks of one pair: latency, size, accuracy and outputs, each with a verdict and its reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...core.figures import accuracy_text, bytes_text, decibels, drop_interval, drop_text, figure
from ...spec.measure import GateOptions
from ..measure.rounds import TimingSeries
from ..results.drop import samples_needed
from ..results.row import Interval, Row
from ..results.statistics import CONFIDENCE, FEWEST_ROUNDS, Launches, half_width, ratio_level

Kind = Literal["run", "latency", "size", "accuracy", "outputs"]
State = Literal["passed", "failed", "undecided", "skipped"]
FLOATS = ("fp64", "fp32", "tf32", "fp16", "bf16")
"""Precisions with meaningful outputs on random input; quantized models are calibrated for real data only."""


@dataclass(frozen=True)
class GateCheck:
    """One check of a pair and its result: figures and change as text, a sentence, and the next step.

    "undecided" means too little time or too few samples; "skipped" means not required, or not possible here.
    """

    kind: Kind
    state: State
    old: str = ""
    new: str = ""
    change: str = ""
    text: str = ""
    hint: str = ""


def checks_of(old: Row, new: Row, limits: GateOptions, *, has_data: bool) -> list[GateCheck]:
    """Return the checks of two measured rows; `old` is the baseline of `new`."""
    checks = (
        latency_check(old, new, limits),
        size_check(old, new, limits),
        accuracy_check(old, new, limits),
        outputs_check(old, new, limits, has_data=has_data),
    )
    return [check for check in checks if check is not None]


def latency_check(old: Row, new: Row, limits: GateOptions) -> GateCheck:
    before, after = (f"{figure(row.latency.median_ms if row.latency else None)} ms" for row in (old, new))
    ratio = slowdown(old.launches_ms, new.launches_ms)
    if ratio is None:
        why = "too few rounds for an interval"
        return GateCheck("latency", "undecided", before, after, "", why, "raise `max_time_s`")
    change = interval_text(ratio)
    text = f"latency changes by {change}; at most +{limits.max_slower:.3g}% is allowed"
    decision = decide(ratio, limits.max_slower / 100.0)
    if decision != "undecided":
        return GateCheck(
            "latency", "failed" if decision == "slower" else "passed", before, after, change, text
        )
    count = "1 launch" if ratio.launches == 1 else f"{ratio.launches} launches"
    text += f"; {count} cannot decide"
    hint = "raise `max_time_s`, or use a quieter machine; with busy cores, `threads` 1"
    return GateCheck("latency", "undecided", before, after, change, text, hint)


def size_check(old: Row, new: Row, limits: GateOptions) -> GateCheck | None:
    before, after = old.size_bytes, new.size_bytes
    if not before or not after:
        before, after = old.weights_bytes, new.weights_bytes
    if not before or not after:
        return None
    ratio = after / before
    state: State = "failed" if ratio > 1.0 + limits.max_larger / 100.0 else "passed"
    text = f"size changes by {change_text(ratio)}; at most +{limits.max_larger:.3g}% is allowed"
    return GateCheck("size", state, bytes_text(before), bytes_text(after), change_text(ratio), text)


def accuracy_check(old: Row, new: Row, limits: GateOptions) -> GateCheck | None:
    before, after = old.accuracy, new.accuracy
    if before is None or after is None:
        return None
    unit, drop = after.unit, after.drop or Interval(math.nan)
    old_label, new_label = accuracy_text(before.value, unit), accuracy_text(after.value, unit)
    ends = drop_interval(drop.low, drop.high, unit)
    drop_label = f"{drop_text(drop.value, unit)} {ends}".rstrip()
    text = f"{after.metric} drops by {drop_label} {unit}"
    hint = ""
    if limits.max_drop is not None:
        state: State = "passed" if drop.value <= limits.max_drop else "failed"  # NaN fails
        text += f"; at most {drop_text(limits.max_drop, unit)} is allowed"
        if state == "passed" and drop.high is not None and drop.high > limits.max_drop:
            needed = samples_needed(after, limits.max_drop)
            state = "undecided"
            hint = f"evaluate about {needed:,} samples" if needed else "evaluate more samples"
            text += ", which the samples do not prove"
    elif drop.low is None:
        state = "passed" if drop.value <= 0 else "undecided"
        text += "; too few samples for an interval"
        hint = "give `max_drop`, or more samples" if state == "undecided" else ""
    else:
        state = "passed" if drop.low <= 0 else "failed"
        text += "; a drop whose interval contains 0 is allowed"
    if after.statement:
        text += f"; {after.statement}"
    return GateCheck("accuracy", state, old_label, new_label, f"drop {drop_label} {unit}", text, hint)


def outputs_check(old: Row, new: Row, limits: GateOptions, *, has_data: bool) -> GateCheck | None:
    """Return the check of the outputs; None if they were not compared.

    With `outputs` "auto", a difference fails the check only if no accuracy was measured and both versions
    have one precision, which must be a floating-point one if the input is random.
    """
    difference = new.difference
    if difference is None:
        return None
    change = f"SNR {decibels(difference.snr_db)}"
    required = difference.criterion  # a whole sentence if the shapes differ
    required += "" if required.endswith("found") else " is required"
    text = f"outputs {'agree' if difference.passed else 'differ'}: {change}; {required}"
    if difference.passed:
        return GateCheck("outputs", "passed", "", "", change, text)
    why = ""
    if difference.mismatch:
        pass  # outputs of another shape or type always fail
    elif limits.outputs == "any":
        why = " only with `outputs` same"
    elif limits.outputs == "auto" and new.accuracy is not None:
        why = ", but accuracy decides"
    elif limits.outputs == "auto" and old.precision != new.precision:
        why = f", but the precisions differ ({old.precision}, {new.precision})"
    elif limits.outputs == "auto" and not has_data and new.precision not in FLOATS:
        why = f", but random input is not decisive for {new.precision}: give `data`"
    return GateCheck("outputs", "skipped" if why else "failed", "", "", change, f"{text}{why}")


def interval_text(ratio: Slowdown) -> str:
    """Return a slowdown with its interval as text, all values as percentages or all as factors."""
    ends = (ratio.value, ratio.low, ratio.high)
    value, low, high = (change_text(end, of=ends) for end in ends)
    return f"{value} [{low}, {high}]"


def change_text(ratio: float, of: Sequence[float] = ()) -> str:
    """Return a ratio as a signed change, "+5.1%", or as "3.1x" if it or any of `of` changes by over half."""
    if not all(0.5 < value < 1.5 for value in of or (ratio,)):
        return f"{ratio:.3g}x"
    return f"{100.0 * (ratio - 1.0):+.1f}%".replace("-", "\N{MINUS SIGN}")


# The interval is examined after each launch, and repeated tests raise the error rate. Pocock (Biometrika 64,
# 1977) bounds the error over all looks by one stricter level for each (with Student's t: Jennison and
# Turnbull, Group Sequential Methods, 2000, 4.4). For ten looks and 5% on both sides that level is 1.06%.
# Intervals of 99% (`CONFIDENCE`) therefore err at most 2.5% on each side at the limit itself, if processes
# differ no more than the prior assumes. `docs/gate.md` lists the rates of other machines.
#
# One or two launches cannot show how much processes differ: their interval is widened beyond the prior's.


FEWEST_LAUNCHES = 3
MOST_LAUNCHES = 12  # ten looks, from the third launch on
_FEW_FACTOR = 3.0

Decision = Literal["slower", "not slower", "undecided"]


@dataclass(frozen=True)
class Slowdown:
    """Geometric mean over launches of the median over rounds of new time / old time, and its interval."""

    value: float
    low: float
    high: float
    launches: int
    rounds: int


def slowdown(old_ms: Launches, new_ms: Launches) -> Slowdown | None:
    """Return the slowdown over launches with common rounds; None with too few rounds."""
    shared = sum(min(len(old), len(new)) for old, new in zip(old_ms, new_ms, strict=False))
    if shared < FEWEST_ROUNDS:
        return None
    level = ratio_level(old_ms, new_ms)
    half = half_width(level, CONFIDENCE) * (1.0 if level.launches >= FEWEST_LAUNCHES else _FEW_FACTOR)
    low, high = math.exp(-level.mean - half), math.exp(-level.mean + half)
    return Slowdown(math.exp(-level.mean), low, high, level.launches, level.rounds)


def decide(ratio: Slowdown | None, limit: float) -> Decision:
    """Compare the interval of a slowdown with `limit`, the allowed increase in latency: 0.02 is 2%."""
    if ratio is None:
        return "undecided"
    if ratio.low > 1.0 + limit:
        return "slower"
    return "not slower" if ratio.high < 1.0 + limit else "undecided"


def is_decided(limit: float, timed: Mapping[str, TimingSeries], /) -> bool:
    """Return whether the launches of "old" and "new" decide, or reach the maximum of the stop rule."""
    ratio = slowdown(timed["old"].launches_ms, timed["new"].launches_ms)
    return ratio is not None and (decide(ratio, limit) != "undecided" or ratio.launches >= MOST_LAUNCHES)
