"""The checks of one pair: latency, size, accuracy and outputs, each passed, failed, or left open and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...figures import accuracy_text, bytes_text, decibels, drop_interval, drop_text, figure
from ..measuring.rounds import TimingSeries
from ..results.row import Interval, Row
from ..statistics import CONFIDENCE, FEWEST_ROUNDS, Launches, half_width, ratio_level

Kind = Literal["run", "latency", "size", "accuracy", "outputs"]
State = Literal["passed", "failed", "undecided", "skipped"]
FLOATS = ("fp64", "fp32", "tf32", "fp16", "bf16")
"""Precisions whose outputs on random input say something: a quantized model knows only calibration data."""


@dataclass(frozen=True)
class Limits:
    """What a new version must keep.

    Attributes:
        max_slower, max_larger: Shares: 0.02 is 2%.
        max_drop: Points, or units of the metric; None: the interval of the drop must contain 0 or less.
        outputs: "same", "any", or "auto" (see `outputs_check`).
        strict: Whether what is undecided or skipped fails too.
    """

    max_slower: float
    max_larger: float
    max_drop: float | None
    outputs: Literal["auto", "same", "any"]
    strict: bool


@dataclass(frozen=True)
class Check:
    """One question about a pair, and its answer.

    Attributes:
        kind: What was asked.
        state: The answer; "undecided" where time or samples did not suffice, "skipped" where nobody asked.
        old, new: The figures, in words; empty where there are none.
        change: How the new one differs, in words.
        text: One sentence: what was found and what is required.
        hint: The next step.
    """

    kind: Kind
    state: State
    old: str = ""
    new: str = ""
    change: str = ""
    text: str = ""
    hint: str = ""


def checks_of(old: Row, new: Row, limits: Limits, *, has_data: bool) -> list[Check]:
    """Return the checks of two measured rows, the old one the baseline of the other."""
    found = slowdown(old.launches_ms, new.launches_ms)
    possible = (
        latency_check(old, new, found, limits),
        size_check(old, new, limits),
        accuracy_check(old, new, limits),
        outputs_check(old, new, limits, has_data=has_data),
    )
    return [one for one in possible if one is not None]


def latency_check(old: Row, new: Row, found: Slowdown | None, limits: Limits) -> Check:
    """Return whether the new version is slower than the limit; see `rule`."""
    shown_old, shown_new = (
        f"{figure(row.latency.median_ms if row.latency else None)} ms" for row in (old, new)
    )
    limit = percent(limits.max_slower)
    if found is None:
        why = "too few rounds for an interval"
        return Check("latency", "undecided", shown_old, shown_new, "", why, "raise `max_time_s`")
    change = interval_text(found)
    text = f"latency changes by {change}; at most +{limit} is allowed"
    decision = decide(found, limits.max_slower)
    if decision != "undecided":
        return Check(
            "latency", "failed" if decision == "slower" else "passed", shown_old, shown_new, change, text
        )
    count = "1 launch does" if found.launches == 1 else f"{found.launches} launches do"
    text += f"; {count} not decide"
    hint = "raise `max_time_s`, or measure where less else runs; `threads` 1 where cores are busy"
    return Check("latency", "undecided", shown_old, shown_new, change, text, hint)


def size_check(old: Row, new: Row, limits: Limits) -> Check | None:
    """Return whether the new file, or the weights of a MODEL, are larger; None of unknown sizes."""
    sizes = (
        (old.size_bytes, new.size_bytes)
        if old.size_bytes and new.size_bytes
        else (old.weights_bytes, new.weights_bytes)
    )
    if not sizes[0] or not sizes[1]:
        return None
    ratio = sizes[1] / sizes[0]
    state: State = "failed" if ratio > 1.0 + limits.max_larger else "passed"
    text = f"size changes by {change_text(ratio)}; at most +{percent(limits.max_larger)} is allowed"
    return Check("size", state, bytes_text(sizes[0]), bytes_text(sizes[1]), change_text(ratio), text)


def accuracy_check(old: Row, new: Row, limits: Limits) -> Check | None:
    """Return whether the new version is less accurate; None where no accuracy was measured."""
    before, after = old.accuracy, new.accuracy
    if before is None or after is None:
        return None
    unit, drop = after.unit, after.drop or Interval(math.nan)
    shown_old, shown_new = accuracy_text(before.value, unit), accuracy_text(after.value, unit)
    ends = drop_interval(drop.low, drop.high, unit)
    shown = f"{drop_text(drop.value, unit)} {ends}".rstrip()
    text = f"{after.metric} drops by {shown} {unit}"
    if limits.max_drop is not None:
        state: State = "passed" if drop.value <= limits.max_drop else "failed"  # NaN fails
        text += f"; at most {drop_text(limits.max_drop, unit)} is allowed"
    elif drop.low is None:
        state = "passed" if drop.value <= 0 else "undecided"
        text += "; too few samples for an interval"
    else:
        state = "passed" if drop.low <= 0 else "failed"
        text += "; a drop whose interval contains 0 is allowed"
    hint = "give `max_drop`, or ten samples or more" if state == "undecided" else ""
    return Check("accuracy", state, shown_old, shown_new, f"drop {shown} {unit}", text, hint)


def outputs_check(old: Row, new: Row, limits: Limits, *, has_data: bool) -> Check | None:
    """Return whether the outputs are the same; None where they were not compared.

    With "auto" they decide where no accuracy does, both versions have one precision, and the samples say
    something of it: random input says little of a quantized model.
    """
    difference = new.difference
    if difference is None:
        return None
    change = f"SNR {decibels(difference.snr_db)}"
    said = difference.criterion  # of other shapes it is a whole sentence
    required = said if said.endswith("found") else f"{said} is required"
    text = f"outputs {'agree' if difference.passed else 'differ'}: {change}; {required}"
    if difference.passed:
        return Check("outputs", "passed", "", "", change, text)
    if limits.outputs == "any":
        return Check("outputs", "skipped", "", "", change, f"{text} only with `outputs` same")
    if limits.outputs == "auto":
        why = ""
        if new.accuracy is not None:
            why = "accuracy decides"
        elif old.precision != new.precision:
            why = f"the precisions differ ({old.precision}, {new.precision})"
        elif not has_data and new.precision not in FLOATS:
            why = f"random input says little of {new.precision}: give `data`"
        if why:
            return Check("outputs", "skipped", "", "", change, f"{text}, but {why}")
    return Check("outputs", "failed", "", "", change, text)


def percent(share: float) -> str:
    """Return a share as "2%"."""
    return f"{100.0 * share:.3g}%"


def interval_text(found: Slowdown) -> str:
    """Return a slowdown with its interval; all three as percentages, or all as factors."""
    values = (found.value, found.low, found.high)
    shown = [change_text(value, of=values) for value in values]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]"


def change_text(ratio: float, of: Sequence[float] = ()) -> str:
    """Return a ratio as a signed change: "+5.1%"; as "3.1x" if it or one of `of` changes by over a half."""
    if not all(0.5 < one < 1.5 for one in of or (ratio,)):
        return f"{ratio:.3g}x"
    return f"{100.0 * (ratio - 1.0):+.1f}%".replace("-", "\N{MINUS SIGN}")


# When a new version is slower than the limit, when it is not, and when to measure on.
#
# Old and new run in the rounds of the same launches, so a launch gives one number: the median over its rounds
# of `log(new / old)`. The launches are the samples: two processes of one file differ for as long as they live
# (see `statistics.speedup`). Student's interval of their mean, with the moderated variance, is compared with
# the limit after each launch:
#
# 1. all of it beyond the limit: slower;
# 2. all of it below the limit: not slower;
# 3. else another launch, until the time is over: undecided.
#
# A test that looks again and again errs more often than one that looks once. Pocock (Biometrika 64, 1977)
# keeps the error of all looks together at a bound with one stricter level for each; applied to Student's t
# it is the significance level approach (Jennison and Turnbull, Group Sequential Methods, 2000, 4.4). For
# ten looks and 5% on both sides together the level of each is 1.06%, so the intervals of 99% (`CONFIDENCE`)
# at most ten times err at most 2.5% on each side, where processes differ no more than the prior says. This
# is the error at the limit itself. A version that is as fast as the old one is a whole limit away from it:
# a false alarm needs an error of the limit and half the interval. `tests/bench/gate/test_gate.py` has the
# rates of other machines.
#
# One or two launches cannot show how far processes differ, and a prior that is too narrow would be believed.
# Their interval is three times as wide, which is enough for what is much slower or much faster.


FEWEST_LAUNCHES = 3
MOST_LAUNCHES = 12  # ten looks from the third launch on
_FEW_WIDER = 3.0

Decision = Literal["slower", "not slower", "undecided"]


@dataclass(frozen=True)
class Slowdown:
    """How many times longer the new version takes.

    Attributes:
        value: Geometric mean over launches of the median over rounds of new time / old time.
        low, high: Its interval, which `decide` compares with the limit.
        launches, rounds: How many counted.
    """

    value: float
    low: float
    high: float
    launches: int
    rounds: int


def slowdown(old_ms: Launches, new_ms: Launches) -> Slowdown | None:
    """Return the slowdown of launches that shared their rounds; None of too few rounds."""
    shared = sum(min(len(old), len(new)) for old, new in zip(old_ms, new_ms, strict=False))
    if shared < FEWEST_ROUNDS:
        return None
    level = ratio_level(old_ms, new_ms)
    half = half_width([level], CONFIDENCE) * (1.0 if level.launches >= FEWEST_LAUNCHES else _FEW_WIDER)
    low, high = math.exp(-level.mean - half), math.exp(-level.mean + half)
    return Slowdown(math.exp(-level.mean), low, high, level.launches, level.rounds)


def decide(found: Slowdown | None, limit: float) -> Decision:
    """Return what an interval says of a limit.

    Args:
        found: Slowdown with its interval; None is undecided.
        limit: Share by which the new version may be slower: 0.02 is 2%.
    """
    if found is None:
        return "undecided"
    if found.low > 1.0 + limit:
        return "slower"
    return "not slower" if found.high < 1.0 + limit else "undecided"


@dataclass(frozen=True)
class GateRule:
    """The rule of one gate, as `measure` asks it.

    Attributes:
        old, new: Names of the two in what was timed.
        limit: As of `decide`.
    """

    old: str
    new: str
    limit: float

    def __call__(self, timed: Mapping[str, TimingSeries], /) -> bool:
        """Return whether the launches decide, or are as many as the rule is made for."""
        old_ms, new_ms = timed[self.old].launches_ms, timed[self.new].launches_ms
        found = slowdown(old_ms, new_ms)
        return decide(found, self.limit) != "undecided" or (
            found is not None and found.launches >= MOST_LAUNCHES
        )
