"""Launches and rounds: every artifact is started several times, and runs one block per round, in balanced
order, until the intervals are narrow.

A launch warms up until Pettitt's test finds no point in the later half of the block medians where the level
changes (Pettitt 1979, "A non-parametric approach to the change-point problem", Applied Statistics 28).
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, TypeVar

from ...core.processes.worker import Worker
from ...errors import QCompileError
from ...spec.measure import BenchOptions
from ..results.row import WarmUp
from ..results.statistics import FEWEST_ROUNDS, ratio_level, speedup_of

LIMIT_S = 10.0
LEAST_S = 0.3
_WARM_UP_BLOCK_S = 0.025
_WINDOW = 12  # with fewer blocks, the test cannot reach the significance below
_SIGNIFICANCE = 0.05


class TimedWarmUp(WarmUp, frozen=True):
    """A warm-up, and the latency of a call at its end in nanoseconds."""

    call_ns: float


def warm_up(
    time_calls: Callable[[int], Sequence[int]],
    *,
    limit_s: float = LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
) -> TimedWarmUp:
    """Call until the latency is stable; `time_calls` makes so many calls, in so many nanoseconds each."""
    begin = clock()
    medians: list[float] = []
    calls, iterations = 0, 1
    while True:
        durations = time_calls(iterations)
        calls += len(durations)
        medians.append(median(durations))
        iterations = max(round(_WARM_UP_BLOCK_S * 1e9 / max(min(medians[-_WINDOW:]), 1.0)), 1)
        spent = clock() - begin
        stable = spent >= LEAST_S and is_stable(medians)
        if stable or spent >= limit_s:
            return TimedWarmUp(calls, spent, stable, min(medians[-_WINDOW:]))


def is_stable(medians: Sequence[float]) -> bool:
    """Return whether the later half of block medians, at least 12 of them, shows no change of level."""
    window = medians[-max(_WINDOW, len(medians) // 2) :]
    return len(window) >= _WINDOW and change_significance(window) > _SIGNIFICANCE


def change_significance(values: Sequence[float]) -> float:
    """Return the significance of the likeliest change of level, in [0, 1]; small where there is one.

    Pettitt's approximation `2 exp(-6 K**2 / (n**3 + n**2))`, K the largest of the rank sums
    `sum of sign(x_i - x_j)` over all i up to t and j behind it.
    """
    n = len(values)
    rank_sum, largest = 0, 0
    for t in range(n):
        rank_sum += sum(int(values[t] > other) - int(values[t] < other) for other in values)
        largest = max(largest, abs(rank_sum))
    return min(2.0 * math.exp(-6.0 * largest**2 / (n**3 + n**2)), 1.0)


BLOCK_S = 0.15  # long against the clock and the scheduler, short enough for many rounds
FEWEST_LAUNCHES = 5  # to stop early: few can lie close together by chance, and would be believed
_FEWEST_LAUNCH_ROUNDS = 4
_FEWEST_SLOW_ROUNDS = 2  # where rounds are so slow that launches would be few
_ROUND_VARIANCE = 3.0  # of a round, in units of that of a launch, until it can be told
_DISCARD = 2  # calls after an idle pause: caches and threads wake up
_FEWEST_CALLS = 3
_PATIENCE = 20.0  # times what a block should take, before its worker is given up
_LEAST_PATIENCE_S = 30.0

Workers = Mapping[str, Worker]


@dataclass
class TimingSeries:
    """What was timed of one artifact.

    Attributes:
        iterations: Calls per block.
        warm_up, unsettled: Of its last launch, and of a launch whose latency did not settle.
        launches_ms: Of each launch the median of each block; `latencies_ms` has every timed call.
        gpu_memory_bytes: What its process held on a GPU behind each block, where that is told.
        failure: Set when it failed in the middle; it is left out of further rounds.
        keeps_spinning: Whether its threads went on spinning after a block, so that it was frozen in between.
    """

    iterations: int = 1
    warm_up: TimedWarmUp | None = None
    unsettled: TimedWarmUp | None = None
    launches_ms: list[list[float]] = field(default_factory=list)
    latencies_ms: array[float] = field(default_factory=lambda: array("d"))
    gpu_memory_bytes: list[int] = field(default_factory=list)
    failure: QCompileError | None = None
    keeps_spinning: bool = False

    @property
    def round_medians_ms(self) -> list[float]:
        """Median of each block, one for each round; of all launches, one after the other."""
        return [value for launch in self.launches_ms for value in launch]


def measure(
    workers: Workers,
    relaunch: Callable[[], Workers],
    baseline: str,
    timed: Mapping[str, TimingSeries],
    options: BenchOptions,
    *,
    launch_s: float = 0.0,
    progress: Callable[[str], None],
    decided: Decided | None = None,
    gpu_memory: Callable[[str, int], int | None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Time loaded and fed workers against each other, launch after launch.

    An artifact that fails is left out of further rounds, and its process is ended; the others go on. Without
    a baseline there is nothing to compare with, but the others get the rounds that their own figures need.

    `relaunch` ends the workers and starts new ones of all that have not failed; it sets `failure` of those
    that do not start. What is in `timed` when this is interrupted is whole. Of `options`, no launch is begun
    that would not end before `max_time_s`, and no round after it, but the first eight; launches behind the
    first and their warm-up are contained. `decided` is asked at the end of a launch whether to stop, in place
    of `precision_target`. `launch_s` is what a launch takes, before the first of them was timed. `gpu_memory`
    tells what a process holds on its GPU, in bytes, or None; it is asked between blocks.
    """
    budget = _Budget(options, launch_s, decided)
    orders = itertools.cycle(balanced_orders(list(workers)))  # over launches: together they are balanced
    began = clock()
    for launch in itertools.count(1):
        for name, worker in workers.items():
            timed[name].launches_ms.append([])
            _guard(timed[name], worker, functools.partial(_warm_up, worker, options.max_time_s, clock))
        budget.launched(launch, began, clock())
        step: _Step = "round"
        for count in itertools.count(1):
            for name in (name for name in next(orders) if name in workers):
                _guard(timed[name], workers[name], functools.partial(_block, workers[name]))
                if gpu_memory is not None and timed[name].failure is None:
                    held = gpu_memory(name, workers[name].pid)
                    timed[name].gpu_memory_bytes += [] if held is None else [held]
            uncertainty = _uncertainty(timed, baseline)
            widest = f", widest interval {uncertainty.widest:.1%}" if uncertainty.widest < 1 else ""
            progress(f"launch {launch}, round {count}{widest}")
            step = budget.next_step(launch, count, uncertainty, timed, timed[baseline], clock())
            if step != "round":
                break
        if step == "end":
            return
        began = clock()
        workers = relaunch()


