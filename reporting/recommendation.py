"""One sentence: which artifact to use, what it costs, and why not the others. The choice is `summarize`'s."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..bench.results.render import RUNTIMES, speedup_text
from ..bench.results.row import Interval
from ..bench.statistics import Speedup
from ..figures import accuracy_text, bytes_text, drop_interval, drop_text, figure, times
from ..spec.measure import Budget
from ..spec.words import BASELINE
from .source import NO_BUDGET, ReportedArtifact, Source, read_source
from .summary import faster, listed, summarize, why_not


@dataclass(frozen=True)
class Recommendation:
    """What `auto` ends with.

    Attributes:
        artifact, nearest: The artifact to use; where none is faster within the budget, what comes nearest.
        over_baseline, over_onnx: Speed-up over the baseline and over FP32 on ONNX Runtime, as `value`, `low`,
            `high` and `verdict`; None where there is none.
        others: Every other artifact to why it is not the one.
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
    """Return what to use of what `bench` or `run` measured, within a budget."""
    source = read_source(results_path, budget=budget)
    summary = summarize(source)
    chosen = summary.chosen
    if chosen is None or chosen.is_baseline:
        return _none(source, summary.headline, summary.caveats)
    others = {
        one.name: _why_not_this(one, chosen, source.budget)
        for one in source.subjects
        if one is not chosen and not one.is_baseline and one.name != BASELINE
    }
    # FP32 on ONNX Runtime on the processor is about twice as fast as PyTorch, and the fairer comparison.
    fitting = (
        one for one in source.measured
        if one.row.engine == "onnxruntime" and one.family == "float" and one.row.device == "cpu"
    )  # fmt: skip
    onnx = next(fitting, None)
    over_onnx = faster(chosen, onnx) if onnx is not None and onnx is not chosen else None
    groups: dict[str, list[str]] = {}
    for name, reason in others.items():
        groups.setdefault(reason, []).append(name)
    against = "".join(
        f"{', ' if index else '; '}not {listed(names)} ({reason})"
        for index, (reason, names) in enumerate(groups.items())
    )
    return Recommendation(
        chosen.name,
        "",
        f"Use {_described(chosen)}: {_gains(source, chosen, onnx, over_onnx)}{against}.",
        chosen.speedup.as_json() if chosen.speedup else None,
        over_onnx.as_json() if over_onnx else None,
        others,
        tuple(summary.caveats),
    )


def _none(source: Source, headline: str, caveats: Sequence[str]) -> Recommendation:
    """Nothing is faster within the budget: what comes nearest, and what speaks against it."""
    others = [one for one in source.measured if not one.is_baseline and one.name != BASELINE]
    quick = [one for one in others if one.verdict == "faster"]
    near = min(quick, key=_largest_drop, default=None) or max(others, key=_gain, default=None)
    reasons = {one.name: why_not(one, source.budget) or "not surely faster" for one in others}
    text = headline.rstrip(".")
    if near is not None:
        speed = " ".join(speedup_text(near.speedup)) if near.speedup else figure(near.latency_ms) + " ms"
        text += f"; nearest is {_described(near)}, {speed}, but {reasons[near.name]}"
    return Recommendation("", near.name if near else "", f"{text}.", None, None, reasons, tuple(caveats))


def _described(one: ReportedArtifact) -> str:
    runtime = RUNTIMES.get(one.row.engine, one.row.engine)
    return f"{one.label} ({one.row.precision} on {runtime})"


def _gains(
    source: Source, chosen: ReportedArtifact, onnx: ReportedArtifact | None, over_onnx: Speedup | None
) -> str:
    base = source.baseline_of(chosen)
    assert base is not None, "the chosen was compared with it"
    assert chosen.speedup is not None, "the chosen is faster than the baseline"
    parts = [f"{' '.join(speedup_text(chosen.speedup))} as fast as {base.label}"]
    if over_onnx is not None and onnx is not None:
        parts[0] += f" and {' '.join(speedup_text(over_onnx))} as fast as {onnx.label}"
    accuracy, drop, unit = chosen.row.accuracy, chosen.drop, chosen.drop_unit
    if accuracy is not None and drop is not None:
        ends = drop_interval(drop.low, drop.high, unit)
        few = "" if ends else f" ({accuracy.samples or 'too few'} samples: too few for an interval)"
        value = accuracy_text(accuracy.value, unit)
        lost = f"{drop_text(drop.value, unit)} {unit} {ends}".strip()
        parts.append(f"{accuracy.metric} {value}, {lost} lost{few}")
    else:
        parts.append("accuracy not measured")
    ratio = chosen.row.size_ratio
    smaller = f" ({times(ratio)} smaller)" if ratio and ratio > 1.005 else ""
    parts.append(f"{bytes_text(chosen.size_bytes)}{smaller}")
    return ", ".join(parts)


def _why_not_this(one: ReportedArtifact, chosen: ReportedArtifact, budget: Budget) -> str:
    if not one.is_measured:
        return "failed" if one.row.status == "failed" else "could not run here"
    ratio = faster(chosen, one)
    is_equal = ratio is not None and ratio.verdict == "no difference"
    return why_not(one, budget) or ("no faster" if is_equal else "slower")


def _gain(one: ReportedArtifact) -> float:
    return one.speedup.value if one.speedup else 0.0


def _largest_drop(one: ReportedArtifact) -> tuple[float, float]:
    drop = one.drop or Interval(math.inf)
    return drop.value if drop.high is None else drop.high, -_gain(one)
