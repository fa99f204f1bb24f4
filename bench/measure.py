"""Rounds: every artifact runs one block per round, in balanced order, until the doubt is small."""

from __future__ import annotations

import functools
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..errors import QCompileError
from .compare import FEWEST_ROUNDS, median, speedup
from .process import Worker
from .schedule import rounds
from .warm_up import LIMIT_S, WarmUp, warm_up

BLOCK_S = 0.15  # long against the clock and the scheduler, short enough for many rounds
FEWEST_TO_STOP = 16  # few ratios can lie close together by chance, and their interval would be believed
_DISCARD = 2  # calls after an idle pause: caches and threads wake up
_FEWEST_CALLS = 3
_PATIENCE = 20.0  # times what a block should take, before its worker is given up
_LEAST_PATIENCE_S = 30.0


@dataclass
class Timed:
    """What was timed of one artifact.

    Attributes:
        iterations: Calls per block.
        warm_up: How it warmed up; None before.
        round_medians_ms: Median of each block.
        latencies_ms: Every timed call.
        failure: Set when it failed in the middle; it is left out of further rounds.
        restless: Whether its threads went on spinning after a block, so that it was frozen between blocks.
    """

    iterations: int = 1
    warm_up: WarmUp | None = None
    round_medians_ms: list[float] = field(default_factory=list)
    latencies_ms: array[float] = field(default_factory=lambda: array("d"))
    failure: QCompileError | None = None
    restless: bool = False


def measure(
    workers: Mapping[str, Worker],
    baseline: str,
    timed: Mapping[str, Timed],
    *,
    max_time_s: float,
    precision_target: float,
    progress: Callable[[int, float], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Time loaded and fed workers against each other.

    An artifact that fails keeps what it had, and its process is ended; the others go on. Without a baseline
    there is nothing to compare with, but the others get the rounds that their own figures need.

    Args:
        workers: Name to worker, the baseline among them.
        baseline: Name of the baseline.
        timed: Name to where its times go; what is there when this is interrupted is whole.
        max_time_s: No round is begun after this.
        precision_target: Stop once the interval of every speed-up is narrower (0.02: two percent).
        progress: Told after each round: its number and the widest interval so far.
        clock: Seconds that pass.
    """
    for name, worker in workers.items():
        _guard(timed[name], worker, functools.partial(_warm_up, worker, max_time_s, clock))
    start = clock()
    for number, order in enumerate(rounds(list(workers)), start=1):
        for name in order:
            _guard(timed[name], workers[name], functools.partial(_block, workers[name]))
        widest = _widest(timed, baseline)
        progress(number, widest)
        if all(one.failure for one in timed.values()):
            break
        if number < FEWEST_ROUNDS:
            continue
        sure = number >= FEWEST_TO_STOP and widest <= precision_target
        if sure or timed[baseline].failure or clock() - start > max_time_s:
            break


def ask_timing(worker: Worker, do: str, expected_s: float, **arguments: object) -> tuple[list[int], bool]:
    """Ask for timed calls; a worker that is not at rest afterwards is frozen until it is asked again.

    Returns:
        Nanoseconds of each call, and whether the worker's threads came to rest.

    Raises:
        WorkerError: If it dies, or takes many times as long as expected.
    """
    answer = worker.ask(do, timeout_s=_patience_s(expected_s), **arguments)
    if not answer["at_rest"]:
        worker.freeze()
    return answer["ns"], answer["at_rest"]


def _warm_up(worker: Worker, max_time_s: float, clock: Callable[[], float], timed: Timed) -> None:
    """Run until warm, and learn how many calls fill a block."""

    longest_ns = 0

    def time_calls(iterations: int) -> list[int]:
        nonlocal longest_ns
        # The very first call may take as long as a compiler does.
        patience_s = _patience_s(iterations * longest_ns / 1e9) if longest_ns else None
        found: list[int] = worker.ask("time", timeout_s=patience_s, iterations=iterations, rest=False)["ns"]
        longest_ns = max(longest_ns, *found)
        return found

    timed.warm_up = warm_up(time_calls, limit_s=min(LIMIT_S, max_time_s), clock=clock)
    timed.iterations = max(int(BLOCK_S * 1e9 / timed.warm_up.call_ns), _FEWEST_CALLS)
    expected_s = (timed.iterations + _DISCARD) * timed.warm_up.call_ns / 1e9
    # The first block does not count, as little as the warm-up does: it shows whether it comes to rest.
    _, at_rest = ask_timing(worker, "time", expected_s, iterations=1)
    timed.restless = not at_rest


def _patience_s(expected_s: float) -> float:
    return max(_PATIENCE * expected_s, _LEAST_PATIENCE_S)


def _block(worker: Worker, timed: Timed) -> None:
    assert timed.warm_up is not None
    expected_s = (timed.iterations + _DISCARD) * timed.warm_up.call_ns / 1e9
    durations, at_rest = ask_timing(worker, "time", expected_s, iterations=timed.iterations, discard=_DISCARD)
    timed.restless |= not at_rest
    latencies = [ns / 1e6 for ns in durations]
    timed.latencies_ms.extend(latencies)
    timed.round_medians_ms.append(median(latencies))


def _widest(timed: Mapping[str, Timed], baseline: str) -> float:
    reference = timed[baseline].round_medians_ms
    widths = [0.0]
    for name, one in timed.items():
        if name != baseline and one.failure is None and not timed[baseline].failure:
            if len(one.round_medians_ms) < FEWEST_ROUNDS:
                return float("inf")
            widths.append(speedup(reference, one.round_medians_ms).width)
    return max(widths)


def _guard(timed: Timed, worker: Worker, work: Callable[[Timed], None]) -> None:
    if timed.failure is None:
        try:
            work(timed)
        except QCompileError as error:
            timed.failure = error
            worker.kill()  # it is asked no more
