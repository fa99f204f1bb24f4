"""Recommend an artifact, with the reasons in words: the one rule of `report`, `run` and `auto`.

1. An artifact qualifies if its interval shows no loss of accuracy: `low <= 0`. Within a budget, the upper end
   must meet it: `high <= max_drop`. Without an interval, the drop itself must, and a caveat reports this. If
   accuracy was not measured, the outputs must have passed the comparison with the baseline's. Size and
   latency must meet the budget, too.
2. The fastest qualified artifact is recommended, unless
3. a smaller one is as fast: round by round, the whole interval of their ratio is within `_SAME_SPEED`, or
4. it is not faster than the baseline. Then the baseline is recommended, if it meets the budget itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from msgspec import structs

from ...core.figures import (
    accuracy_text,
    bytes_text,
    counted,
    decibels,
    drop_interval,
    drop_text,
    figure,
    times,
)
from ...errors import InvalidOption
from ...spec.measure import Budget
from ..results.drop import unproven
from ..results.render import interval_words, speedup_text
from ..results.row import Row
from ..results.statistics import DROP_CONFIDENCE, Speedup, speedup
from .source import NO_BUDGET, ReportedArtifact, ReportSource

_BYTES_PER_MB = 1e6
_NOTICEABLE_POINTS = 1.0
"""If a drop's interval reaches this far, a caveat reports that more samples are needed."""
_SAME_SPEED = 0.1
"""Two artifacts are as fast if the interval of their ratio is within this share of 1."""


class Fact(NamedTuple):
    """One figure at the top of the report: its label, its value, and a line below."""

    label: str
    value: str
    detail: str


@dataclass(frozen=True)
class Summary:
    """Top of the report: the recommended artifact, if any, with its figures, the reasons, and caveats."""

    recommended: ReportedArtifact | None
    headline: str
    facts: Sequence[Fact] = ()
    reasons: Sequence[str] = ()
    caveats: Sequence[str] = ()
    title: str = "No recommendation"


def summarize(source: ReportSource) -> Summary:
    """Choose an artifact and give the reasons; in a sweep, one artifact for each model and shape."""
    if source.results.settings.get("sweep") and len(source.results.machines) > 1:
        reasons = []
        for name, machine in source.results.machines.items():  # speed-ups compare within one machine only
            subjects = [subject for subject in source.subjects if subject.row.machine == name]
            results = structs.replace(source.results, baseline=machine.baseline, machines={})
            part = summarize(replace(source, subjects=subjects, results=results))
            reasons.append(
                f"{name}: {f'{part.recommended.label}. ' if part.recommended else ''}{part.headline}"
            )
        headline = "One recommendation for each model and shape."
        return Summary(None, headline, (), reasons, _caveats(source, None), title="Recommendations")
    measured = source.measured
    if not measured:
        return Summary(None, "No artifact was measured.", caveats=_caveats(source, None))
    base = source.baseline
    if base not in measured:
        headline = "The baseline was not measured, so no artifact can be compared."
        return Summary(None, headline, caveats=_caveats(source, None))
    allowed = [subject for subject in measured if why_not(subject, source.budget) is None]
    if not allowed:
        reasons = [f"{subject.label}: {why_not(subject, source.budget)}." for subject in measured]
        return Summary(None, "No artifact meets the budget.", (), reasons, _caveats(source, None))
    # A baseline that exceeds the budget does not exclude artifacts that are no faster than it.
    eligible = [s for s in allowed if s.is_baseline or s.verdict == "faster" or base not in allowed]
    recommended, equals = _smallest_of_fastest(eligible) if eligible else (base, [])
    if recommended.is_baseline:
        recommended = base
    return Summary(
        recommended,
        _headline(source, recommended, len(measured)),
        _facts(source, recommended),
        [*_reasons(source, recommended, equals, allowed), *_alternatives(source, recommended)],
        _caveats(source, recommended),
    )


