"""New results against old ones: has an artifact become slower, larger, less accurate?

The two runs share no rounds, so their levels are two means over launches (see `launches`), and the interval
is that of their difference. A verdict is held to 99% and to differences above `compare.SMALLEST_DIFFERENCE`.

What the interval cannot contain is that the machine itself was slower that day. `relative` compares the
speed-ups against each run's own baseline instead: what slows both down is then left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..errors import InvalidOption
from .compare import FEWEST_ROUNDS, Launches, Speedup, logarithms, with_doubt
from .environment import machine_of, machine_text
from .launches import level_of
from .results import Entry, Results

_SAME_SETTINGS = ("threads", "inputs")
Kind = Literal["slower", "larger", "accuracy"]
KINDS: tuple[Kind, ...] = ("slower", "larger", "accuracy")


@dataclass(frozen=True)
class Limit:
    """What must not happen: slower or larger by more than a share, or accuracy lost in points."""

    kind: Kind
    amount: float
    text: str


@dataclass
class Change:
    """One artifact in both results.

    Attributes:
        name: Of the artifact.
        old_ms, new_ms: Median latencies.
        speedup: value, low, high, verdict of new against old: 0.95 is 5% slower. None where it cannot be.
        size_ratio: New file by old; None for a MODEL.
        accuracy_points: Accuracy gained, in points; negative when it was lost.
        reason: Why there is no comparison.
        broken: The limits that this breaks, as they were given.
    """

    name: str
    old_ms: float | None = None
    new_ms: float | None = None
    speedup: dict[str, Any] | None = None
    size_ratio: float | None = None
    accuracy_points: float | None = None
    reason: str = ""
    broken: list[str] = field(default_factory=list)


@dataclass
class Regression:
    """The comparison of two runs; true when no limit is broken.

    Attributes:
        changes: One per artifact of either run, the new run's first.
        same_machine: Whether both were measured on the same kind of machine.
        machines: The old and the new, in words.
        relative: Whether speed-ups against the own baseline were compared.
    """

    changes: list[Change]
    same_machine: bool
    machines: tuple[str, str]
    relative: bool

    def __bool__(self) -> bool:
        return not any(change.broken for change in self.changes)

    def as_json(self) -> dict[str, Any]:
        """Return the `--json` form."""
        return {
            "passed": bool(self),
            "same_machine": self.same_machine,
            "machines": list(self.machines),
            "relative_to_baseline": self.relative,
            "artifacts": [asdict(change) for change in self.changes],
        }


def compare_results(
    old: Results,
    new: Results,
    limits: Sequence[Limit] = (),
    *,
    relative: bool = False,
    across_machines: bool = False,
) -> Regression:
    """Compare two runs.

    Args:
        old: What is compared with.
        new: What is judged.
        limits: What counts as failed. An artifact that was measured before and is not now fails too.
        relative: Compare speed-ups against the own baseline, not latencies.
        across_machines: Show the figures of different machines side by side, without a verdict.

    Raises:
        InvalidOption: If machines or settings differ, so that a comparison would mean nothing.
    """
    machines = machine_text(old.environment), machine_text(new.environment)
    same = machine_of(old.environment) == machine_of(new.environment)
    if not same and not across_machines:
        raise InvalidOption(
            f"results of different machines: {machines[0]}; {machines[1]}",
            hint="measure both on one machine, or give --across-machines to see them side by side",
            option="--across-machines",
        )
    if across_machines and limits:
        raise InvalidOption("--fail-if: results of different machines have no verdict", option="--fail-if")
    for name in _SAME_SETTINGS:
        first, second = old.settings.get(name), new.settings.get(name)
        if first != second:
            raise InvalidOption(f"results of different {name}: {first}; {second}: measure both alike")
    if relative and old.baseline != new.baseline:
        raise InvalidOption(f"results of different baselines: {old.baseline}; {new.baseline}")
    names = dict.fromkeys([entry.name for entry in (*new.entries, *old.entries)])
    changes = [
        _change(name, old, new, limits, relative=relative, verdict=not across_machines) for name in names
    ]
    return Regression(changes, same, machines, relative)


def parse_limit(text: str) -> Limit:
    """Read `slower:5%`, `larger:10%` or `accuracy:0.5` (points).

    Raises:
        InvalidOption: If it is spelled otherwise.
    """
    kind, colon, amount = text.partition(":")
    number = amount.removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    wants_percent = kind != "accuracy"
    if not colon or kind not in KINDS or not 0 <= value < math.inf or wants_percent != amount.endswith("%"):
        raise InvalidOption(
            f"--fail-if {text!r}: slower:PERCENT%, larger:PERCENT% or accuracy:POINTS is required",
            hint="--fail-if slower:5%",
            option="--fail-if",
        )
    return Limit(KINDS[KINDS.index(kind)], value / 100.0 if wants_percent else value, text)


def unpaired_speedup(old_ms: Launches, new_ms: Launches) -> Speedup:
    """Return how many times faster new launches are than old ones that were measured at another time.

    Raises:
        InvalidOption: If either has fewer than `FEWEST_ROUNDS` rounds.
    """
    counts = [sum(map(len, launches)) for launches in (old_ms, new_ms)]
    if min(counts) < FEWEST_ROUNDS:
        raise InvalidOption(
            f"{counts[0]} and {counts[1]} rounds; at least {FEWEST_ROUNDS} of each are required",
            hint="measure longer: --max-time",
        )
    old, new = (level_of(logarithms(launches)) for launches in (old_ms, new_ms))
    return with_doubt(old.mean - new.mean, [old, new])


def _change(
    name: str, old: Results, new: Results, limits: Sequence[Limit], *, relative: bool, verdict: bool
) -> Change:
    before, after = _measured(old, name), _measured(new, name)
    change = Change(name)
    if before is None or after is None:
        change.reason = f"not measured in the {'old' if before is None else 'new'} results"
        if after is None and limits:
            change.broken.append(change.reason)
        return change
    change.old_ms = (before.latency_ms or {}).get("median")
    change.new_ms = (after.latency_ms or {}).get("median")
    if before.size_bytes and after.size_bytes:
        change.size_ratio = after.size_bytes / before.size_bytes
    if before.accuracy and after.accuracy and before.accuracy["metric"] == after.accuracy["metric"]:
        change.accuracy_points = (after.accuracy["value"] - before.accuracy["value"]) * 100.0
    if before.device != after.device:
        change.reason = f"ran on {before.device}, and now on {after.device}"
        change.broken = [change.reason] if limits else []
        return change
    if verdict:
        _judge_speed(change, _launches(old, before, relative), _launches(new, after, relative))
        change.broken = [limit.text for limit in limits if _breaks(change, limit)]
    return change


def _judge_speed(change: Change, old: Launches, new: Launches) -> None:
    try:
        ratio = unpaired_speedup(old, new)
    except InvalidOption as error:
        change.reason = error.message
        return
    change.speedup = {
        "value": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "verdict": ratio.verdict,
    }


def _launches(results: Results, entry: Entry, relative: bool) -> list[list[float]]:
    if not relative:
        return entry.launches_ms
    base = results.entry(results.baseline).launches_ms
    # A smaller ratio is a faster artifact, as with latencies. An interrupted round has some of them.
    return [
        [own / first for own, first in zip(*launch, strict=False)]
        for launch in zip(entry.launches_ms, base, strict=False)
    ]


def _breaks(change: Change, limit: Limit) -> bool:
    if limit.kind == "slower":
        # Sure to be slower by that much: the whole interval is.
        return change.speedup is not None and change.speedup["high"] < 1.0 / (1.0 + limit.amount)
    if limit.kind == "larger":
        return change.size_ratio is not None and change.size_ratio > 1.0 + limit.amount
    return change.accuracy_points is not None and -change.accuracy_points > limit.amount


def _measured(results: Results, name: str) -> Entry | None:
    found = (entry for entry in results.entries if entry.name == name and entry.status == "measured")
    return next(found, None)
