"""Speed-up: the ratio of paired rounds, its interval, and the verdict that follows from the interval.

In each round every artifact runs one block, so the ratio of two block medians is free of drift that hits all
alike. What the ratios of rounds and launches say of the level is worked out in `launches`.

One interval, of `CONFIDENCE`, is shown, gives the verdict and ends the measuring. It is of 99%, not of 95%,
because measuring ends when intervals are narrow and so looks at them again and again. Differences below
`SMALLEST_DIFFERENCE` are not called one, however sure they are: nobody ships another artifact for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from ...errors import InvalidOption
from .launches import Level, half_width, level_of

CONFIDENCE = 0.99
SMALLEST_DIFFERENCE = 0.01
FEWEST_ROUNDS = 8  # with fewer, their noise cannot be told

Positive = Annotated[float, Meta(gt=0, le=1e300)]
Verdict = Literal["faster", "slower", "no difference"]
Launches = Sequence[Sequence[float]]
"""Milliseconds: of each launch its rounds, in the order they were measured."""


@dataclass(frozen=True)
class Speedup:
    """How many times faster than the baseline.

    Attributes:
        value: Geometric mean over launches of the median over rounds of baseline time / artifact time.
        low, high: Its interval at `CONFIDENCE`.
        rounds: Number of rounds that counted.
        verdict: What may be said of it, see `verdict_of`.
        correlation_rounds: Autocorrelation time: 1 for independent rounds, 4 where four count as one.
        launches: Number of launches that counted.
    """

    value: Positive
    low: Positive
    high: Positive
    rounds: Annotated[int, Meta(ge=0)]
    verdict: Verdict
    correlation_rounds: float = 1.0
    launches: Annotated[int, Meta(ge=0)] = 1

    @property
    def width(self) -> float:
        """Width of the interval relative to the value: 0.02 is two percent."""
        return (self.high - self.low) / self.value


def verdict_of(low: float, high: float) -> Verdict:
    """Return what an interval says: a difference where all of it is beyond `SMALLEST_DIFFERENCE`."""
    if low > 1.0 + SMALLEST_DIFFERENCE:
        return "faster"
    return "slower" if high < 1.0 / (1.0 + SMALLEST_DIFFERENCE) else "no difference"


def speedup(baseline_ms: Launches, artifact_ms: Launches) -> Speedup:
    """Compare launches that shared their rounds; what either has alone at the end does not count.

    Raises:
        InvalidOption: If they share fewer than `FEWEST_ROUNDS` rounds.
    """
    level = ratio_level(baseline_ms, artifact_ms)
    return speedup_with_interval(level.mean, [level])


def ratio_level(baseline_ms: Launches, artifact_ms: Launches) -> Level:
    """Return the level of the logarithms of baseline time / artifact time; see `speedup`."""
    pairs = [
        [base - own for base, own in zip(*launch, strict=False)]
        for launch in zip(logarithms(baseline_ms), logarithms(artifact_ms), strict=False)
    ]
    pairs = [launch for launch in pairs if launch]
    count = sum(map(len, pairs))
    if count < FEWEST_ROUNDS:
        raise InvalidOption(
            f"artifact and baseline have {count} rounds in common; at least {FEWEST_ROUNDS} are required",
            hint="raise `max_time_s`",
        )
    return level_of(pairs)


def logarithms(launches_ms: Launches) -> list[list[float]]:
    """Return the logarithms of latencies.

    Raises:
        InvalidOption: If one is not above 0.
    """
    if any(value <= 0.0 for launch in launches_ms for value in launch):
        raise InvalidOption(
            "a latency is 0 ms or less; above 0 is required", hint="the results are damaged: measure again"
        )
    return [[math.log(value) for value in launch] for launch in launches_ms]


def speedup_with_interval(logarithm: float, levels: Sequence[Level]) -> Speedup:
    """Return the speed-up of a logarithm that rests on one level of ratios, or on two of latencies."""
    half = half_width(levels, CONFIDENCE)
    low, high = math.exp(logarithm - half), math.exp(logarithm + half)
    return Speedup(
        math.exp(logarithm),
        low,
        high,
        min(level.rounds for level in levels),
        verdict_of(low, high),
        max(level.correlation_rounds for level in levels),
        min(level.launches for level in levels),
    )