def why_not(subject: ReportedArtifact, budget: Budget = NO_BUDGET) -> str | None:
    """Return the reason why an artifact may not be recommended, or None."""
    if exceeded := excesses(budget, subject.row):
        return f"it exceeds the budget: {'; '.join(exceeded)}"
    if subject.is_baseline:
        return None
    if (difference := subject.row.difference) is not None and difference.mismatch:
        return f"its outputs are not the baseline's: {difference.mismatch}"
    drop, unit, max_drop = subject.drop, subject.drop_unit, budget.max_drop
    if drop is not None:
        end, allowed = (drop.low, 0.0) if max_drop is None else (drop.high, max_drop)
        if (drop.value if end is None else end) <= allowed:
            return None
        ends = drop_interval(drop.low, drop.high, unit)
        if max_drop is not None and drop.value <= max_drop and subject.row.accuracy:
            return unproven(subject.row.accuracy, max_drop)
        return f"it loses {drop_text(drop.value, unit)} {unit} {ends}".strip()
    if difference is not None and not difference.passed:
        return "its outputs differ from the baseline's beyond the tolerance"
    return None


def excesses(budget: Budget, row: Row) -> tuple[str, ...]:
    """Return the limits of size and latency that an artifact exceeds, in words.

    The figures are compared, not their intervals: a file has one size, and a latency limit is for the machine
    at hand. A figure that was not measured exceeds its limit.
    """
    latency_ms = row.latency.median_ms if row.latency else None
    size_mb = row.size_bytes / _BYTES_PER_MB if row.size_bytes is not None else None
    limits = (
        ("size", "MB", size_mb, budget.max_size_mb, "its size is unknown"),
        ("latency", "ms", latency_ms, budget.max_latency_ms, "its latency was not measured"),
    )
    return tuple(
        unknown if value is None else f"{name} {figure(value)} {unit}, at most {figure(limit)}"
        for name, unit, value, limit, unknown in limits
        if limit is not None and (value is None or value > limit)
    )


def compare_speed(subject: ReportedArtifact, other: ReportedArtifact) -> Speedup | None:
    """Return how many times faster `subject` is, round by round; None if they cannot be compared."""
    if subject.row.machine != other.row.machine:
        return None
    try:
        return speedup(other.row.launches_ms, subject.row.launches_ms)
    except InvalidOption:  # too few rounds, or a worker failed in between: no verdict
        return None


def _smallest_of_fastest(
    subjects: Sequence[ReportedArtifact],
) -> tuple[ReportedArtifact, list[ReportedArtifact]]:
    """Return the fastest artifact, or the smallest that is as fast, and the others that are as fast."""
    fastest = max(subjects, key=_speed)
    for subject in subjects:  # two speed-ups over the baseline do not compare the two with each other
        if (ratio := compare_speed(subject, fastest)) and ratio.verdict == "faster":
            fastest = subject
    ties = [
        subject for subject in subjects
        if subject is not fastest and (ratio := compare_speed(subject, fastest)) and _is_same_speed(ratio)
    ]  # fmt: skip
    equals, best = [fastest, *ties], fastest
    if fastest.size_bytes is not None:
        sized = [subject for subject in equals if subject.size_bytes is not None]
        best = min(sized, key=lambda subject: (subject.size_bytes or 0.0, -_speed(subject)))
    return best, [subject for subject in equals if subject is not best]


def _is_same_speed(ratio: Speedup) -> bool:
    return ratio.low > 1.0 / (1.0 + _SAME_SPEED) and ratio.high < 1.0 + _SAME_SPEED


def _speed(subject: ReportedArtifact) -> float:
    return 1.0 if subject.speedup is None else subject.speedup.value


def _headline(source: ReportSource, recommended: ReportedArtifact, measured: int) -> str:
    if measured == 1:
        return "Only one artifact was measured, so there is no comparison."
    if recommended is source.baseline and not any(subject.verdict for subject in source.measured):
        return "Too few rounds were measured to compare the baseline with the other artifacts."
    budget = source.budget.max_drop
    if recommended is source.baseline:
        limit = "without losing accuracy" if budget is None else f"within the budget of {_budget(source)}"
        return f"No other artifact is significantly faster {limit}."
    if source.budget.limits.keys() - {"max_drop"}:
        return "The fastest artifact within the budget."
    if recommended.drop is not None and budget is not None:
        interval = "" if recommended.drop.high is None else f", the {DROP_CONFIDENCE:.0%} interval included"
        return f"The fastest artifact that drops by no more than {_budget(source)}{interval}."
    if recommended.drop is not None:
        interval = "" if recommended.drop.low is None else f" that its {DROP_CONFIDENCE:.0%} interval shows"
        return f"The fastest artifact that lost no accuracy{interval}."
    if recommended.row.difference is not None and recommended.row.difference.passed:
        return "The fastest artifact whose outputs agree with the baseline's."
    return "The fastest artifact; its accuracy was not measured."


