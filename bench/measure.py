"""Rounds: every artifact runs one block per round, in alternating order, until the doubt is small."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..errors import QCompileError
from .compare import FEWEST_ROUNDS, median, speedup
from .process import Worker

BLOCK_S = 0.15  # long against the clock and the scheduler, short enough for many rounds
WARM_UP_S = 0.5
_DISCARD = 2  # calls after an idle pause: caches and threads wake up
_WARM_UP_BLOCKS = 4  # the first call may take longer than all of the warm-up, and says nothing of the rest
_MOST_ROUNDS = 200


@dataclass
class Timed:
    """What was timed of one artifact.

    Attributes:
        iterations: Calls per block.
        round_medians_ms: Median of each block.
        latencies_ms: Every timed call.
        failure: Set when it failed in the middle; it is left out of further rounds.
    """

    iterations: int = 1
    round_medians_ms: list[float] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    failure: QCompileError | None = None


def measure(
    workers: Mapping[str, Worker],
    baseline: str,
    *,
    max_time_s: float,
    precision_target: float,
    progress: Callable[[int, float], None],
) -> dict[str, Timed]:
    """Time loaded and fed workers against each other.

    Args:
        workers: Name to worker, the baseline among them.
        baseline: Name of the baseline.
        max_time_s: No round is begun after this.
        precision_target: Stop once the interval of every speed-up is narrower (0.02: two percent).
        progress: Told after each round: its number and the widest interval so far.

    Returns:
        Name to what was timed. An artifact that fails keeps what it had; the others go on.
    """
    timed = {name: Timed() for name in workers}
    for name, worker in workers.items():
        _guard(timed[name], functools.partial(_warm_up, worker))
    start, number = time.monotonic(), 0
    while number < _MOST_ROUNDS:
        order = list(workers) if number % 2 == 0 else list(workers)[::-1]
        for name in order:
            _guard(timed[name], functools.partial(_block, workers[name]))
        number += 1
        widest = _widest(timed, baseline)
        progress(number, widest)
        if timed[baseline].failure:
            break
        spent = time.monotonic() - start
        if number >= FEWEST_ROUNDS and (widest <= precision_target or spent > max_time_s):
            break
    return timed


def _warm_up(worker: Worker, timed: Timed) -> None:
    """Run until warm, and learn how many calls fill a block."""
    spent, blocks, fastest_ns = 0.0, 0, float("inf")
    while spent < WARM_UP_S or blocks < _WARM_UP_BLOCKS:
        blocks += 1
        durations = worker.ask("time", iterations=max(timed.iterations, 1))["ns"]
        spent += sum(durations) / 1e9
        fastest_ns = min(fastest_ns, median(durations))
        timed.iterations = max(int(BLOCK_S * 1e9 / fastest_ns), 3)


def _block(worker: Worker, timed: Timed) -> None:
    durations = worker.ask("time", iterations=timed.iterations, discard=_DISCARD)["ns"]
    latencies = [ns / 1e6 for ns in durations]
    timed.latencies_ms += latencies
    timed.round_medians_ms.append(median(latencies))


def _widest(timed: Mapping[str, Timed], baseline: str) -> float:
    reference = timed[baseline].round_medians_ms
    widths = [0.0]
    for name, one in timed.items():
        if name != baseline and one.failure is None:
            if len(one.round_medians_ms) < FEWEST_ROUNDS:
                return float("inf")
            widths.append(speedup(reference, one.round_medians_ms).width)
    return max(widths)


def _guard(timed: Timed, work: Callable[[Timed], None]) -> None:
    if timed.failure is None:
        try:
            work(timed)
        except QCompileError as error:
            timed.failure = error
