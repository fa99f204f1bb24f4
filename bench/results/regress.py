"""Compare new results with old ones: latency, size and accuracy against limits.

The two runs share no rounds, so their levels are two means over launches, and the interval is that of their
difference. It cannot contain that the machine itself was slower that day: `relative` compares the speed-ups
against each run's own baseline instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ...errors import InvalidOption
from ...spec.decode import spec_from_call
from ...spec.measure import CompareSpec
from ...spec.words import CUDA_GRAPH
from ..environment import machine_of, machine_text
from ..statistics import FEWEST_ROUNDS, Launches, Speedup, level_of, logarithms, speedup_with_interval
from .results import Results
from .row import Row, Unit

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import CompareKeywords

_SAME_SETTINGS = ("threads", "inputs")
Kind = Literal["slower", "larger", "accuracy"]
KINDS: tuple[Kind, ...] = ("slower", "larger", "accuracy")


class Limit(NamedTuple):
    """What must not happen: slower or larger by more than a share, or accuracy lost in points."""

    kind: Kind
    amount: float
    text: str


@dataclass(frozen=True)
class Change:
    """One artifact in both results.

    Attributes:
        speedup: Of new against old: 0.95 is 5% slower. None where it cannot be; `reason` says why.
        size_ratio: New file by old; None for a MODEL.
        gain: How much better the accuracy is, in `unit`; negative where it is worse.
        broken: The limits that this breaks, as they were given.
    """

    name: str
    old_ms: float | None = None
    new_ms: float | None = None
    speedup: Speedup | None = None
    size_ratio: float | None = None
    gain: float | None = None
    unit: Unit = "points"
    reason: str = ""
    broken: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "old_ms": self.old_ms,
            "new_ms": self.new_ms,
            "speedup": self.speedup and self.speedup.as_json(),
            "size_ratio": self.size_ratio,
            "accuracy_points": self.gain if self.unit == "points" else None,
            "accuracy_gain": self.gain,
            "reason": self.reason,
            "broken": list(self.broken),
        }


@dataclass
class Regression:
    """The comparison of two runs, the new run's artifacts first; true when no limit is broken."""

    changes: list[Change]
    same_machine: bool
    machines: tuple[str, str]
    relative: bool

    def __bool__(self) -> bool:
        return not any(change.broken for change in self.changes)

    def as_json(self) -> dict[str, Any]:
        return {
            "passed": bool(self),
            "same_machine": self.same_machine,
            "machines": list(self.machines),
            "relative_to_baseline": self.relative,
            "artifacts": [change.as_json() for change in self.changes],
        }


def compare_results(
    old: Results,
    new: Results,
    spec: CompareSpec | None = None,
    /,
    **options: Unpack[CompareKeywords],
) -> Regression:
    """Compare two runs; with limits, an artifact that was measured before and is not now fails too."""
    spec = spec_from_call(CompareSpec, spec, options)
    limits = [parse_limit(text) for text in spec.limits]
    relative, across_machines = spec.relative, spec.across_machines
    machines = machine_text(old.environment), machine_text(new.environment)
    same = _machines(old) == _machines(new)
    if not same and not across_machines:
        differing = "" if machines[0] != machines[1] else _differing(_machines(old), _machines(new))
        raise InvalidOption(
            f"results of different machines: {machines[0]}; {machines[1]}{differing}",
            hint="measure both on one machine, or give `across_machines` to see them side by side",
            option="across_machines",
        )
    if across_machines and limits:
        raise InvalidOption("`limits`: results of different machines have no verdict", option="limits")
    for name in _SAME_SETTINGS:
        first, second = old.settings.get(name), new.settings.get(name)
        if first != second:
            raise InvalidOption(f"results of different {name}: {first}; {second}: measure both alike")
    if relative and old.baseline != new.baseline:
        raise InvalidOption(f"results of different baselines: {old.baseline}; {new.baseline}")
    if relative and not all(_measured(results, results.baseline) for results in (old, new)):
        raise InvalidOption(f"`relative`: the baseline {old.baseline} was not measured", option="relative")
    names = dict.fromkeys([row.name for row in (*new.rows, *old.rows)])
    changes = [
        _change(name, old, new, limits, relative=relative, verdict=not across_machines) for name in names
    ]
    return Regression(changes, same, machines, relative)


