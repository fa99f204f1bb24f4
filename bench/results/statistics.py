"""Speed-ups with their intervals and verdicts.

A launch is one start of an artifact's process, a block some consecutive inferences, a round one block of
every artifact. Drift that affects all artifacts alike cancels in the ratio of two block medians of a round.
The same interval is shown, gives the verdict, and decides when to stop. Its confidence is 99%, not 95%,
because it is checked repeatedly. A difference below `SMALLEST_DIFFERENCE` does not count: nobody ships
another artifact for it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import median
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct

from ...errors import InvalidOption

CONFIDENCE = 0.99
DROP_CONFIDENCE = 0.95  # of intervals of a drop in accuracy, see `metrics.bounds`
SMALLEST_DIFFERENCE = 0.01
FEWEST_ROUNDS = 8  # with fewer, their noise cannot be estimated

Positive = Annotated[float, Meta(gt=0, le=1e300)]
Verdict = Literal["faster", "slower", "no difference"]
Launches = Sequence[Sequence[float]]
"""Milliseconds of each round, by launch, in the order of measuring."""


class Speedup(Struct, frozen=True):
    """How many times faster an artifact is than the baseline.

    Attributes:
        value: Geometric mean over launches of the median over rounds of baseline time / artifact time.
        low, high: Its interval at `CONFIDENCE`.
        rounds: Number of compared rounds.
        verdict: Result of `verdict_of` for the interval.
        correlation_rounds: Autocorrelation time: 1 for independent rounds, 4 if four count as one.
        launches: Number of compared launches.
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

    def as_json(self) -> dict[str, Any]:
        return {"value": self.value, "low": self.low, "high": self.high, "verdict": self.verdict}


def verdict_of(low: float, high: float) -> Verdict:
    """Return the verdict of an interval: a difference if all of it is beyond `SMALLEST_DIFFERENCE`."""
    if low > 1.0 + SMALLEST_DIFFERENCE:
        return "faster"
    return "slower" if high < 1.0 / (1.0 + SMALLEST_DIFFERENCE) else "no difference"


def speedup(baseline_ms: Launches, artifact_ms: Launches) -> Speedup:
    """Return the speed-up over the rounds that both have; surplus rounds at the end do not count."""
    return speedup_of(ratio_level(baseline_ms, artifact_ms))


def ratio_level(baseline_ms: Launches, artifact_ms: Launches) -> Level:
    """Return mean and variation (`Level`) of log(baseline time / artifact time); see `speedup`."""
    if any(value <= 0.0 for side in (baseline_ms, artifact_ms) for launch in side for value in launch):
        raise InvalidOption(
            "a latency is 0 ms or less; above 0 is required", hint="the results are damaged: measure again"
        )
    ratios = [
        [math.log(base) - math.log(artifact) for base, artifact in zip(*launch, strict=False)]
        for launch in zip(baseline_ms, artifact_ms, strict=False)
    ]
    count = sum(map(len, ratios))
    if count < FEWEST_ROUNDS:
        raise InvalidOption(
            f"artifact and baseline have {count} rounds in common; at least {FEWEST_ROUNDS} are required",
            hint="raise `max_time_s`",
        )
    return level_of(ratios)


def speedup_of(level: Level) -> Speedup:
    """Return the speed-up, with its interval, from a level of log ratios."""
    half = half_width(level, CONFIDENCE)
    low, high = math.exp(level.mean - half), math.exp(level.mean + half)
    return Speedup(
        math.exp(level.mean), low, high, level.rounds, verdict_of(low, high), level.correlation_rounds,
        level.launches,
    )  # fmt: skip


# The speed of a process is constant, but differs from that of the next process of the same file. Relative to
# one process, the times of 20 launches of small convolutions had a standard deviation of 0.95%, those of 14
# launches of ResNet-50 0.63% (ONNX Runtime 1.31.1, 2 cores of an Intel Xeon, 8 rounds each, noise included).
# The sample size of an interval is therefore the number of launches, the outermost repetition, not of rounds
# (Kalibera and Jones, Rigorous Benchmarking in Reasonable Time, ISMM 2013).
#
# With few launches the variance estimate is unreliable, so it is shrunk toward a prior (Smyth, Linear Models
# and Empirical Bayes Methods, Statistical Applications in Genetics and Molecular Biology 3, 2004):
# `PRIOR_SPREAD` counts as `PRIOR_DEGREES` degrees of freedom, so a single launch has an interval, too, though
# a wide one.