def _budget(source: ReportSource) -> str:
    unit = next((subject.drop_unit for subject in source.measured if subject.drop is not None), "points")
    return f"{drop_text(source.budget.max_drop, unit)} {unit}"


def _facts(source: ReportSource, recommended: ReportedArtifact) -> list[Fact]:
    base = source.baseline_of(recommended)
    latency = f"{figure(recommended.latency_ms)} ms a call"
    facts = [Fact("median latency", f"{figure(recommended.latency_ms)} ms", "the baseline")]
    if recommended.speedup and base:
        value, interval = speedup_text(recommended.speedup)
        interval += f", {interval_words(source.results.confidence)}"
        facts = [Fact(f"speed-up against {base.label}", value, f"{interval} · {latency}")]
    reduction = recommended.row.size_ratio
    size_note = "" if recommended.size_bytes is not None else "a model in Python has no file"
    if reduction and reduction > 1.005 and not recommended.is_baseline:
        size_note = f"{times(reduction)} smaller"
    facts.append(Fact("size", bytes_text(recommended.size_bytes), size_note))
    accuracy, difference = recommended.row.accuracy, recommended.row.difference
    if accuracy is not None and recommended.drop is not None:
        unit = recommended.drop_unit
        interval = drop_interval(recommended.drop.low, recommended.drop.high, unit)
        drop = f"drop {drop_text(recommended.drop.value, unit)} {interval} {unit}".replace("  ", " ")
        detail = "the baseline" if recommended.is_baseline else drop
        facts.append(Fact(accuracy.metric, accuracy_text(accuracy.value, unit), detail))
        return facts
    detail = f"output SNR {decibels(difference.snr_db)}" if difference else ""
    return [*facts, Fact("accuracy", "not measured", detail)]


def _reasons(
    source: ReportSource,
    recommended: ReportedArtifact,
    equals: Sequence[ReportedArtifact],
    allowed: Sequence[ReportedArtifact],
) -> list[str]:
    sentences = []
    count = len(source.measured)
    if recommended.is_baseline:
        slow = [s.label for s in allowed if not s.is_baseline]
        return [f"No loss of accuracy, but no significant speed-up: {join_names(slow)}."] if slow else []
    if equals:
        names = join_names([f"{s.label} ({bytes_text(s.size_bytes)})" for s in equals])
        smallest = any((s.size_bytes or 0.0) > (recommended.size_bytes or 0.0) for s in equals)
        better = (
            f"it is smaller ({bytes_text(recommended.size_bytes)})" if smallest else "its median is the best"
        )
        sentences.append(f"It is as fast as {names} within {_SAME_SPEED:.0%}; {better}.")
    unclear = [
        s for s in allowed if s is not recommended and s not in equals and not _is_slower(s, recommended)
    ]
    if unclear:
        names = join_names([s.label for s in unclear])
        sentences.append(f"The measurement does not separate its speed from that of {names}: measure longer.")
    elif count > 2 and not equals:
        kind = "" if len(allowed) == count else f" of the {len(allowed)} without a loss of accuracy"
        sentences.append(f"Faster than every other{kind}.")
    accuracy = recommended.row.accuracy
    if accuracy is not None and accuracy.statement:
        sentences.append(f"Drop of {accuracy.metric}: {accuracy.statement}.")
    if accuracy is not None and accuracy.agreement is not None:
        least = f" (at least {low:.2%})" if (low := accuracy.agreement_low) is not None else ""
        text = f"Its prediction equals the baseline's for {accuracy.agreement:.2%} of the samples{least}."
        sentences.append(text)
    return sentences


