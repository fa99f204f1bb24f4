"""State in one sentence which artifact to use, and the reasons against the others, for `qcompile auto`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...core.figures import accuracy_text, bytes_text, counted, drop_interval, drop_text, figure, times
from ...spec.measure import Budget
from ...spec.words import BASELINE, ORIGINAL
from ..results.render import RUNTIMES, speedup_text
from ..results.row import Interval
from ..results.statistics import Speedup
from .source import NO_BUDGET, ReportedArtifact, ReportSource, read_source
from .summary import compare_speed, join_names, summarize, why_not


@dataclass(frozen=True)
class Recommendation:
    """The recommendation of `qcompile auto`.

    Attributes:
        artifact: The artifact to use; "" if none is faster within the budget.
        nearest: If `artifact` is empty, the faster artifact with the smallest drop, else the fastest.
        over_baseline, over_onnx: Speed-up over the baseline and over FP32 on ONNX Runtime, as `value`, `low`,
            `high` and `verdict`; None if not compared.
        others: Each other artifact and the reason against it.
    """

    artifact: str
    nearest: str
    sentence: str
    over_baseline: dict[str, Any] | None
    over_onnx: dict[str, Any] | None
    others: dict[str, str]
    caveats: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def recommend(results_path: Path, *, budget: Budget = NO_BUDGET) -> Recommendation:
    """Return the artifact to use among those that `bench` or `run` measured, within a budget."""
    source = read_source(results_path, budget=budget)
    summary = summarize(source)
    recommended = summary.recommended
    if recommended is None or recommended.is_baseline:
        return _without_artifact(source, summary.headline, summary.caveats)
    reasons = {
        s.name: _why_not_this(s, recommended, source.budget)
        for s in source.subjects
        if s is not recommended and not s.is_baseline and s.name not in (BASELINE, ORIGINAL)
    }
    # On a CPU, float on ONNX Runtime is about twice as fast as PyTorch: the fairer comparison for INT8.
    floats = (s for s in source.measured if s.row.engine == "onnxruntime" and s.family == "float")
    onnx = next((s for s in floats if s.row.device == "cpu"), None)
    over_onnx = compare_speed(recommended, onnx) if onnx is not None and onnx is not recommended else None
    groups: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        groups.setdefault(reason, []).append(name)
    objections = "".join(
        f"{', ' if index else '; '}not {join_names(names)} ({reason})"
        for index, (reason, names) in enumerate(groups.items())
    )
    return Recommendation(
        recommended.name,
        "",
        f"Use {_with_runtime(recommended)}: {_gains(source, recommended, onnx, over_onnx)}{objections}.",
        recommended.speedup.as_json() if recommended.speedup else None,
        over_onnx.as_json() if over_onnx else None,
        reasons,
        tuple(summary.caveats),
    )


def _without_artifact(source: ReportSource, headline: str, caveats: Sequence[str]) -> Recommendation:
    """Return a recommendation that names only the nearest artifact and the reason against it."""
    subjects = [s for s in source.measured if not s.is_baseline and s.name not in (BASELINE, ORIGINAL)]
    fast = [subject for subject in subjects if subject.verdict == "faster"]
    best = min(fast, key=_largest_drop, default=None) or max(subjects, key=_gain, default=None)
    reasons = {s.name: why_not(s, source.budget) or "not significantly faster" for s in subjects}
    text = headline.rstrip(".")
    if best is not None:
        speed = " ".join(speedup_text(best.speedup)) if best.speedup else figure(best.latency_ms) + " ms"
        text += f"; nearest is {_with_runtime(best)}, {speed}, but {reasons[best.name]}"
    return Recommendation("", best.name if best else "", f"{text}.", None, None, reasons, tuple(caveats))


def _with_runtime(subject: ReportedArtifact) -> str:
    runtime = RUNTIMES.get(subject.row.engine, subject.row.engine)
    return f"{subject.label} ({subject.row.precision} on {runtime})"


def _gains(
    source: ReportSource,
    recommended: ReportedArtifact,
    onnx: ReportedArtifact | None,
    over_onnx: Speedup | None,
) -> str:
    base = source.baseline_of(recommended)
    assert base is not None, "the recommended artifact was compared with it"
    assert recommended.speedup is not None, "the recommended artifact is faster than the baseline"
    parts = [f"{' '.join(speedup_text(recommended.speedup))} as fast as {base.label}"]
    if over_onnx is not None and onnx is not None and not onnx.is_baseline:
        parts[0] += f" and {' '.join(speedup_text(over_onnx))} as fast as {onnx.label}"
    accuracy, drop, unit = recommended.row.accuracy, recommended.drop, recommended.drop_unit
    if accuracy is not None and drop is not None:
        ends = "" if accuracy.statement else drop_interval(drop.low, drop.high, unit)
        few = "" if ends else f"{counted(accuracy.samples or 'too few', 'sample')}: too few for an interval"
        shown = f" ({text})" if (text := accuracy.statement or few) else ""
        lost = f"{drop_text(drop.value, unit)} {unit} {ends}".strip()
        parts.append(f"{accuracy.metric} {accuracy_text(accuracy.value, unit)}, {lost} lost{shown}")
    else:
        parts.append("accuracy not measured")
    ratio = recommended.row.size_ratio
    smaller = f" ({times(ratio)} smaller)" if ratio and ratio > 1.005 else ""
    parts.append(f"{bytes_text(recommended.size_bytes)}{smaller}")
    return ", ".join(parts)


def _why_not_this(subject: ReportedArtifact, recommended: ReportedArtifact, budget: Budget) -> str:
    if not subject.is_measured:
        return "failed" if subject.row.status == "failed" else "could not run here"
    if reason := why_not(subject, budget):
        return reason
    ratio = compare_speed(recommended, subject)
    if ratio is None:
        return "not compared with it"
    # `summarize` takes the fastest eligible artifact: a faster `subject` was not significantly faster than
    # the baseline.
    reasons = {"faster": "slower", "no difference": "no faster", "slower": "not significantly faster"}
    return reasons[ratio.verdict]


def _gain(subject: ReportedArtifact) -> float:
    return subject.speedup.value if subject.speedup else 0.0


def _largest_drop(subject: ReportedArtifact) -> tuple[float, float]:
    drop = subject.drop or Interval(math.inf)
    return drop.value if drop.high is None else drop.high, -_gain(subject)