PRIOR_SPREAD = 0.01  # standard deviation of log(time / time) of two processes of one file
PRIOR_DEGREES = 3
_MEDIAN_VARIANCE = math.pi / 2.0  # variance of a median / variance of a mean, for normal noise
_MAD = 1.4826  # standard deviation / median absolute deviation, for normal noise


class Level(NamedTuple):
    """Mean over launches of the median log ratio over rounds, and its variation.

    Attributes:
        squares: Sum of the squared deviations of launches from `mean`.
        within: Variance of one launch's median due to the noise of its rounds, on average.
        correlation_rounds: Autocorrelation time: 1 for independent rounds, 4 if four count as one.
    """

    mean: float
    squares: float
    within: float
    launches: int
    rounds: int
    correlation_rounds: float

    @property
    def round_variance(self) -> float:
        """Variance due to one round, in units of the variance between two processes of one file."""
        return self.within * self.rounds / self.launches / PRIOR_SPREAD**2


def level_of(launches: Sequence[Sequence[float]]) -> Level:
    """Return the level of log ratios; a last launch with less than half the usual rounds does not count."""
    counted = [launch for launch in launches if launch]
    if len(counted) > 1 and 2 * len(counted[-1]) < median([len(launch) for launch in counted[:-1]]):
        counted.pop()
    medians = [median(launch) for launch in counted]
    mean = math.fsum(medians) / len(medians)
    deviations = [value - middle for launch, middle in zip(counted, medians, strict=True) for value in launch]
    tau = correlation_time(deviations)
    freedom = max(len(deviations) - len(counted), 1)
    variance = (_MAD * median([*map(abs, deviations)])) ** 2 * len(deviations) / freedom
    shares = math.fsum(1.0 / len(launch) for launch in counted) / len(counted)
    squares = math.fsum((middle - mean) ** 2 for middle in medians)
    within = _MEDIAN_VARIANCE * variance * tau * shares
    return Level(mean, squares, within, len(counted), len(deviations), tau)


def half_width(level: Level, confidence: float) -> float:
    """Return the half width of the interval around the mean of a level."""
    freedom = PRIOR_DEGREES + level.launches - 1
    variance = (PRIOR_DEGREES * (PRIOR_SPREAD**2 + level.within) + level.squares) / freedom
    return student_quantile(confidence, freedom) * math.sqrt(variance * (1.0 / level.launches))


@functools.cache
def student_quantile(confidence: float, degrees: int) -> float:
    """Return the `t` for which Student's distribution has probability `confidence` between `-t` and `t`."""
    low, high = 0.0, 1.0
    while _student_inside(high, degrees) < confidence:
        low, high = high, 2.0 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if _student_inside(middle, degrees) < confidence else (low, middle)
    return high


def _student_inside(t: float, degrees: int) -> float:
    """Return the probability between `-t` and `t` (Abramowitz and Stegun, Handbook of Mathematical Functions,
    26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(degrees))
    cosine = math.cos(angle)
    odd = degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    for step in range(2 + odd, degrees + 1, 2):
        total += term
        term *= cosine**2 * (step - 1) / step
    if odd:
        return 2.0 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


def correlation_time(series: Sequence[float]) -> float:
    """Return the autocorrelation time in rounds, at least 1, of the signs around the median.

    Rounds are correlated because other load on the machine lasts for seconds. The time is
    `1 + 2 (rho_1 + rho_2 + ...)`, summed in pairs while a pair is positive (Geyer, Practical Markov Chain
    Monte Carlo, Statistical Science 7, 1992, 3.3).
    """
    middle, n = median(series), len(series)
    signs = [int(value > middle) - int(value < middle) for value in series]
    mean = sum(signs) / n
    centred = [sign - mean for sign in signs]
    variance = sum(value * value for value in centred)
    if variance == 0.0:
        return 1.0

    def rho(lag: int) -> float:
        return sum(a * b for a, b in zip(centred[lag:], centred, strict=False)) / variance

    total, lag = -1.0, 0
    while lag + 1 < n // 2:
        pair = rho(lag) + rho(lag + 1)
        if pair <= 0.0:
            break
        total += 2.0 * pair
        lag += 2
    return max(total, 1.0)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile, `share` in (0, 1]: one of the measured values."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]