Decided = Callable[[Mapping[str, TimingSeries]], bool]
"""A rule of its own for when enough was measured: whether to stop, of what was timed until now."""
_Step = Literal["round", "launch", "end"]


@dataclass
class _Uncertainty:
    """The widest interval of a speed-up, the largest variance that a round leaves, and the fewest launches
    that counted; see `Level`."""

    widest: float = 0.0
    variance: float = 0.0
    launches: float = math.inf


@dataclass
class _Budget:
    """What to do with the time there is: `launch_s` is what the last launch took until it was warm,
    `start_s` and `warm_s` are when the first launch and the last one were."""

    options: BenchOptions
    launch_s: float
    decided: Decided | None = None
    start_s: float = 0.0
    warm_s: float = 0.0

    def launched(self, launch: int, began_s: float, now_s: float) -> None:
        """Remember what a launch took; the start of the first was timed elsewhere, here its warm-up."""
        self.launch_s = now_s - began_s + (self.launch_s if launch == 1 else 0.0)
        self.start_s, self.warm_s = (now_s if launch == 1 else self.start_s), now_s

    def next_step(
        self, launch: int, count: int, uncertainty: _Uncertainty, timed: Mapping[str, TimingSeries],
        base: TimingSeries, now_s: float,
    ) -> _Step:  # fmt: skip
        enough = max(len(series.round_medians_ms) for series in timed.values()) >= FEWEST_ROUNDS
        over = now_s - self.start_s > self.options.max_time_s or base.failure is not None
        if all(series.failure for series in timed.values()) or (enough and over):
            return "end"
        round_s = (now_s - self.warm_s) / count
        share_s = self.options.max_time_s / FEWEST_LAUNCHES
        slow = count >= _FEWEST_SLOW_ROUNDS and now_s - self.warm_s > share_s
        # Rounds a launch that leave the least uncertainty for the time (Kalibera and Jones 2013, 6.3).
        best = math.sqrt(uncertainty.variance * self.launch_s / round_s) if round_s > 0.0 else 0.0
        if not slow and count < max(best, _FEWEST_LAUNCH_ROUNDS):
            return "round"
        if enough and self._is_sure(launch, uncertainty, timed):
            return "end"
        remaining_s = self.start_s + self.options.max_time_s - now_s
        if self.launch_s + _FEWEST_SLOW_ROUNDS * round_s < remaining_s:
            return "launch"
        # Further rounds of this launch would say nothing new, unless it is the only one.
        return "end" if launch > 1 and enough else "round"

    def _is_sure(self, launch: int, uncertainty: _Uncertainty, timed: Mapping[str, TimingSeries]) -> bool:
        if self.decided is not None:
            return self.decided(timed)
        counted = min(launch, uncertainty.launches)
        return counted >= FEWEST_LAUNCHES and uncertainty.widest <= self.options.precision_target