def _is_slower(subject: ReportedArtifact, other: ReportedArtifact) -> bool:
    """Return whether `subject` is slower beyond doubt, or in another measurement."""
    ratio = compare_speed(subject, other)
    return ratio is None or ratio.verdict == "slower"


def _alternatives(source: ReportSource, recommended: ReportedArtifact) -> list[str]:
    sentences = []
    measured = source.measured
    fastest = max(measured, key=_speed)
    reason = why_not(fastest, source.budget)
    if fastest is not recommended and reason:
        sentences.append(f"{fastest.label} is the fastest ({times(_speed(fastest))}), but {reason}.")
    sized = [subject for subject in measured if subject.size_bytes is not None]
    smallest = min(sized, key=lambda subject: subject.size_bytes or 0.0, default=None)
    if smallest is not None and smallest is not recommended and smallest.size_bytes != recommended.size_bytes:
        objection = why_not(smallest, source.budget)
        text = f"{smallest.label} is the smallest ({bytes_text(smallest.size_bytes)})"
        speed = f", at {times(smallest.speedup.value)}" if smallest.speedup else ""
        sentences.append(f"{text}, but {objection}." if objection else f"{text}{speed}.")
    return sentences


def _caveats(source: ReportSource, recommended: ReportedArtifact | None) -> list[str]:
    noise = source.results.environment.get("noise") or {}
    cautions = []
    if source.results.interrupted:
        cautions.append("Measuring was interrupted: the results are incomplete.")
    if noise.get("noisy"):
        cautions += [f"Noisy run: {reason}." for reason in noise.get("reasons") or ["no reason was recorded"]]
    if machines := source.results.machines:
        names = join_names(list(machines))
        cautions.append(f"Several measurements ({names}): each row is compared with its own baseline.")
    if source.baseline and source.baseline.row.accuracy and source.baseline.row.accuracy.suspicion:
        cautions.append(f"{source.baseline.row.accuracy.suspicion}.")
    cautions += _slow_int8(source.measured)
    if recommended is not None:
        cautions += _weak_accuracy(recommended, source.budget.max_drop)
        cautions += [f"{recommended.label}: {text}." for text in recommended.row.warnings]
    for status, words in (("failed", "failed"), ("not run", "could not run here")):
        if unmeasured := [s.label for s in source.subjects if s.row.status == status]:
            cautions.append(f"{join_names(unmeasured)} {words}; the reasons are below.")
    return list(dict.fromkeys(cautions))


def _slow_int8(measured: Sequence[ReportedArtifact]) -> list[str]:
    cautions = []
    for quantized in (s for s in measured if s.family in ("int8", "low")):
        floats = [s for s in measured if s.family == "float" and s.row.engine == quantized.row.engine]
        if not floats:
            continue
        plain = max(floats, key=_speed)
        ratio = compare_speed(quantized, plain)
        if ratio is not None and ratio.verdict == "slower":
            cautions.append(
                f"{quantized.label} is slower than {plain.label} "
                f"({' '.join(speedup_text(ratio))}): use the float artifact."
            )
    return cautions


def _weak_accuracy(recommended: ReportedArtifact, max_drop: float | None) -> list[str]:
    if recommended.is_baseline:
        return []
    if recommended.drop is None:
        return ["Accuracy was not measured: give `evaluation` with labelled samples."]
    high, samples = recommended.drop.high, recommended.row.accuracy and recommended.row.accuracy.samples
    if recommended.drop.low is None or high is None:
        return [f"The drop has no interval: {counted(samples or 'too few', 'sample')} cannot bound it."]
    if max_drop is None and recommended.drop_unit == "points" and high >= _NOTICEABLE_POINTS:
        return [
            f"The drop may be as large as {drop_text(high, 'points')} points: "
            f"{counted(samples, 'sample')} cannot bound it closer."
        ]
    return []


def join_names(names: Sequence[str]) -> str:
    """Return names as part of a sentence, "a, b and c"; after six, "n more"."""
    shown = list(names[:6])
    if len(names) > len(shown):
        shown.append(f"{len(names) - len(shown)} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