def parse_limit(text: str) -> Limit:
    """Read `slower:5%`, `larger:10%` or `accuracy:0.5` (points)."""
    kind, colon, amount = text.partition(":")
    number = amount.removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    wants_percent = kind != "accuracy"
    if not colon or kind not in KINDS or not 0 <= value < math.inf or wants_percent != amount.endswith("%"):
        raise InvalidOption(
            f"`limits` {text!r}: slower:PERCENT%, larger:PERCENT% or accuracy:POINTS is required",
            hint="write for instance slower:5%",
            option="limits",
        )
    return Limit(KINDS[KINDS.index(kind)], value / 100.0 if wants_percent else value, text)


def unpaired_speedup(old_ms: Launches, new_ms: Launches) -> Speedup:
    """Return how many times faster new launches are than old ones that were measured at another time."""
    counts = [sum(map(len, launches)) for launches in (old_ms, new_ms)]
    if min(counts) < FEWEST_ROUNDS:
        raise InvalidOption(
            f"the old results have {counts[0]} rounds, the new ones {counts[1]}; "
            f"at least {FEWEST_ROUNDS} of each are required",
            hint="raise `max_time_s`",
        )
    old, new = (level_of(logarithms(launches)) for launches in (old_ms, new_ms))
    return speedup_with_interval(old.mean - new.mean, [old, new])


def _change(
    name: str, old: Results, new: Results, limits: Sequence[Limit], *, relative: bool, verdict: bool
) -> Change:
    before, after = _measured(old, name), _measured(new, name)
    if before is None or after is None:
        reason = f"not measured in the {'old' if before is None else 'new'} results"
        return Change(name, reason=reason, broken=(reason,) if after is None and limits else ())
    change = Change(
        name,
        before.latency.median_ms if before.latency else None,
        after.latency.median_ms if after.latency else None,
        size_ratio=after.size_bytes / before.size_bytes if before.size_bytes and after.size_bytes else None,
        gain=after.accuracy.gain_on(before.accuracy) if before.accuracy and after.accuracy else None,
        unit=after.accuracy.unit if after.accuracy else "points",
    )
    if (place := _place(before)) != _place(after):
        reason = f"ran on {place}, and now on {_place(after)}"
        return replace(change, reason=reason, broken=(reason,) if limits else ())
    if not verdict:
        return change
    try:
        ratio = unpaired_speedup(_launches(old, before, relative), _launches(new, after, relative))
        change = replace(change, speedup=ratio)
    except InvalidOption as error:
        change = replace(change, reason=error.message)
    return replace(change, broken=tuple(limit.text for limit in limits if _breaks(change, limit)))


def _place(row: Row) -> str:
    graph = "with CUDA graphs" if row.mode == CUDA_GRAPH else ""
    return " ".join(filter(None, (row.machine, row.device, graph)))


def _launches(results: Results, row: Row, relative: bool) -> Launches:
    if not relative:
        return row.launches_ms
    base = results.row(results.baseline_of(row)).launches_ms
    # A smaller ratio is a faster artifact, as with latencies. An interrupted round has some of them.
    return [[ms / base_ms for ms, base_ms in zip(*pair, strict=False)]
            for pair in zip(row.launches_ms, base, strict=False)]  # fmt: skip


def _machines(results: Results) -> list[dict[str, Any]]:
    measured = [machine.environment for machine in results.machines.values()]
    return [machine_of(environment) for environment in measured or [results.environment]]


def _differing(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> str:
    """Name what differs between machines that read alike."""
    if len(old) != len(new):
        return f" ({len(old)} and {len(new)} machines)"
    first, second = next(pair for pair in zip(old, new, strict=True) if pair[0] != pair[1])
    differences = []
    for name in first:
        a, b = first[name], second[name]
        if isinstance(a, list) and isinstance(b, list) and a != b:
            differences.append(f"{name}: {', '.join(sorted(map(str, {*a} ^ {*b})))} in one alone")
        elif a != b:
            differences.append(f"{name}: {a} and {b}")
    return f" ({'; '.join(differences)})"


def _breaks(change: Change, limit: Limit) -> bool:
    if limit.kind == "slower":
        # Sure to be slower by that much: the whole interval is.
        return change.speedup is not None and change.speedup.high < 1.0 / (1.0 + limit.amount)
    if limit.kind == "larger":
        return change.size_ratio is not None and change.size_ratio > 1.0 + limit.amount
    return change.gain is not None and -change.gain > limit.amount


def _measured(results: Results, name: str) -> Row | None:
    return next((row for row in results.rows if row.name == name and row.status == "measured"), None)