def ask_timing(worker: Worker, expected_s: float, **arguments: Any) -> tuple[list[int], bool]:
    """Return the nanoseconds of calls, and whether the worker came to rest; one that did not is frozen."""
    answer = worker.ask("time", timeout_s=_patience_s(expected_s), **arguments)
    if not answer["at_rest"]:
        worker.freeze()
    return answer["ns"], answer["at_rest"]


def _warm_up(worker: Worker, max_time_s: float, clock: Callable[[], float], timed: TimingSeries) -> None:
    longest_ns = 0

    def time_calls(iterations: int) -> list[int]:
        nonlocal longest_ns
        # The very first call may take as long as a compiler does.
        patience_s = _patience_s(iterations * longest_ns / 1e9) if longest_ns else None
        answer = worker.ask("time", timeout_s=patience_s, iterations=iterations, rest=False)
        longest_ns = max(longest_ns, *answer["ns"])
        return list(answer["ns"])

    timed.warm_up = warm_up(time_calls, limit_s=min(LIMIT_S, max_time_s), clock=clock)
    if not timed.warm_up.stable:
        timed.unsettled = timed.warm_up
    timed.iterations = max(int(BLOCK_S * 1e9 / timed.warm_up.call_ns), _FEWEST_CALLS)
    # The first block does not count, as little as the warm-up does: it shows whether it comes to rest.
    _time_block(worker, timed, iterations=1)


def _patience_s(expected_s: float) -> float:
    return max(_PATIENCE * expected_s, _LEAST_PATIENCE_S)


def _time_block(worker: Worker, timed: TimingSeries, **arguments: int) -> list[float]:
    assert timed.warm_up is not None
    expected_s = (timed.iterations + _DISCARD) * timed.warm_up.call_ns / 1e9
    durations, at_rest = ask_timing(worker, expected_s, **arguments)
    timed.keeps_spinning |= not at_rest
    return [ns / 1e6 for ns in durations]


def _block(worker: Worker, timed: TimingSeries) -> None:
    latencies_ms = _time_block(worker, timed, iterations=timed.iterations, discard=_DISCARD)
    timed.latencies_ms.extend(latencies_ms)
    timed.launches_ms[-1].append(median(latencies_ms))


def _uncertainty(timed: Mapping[str, TimingSeries], baseline: str) -> _Uncertainty:
    reference, uncertainty = timed[baseline], _Uncertainty()
    for name, series in timed.items():
        if name != baseline and series.failure is None and not reference.failure:
            if len(series.round_medians_ms) < FEWEST_ROUNDS:
                return _Uncertainty(math.inf, _ROUND_VARIANCE)
            level = ratio_level(reference.launches_ms, series.launches_ms)
            uncertainty.widest = max(uncertainty.widest, speedup_of(level).width)
            uncertainty.variance = max(uncertainty.variance, level.round_variance)
            uncertainty.launches = min(uncertainty.launches, level.launches)
    return uncertainty


def _guard(timed: TimingSeries, worker: Worker, work: Callable[[TimingSeries], None]) -> None:
    if timed.failure is None:
        try:
            work(timed)
        except QCompileError as error:
            timed.failure = error
            worker.kill()  # it is asked no more


T = TypeVar("T")


def balanced_orders(items: Sequence[T]) -> list[list[T]]:
    """Return orders of `n` items in which each follows each other equally often: `n`, or `2 n` for odd `n`.

    A block can feel what ran before it: caches, clocks, heat. The rows of a Williams square (Williams 1949,
    "Experimental designs balanced for the estimation of residual effects of treatments") have every item at
    every place once, and behind every other one once; an odd number needs its mirror image too.
    """
    n = len(items)
    # 0, n-1, 1, n-2, ...: the steps between neighbours are all different.
    first = [n - 1 - place // 2 if place % 2 else place // 2 for place in range(n)]
    rows = [[items[(place + shift) % n] for place in first] for shift in range(n)]
    return rows + [row[::-1] for row in rows] if n % 2 and n > 1 else rows
