"""Differences of two rows of a network: paired, as both answered the same samples in the same rounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from qcompile.bench.metrics.bounds import resamples, right_or_wrong_interval, tail_of
from qcompile.bench.results.statistics import Speedup, speedup

from .base import Array

Row = dict[str, Any]
Outcome = Literal["win", "tie", "loss"]

STUDENT = 2.131
"""Student's t of 15 degrees of freedom, 97.5%: of the 16 groups of `left_out`."""
DRAWS = 2000


class Difference(NamedTuple):
    """How many points of the metric the first row is ahead, with the 95% interval."""

    points: float
    low: float
    high: float

    @property
    def outcome(self) -> Outcome:
        """Whether the first row is clearly ahead, clearly behind, or neither."""
        return "win" if self.low > 0 else "loss" if self.high < 0 else "tie"


def difference(ours: Row, theirs: Row) -> Difference | None:
    """Return how far `ours` is ahead of `theirs`; None where a row has no metric or nothing by sample.

    The rule follows what both rows keep:

    1. `right`, a right or wrong answer for each sample: the score interval of the discordant pairs.
    2. `counts`, how much is right, and of how much, for each sample: bootstrap over samples, percentiles.
    3. `resampled`, the metric of samples drawn with replacement, alike for all rows: percentiles.
    4. `left_out`, the metric without each of 16 groups in turn, of rows before 2026-12: jackknife.
    """
    rules: dict[str, Callable[[Any, Any], tuple[float, float]]] = {
        "right": _score, "counts": _bootstrap, "resampled": _percentiles, "left_out": _jackknife,
    }  # fmt: skip
    for key, interval in rules.items():
        if key in ours and key in theirs:
            return Difference(ours["metric"] - theirs["metric"], *interval(ours[key], theirs[key]))
    return None


def _score(ours: str, theirs: str) -> tuple[float, float]:
    first, second = (np.array(list(answers)) == "1" for answers in (ours, theirs))
    gained, lost = int((first & ~second).sum()), int((second & ~first).sum())
    low, high = right_or_wrong_interval(gained, lost, len(first), tail_of(1))
    return 100 * low, 100 * high


def _bootstrap(ours: list[list[float]], theirs: list[list[float]]) -> tuple[float, float]:
    first, second = np.array(ours), np.array(theirs)
    weights = np.concatenate(list(resamples(len(first), DRAWS)))
    return _percentiles(*(_percent(weights @ counts) for counts in (first, second)))


def _percent(sums: Array) -> Array:
    return np.asarray(100 * np.maximum(sums[:, 0] / np.maximum(sums[:, 1], 1), 0))


def _percentiles(ours: Any, theirs: Any) -> tuple[float, float]:
    low, high = np.quantile(np.subtract(ours, theirs), [0.025, 0.975])
    return float(low), float(high)


def _jackknife(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    differences, groups = np.subtract(ours, theirs), len(ours)
    middle = float(differences.mean())
    half = STUDENT * math.sqrt((groups - 1) / groups * float(((differences - middle) ** 2).sum()))
    return middle - half, middle + half


def faster(ours: Row, theirs: Row) -> Speedup | None:
    """Return how many times faster `ours` is; None where the two did not take turns in one run."""
    if "launches_ms" not in ours or ours.get("timed") != theirs.get("timed"):
        return None
    return speedup(theirs["launches_ms"], ours["launches_ms"])
