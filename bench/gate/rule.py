"""When a new version is slower than the limit, when it is not, and when to measure on.

Old and new run in the rounds of the same launches, so a launch gives one number: the median over its rounds
of `log(new / old)`. The launches are the samples: two processes of one file differ for as long as they live
(see `statistics.launches`). Student's interval of their mean, with the moderated variance, is compared with
the limit after each launch:

1. all of it beyond the limit: slower;
2. all of it below the limit: not slower;
3. else another launch, until the time is over: undecided.

A test that looks again and again errs more often than one that looks once. Pocock (Biometrika 64, 1977) keeps
the error of all looks together at a bound with one stricter level for each; applied to Student's t it is the
significance level approach (Jennison and Turnbull, Group Sequential Methods, 2000, 4.4). For ten looks and 5%
on both sides together the level of each is 1.06%, so the intervals of 99% (`CONFIDENCE`) at most ten times
err at most 2.5% on each side, where processes differ no more than the prior says. This is the error at the
limit itself. A version that is as fast as the old one is a whole limit away from it: a false alarm needs an
error of the limit and half the interval. `tests/bench/gate/test_rule.py` has the rates of other machines.

One or two launches cannot show how far processes differ, and a prior that is too narrow would be believed.
Their interval is three times as wide, which is enough for what is much slower or much faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..measuring.rounds import TimingSeries
from ..statistics.launches import half_width
from ..statistics.speedup import CONFIDENCE, FEWEST_ROUNDS, Launches, ratio_level

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
