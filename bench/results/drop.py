"""Word the evidence for a drop in accuracy, and compute the number of samples that a budget needs."""

from __future__ import annotations

from typing import NamedTuple

from ...core.figures import counted, drop_interval, drop_text
from ..metrics.bounds import fewest_samples, samples_that_prove
from .row import Accuracy, Unit
from .statistics import DROP_CONFIDENCE

EXACT = ("fp64", "fp32")
"""Precisions that compute the baseline's function: these artifacts do not count as candidates."""


def statement(accuracy: Accuracy) -> str:
    """Return the samples' evidence: "500 samples, none changed: at most 0.76 points with 95% confidence".

    Empty for the baseline.
    """
    drop, changed = accuracy.drop, accuracy.changed
    if drop is None or changed is None:
        return ""
    balance = f" ({accuracy.lost} lost, {accuracy.gained} gained)" if accuracy.lost or accuracy.gained else ""
    noun = "samples" if accuracy.units == accuracy.samples else "batches"
    text = f"{accuracy.units} {noun}, {changed or 'none'} changed{balance}: "
    if drop.high is None:
        return text + ("too few for a bound" if changed else "no bound, as a sample may lose any amount")
    shown = f"{drop_text(abs(drop.high), accuracy.unit)} {accuracy.unit}"
    limit = f"at most {shown}" if drop.high >= 0 else f"better by at least {shown}"
    family = f" for {accuracy.candidates} candidates together" if accuracy.candidates > 1 else ""
    return f"{text}{limit} with {DROP_CONFIDENCE:.0%} confidence{family}"


def samples_needed(accuracy: Accuracy, max_drop: float) -> int | None:
    """Return about how many samples would prove a budget; None if the drop exceeds it or lacks a bound."""
    samples, drop = accuracy.samples, accuracy.drop
    if not samples or drop is None or drop.high is None or drop.value >= max_drop:
        return None
    if accuracy.lost is not None and accuracy.gained is not None:
        share = share_of(max_drop, accuracy.unit)
        return samples_that_prove(accuracy.lost, accuracy.gained, samples, share, accuracy.candidates)
    # The width of an interval shrinks with the square root of the number of samples.
    count = round(samples * ((drop.high - drop.value) / (max_drop - drop.value)) ** 2)
    fewest = fewest_samples(share_of(max_drop, "points"), accuracy.candidates)
    return max(count, fewest) if accuracy.unit == "points" else count


def unproven(accuracy: Accuracy, max_drop: float) -> str:
    """Return that the samples do not prove a budget which the drop meets, and about how many would."""
    drop, unit = accuracy.drop, accuracy.unit
    assert drop is not None, "the baseline meets every budget"
    assert drop.high is not None, "without an interval, the drop decides"
    count = samples_needed(accuracy, max_drop)
    needed = f"; about {count:,} would" if count else ""
    shown = drop_text(max_drop, unit)
    beyond = f" (the upper end is {drop.high:.4g})" if drop_text(drop.high, unit) == shown else ""
    return (
        f"it loses {drop_text(drop.value, unit)} {unit} {drop_interval(drop.low, drop.high, unit)}: "
        f"{counted(accuracy.samples or 'the', 'sample')} cannot show that it keeps {shown} {unit}"
        f"{beyond}{needed}"
    )


def share_of(max_drop: float, unit: Unit) -> float:
    return max_drop / 100.0 if unit == "points" else max_drop


class Need(NamedTuple):
    """The number of samples that a budget needs, in words; `is_met` is None for an unknown number at hand."""

    text: str
    is_met: bool | None


def samples_for_budget(max_drop: float, candidates: int, samples: int | None) -> Need:
    """Return the number of samples that a budget in points needs, to be read before the measurement."""
    if max_drop <= 0:
        return Need("no number of samples proves a drop of 0 points; allow a small one, such as 0.1", False)
    fewest = fewest_samples(share_of(max_drop, "points"), candidates)
    among = f" among {candidates} candidates" if candidates > 1 else ""
    needed = counted(f"{fewest:,}", "sample")
    text = f"a drop of at most {max_drop:g} points{among} is proven by {needed} or more"
    if samples is None:
        return Need(text, None)
    few = "" if samples >= fewest else ", which is too few"
    return Need(f"{text}; the evaluation has {samples:,}{few}", samples >= fewest)
