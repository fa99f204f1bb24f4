"""Time artifacts against each other. Each starts several times (launches); in each round every artifact runs
one block, in balanced order. Measuring stops when the intervals are narrow.

A launch warms up until Pettitt's test finds no change of level in the later half of the block medians
(Pettitt 1979, "A non-parametric approach to the change-point problem", Applied Statistics 28).
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
    """Call until the latency is stable; `time_calls(n)` returns the nanoseconds of each of `n` calls."""
    begin = clock()
    medians: list[float] = []
    calls, iterations = 0, 1
    while True:
        durations = time_calls(iterations)
        calls += len(durations)
        medians.append(median(durations))
        iterations = max(round(_WARM_UP_BLOCK_S * 1e9 / max(min(medians[-_WINDOW:]), 1.0)), 1)
        elapsed_s = clock() - begin
        stable = elapsed_s >= LEAST_S and is_stable(medians)
        if stable or elapsed_s >= limit_s:
            return TimedWarmUp(calls, elapsed_s, stable, min(medians[-_WINDOW:]))


def is_stable(medians: Sequence[float]) -> bool:
    """Return whether the later half of the block medians, 12 or more, shows no change of level."""
    window = medians[-max(_WINDOW, len(medians) // 2) :]
    return len(window) >= _WINDOW and change_significance(window) > _SIGNIFICANCE


def change_significance(values: Sequence[float]) -> float:
    """Return the significance of the most likely change of level, in [0, 1]; small if the level changes.

    Pettitt's approximation is `2 exp(-6 K**2 / (n**3 + n**2))`. K is the largest magnitude, over t, of the
    sum of `sign(x_i - x_j)` over all i up to t and all j after it.
    """
    n = len(values)
    rank_sum, largest = 0, 0
    for t in range(n):
        rank_sum += sum(int(values[t] > other) - int(values[t] < other) for other in values)
        largest = max(largest, abs(rank_sum))
    return min(2.0 * math.exp(-6.0 * largest**2 / (n**3 + n**2)), 1.0)


BLOCK_S = 0.15  # far above the resolution of clock and scheduler, short enough for many rounds
FEWEST_LAUNCHES = 5  # to stop early: fewer may agree by chance
_FEWEST_LAUNCH_ROUNDS = 4
_FEWEST_SLOW_ROUNDS = 2  # per launch, if rounds take so long that few launches fit
_ROUND_VARIANCE = 3.0  # of a round, in units of a launch's variance, before there is an estimate
_DISCARD = 2  # calls after an idle pause, slow because of cold caches and sleeping threads
_FEWEST_CALLS = 3
_BLOCK_LIMIT = 4.0  # multiple of a block's expected time after which no further call starts: other load
_PATIENCE = 20.0  # multiple of a block's expected time after which its worker counts as hung
_LEAST_PATIENCE_S = 30.0

Workers = Mapping[str, Worker]


@dataclass
class TimingSeries:
    """Timings of one artifact.

    Attributes:
        iterations: Calls per block.
        warm_up, unsettled: Warm-up of the last launch, and of a launch whose latency did not settle.
        launches_ms: Median of each block, by launch; `latencies_ms` has every timed call.
        gpu_memory_bytes: GPU memory of its process after each block, if available.
        failure: The error that ended its measurement; it takes no part in further rounds.
        keeps_spinning: Whether its threads spin on after a block, so that its process is frozen in between.
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
        """Median of each block, over all launches in order."""
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
    decided: StopRule | None = None,
    gpu_memory: Callable[[str, int], int | None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Time loaded workers, which have their feeds, launch after launch, and add the results to `timed`.

    An artifact that fails takes no part in further rounds, and its process ends. If the baseline fails, the
    others still complete the rounds that their latencies need. An interrupt leaves `timed` valid.

    Args:
        relaunch: Ends all workers, starts those without a `failure` again, and sets the `failure` of a worker
            that does not start.
        options: No launch starts that would end after `max_time_s`, and no round starts after it, except the
            first eight. This time includes the later launches with their warm-ups.
        launch_s: Expected time of a launch, until the first one is timed.
        decided: Called after a launch; returns whether to stop, in place of `precision_target`.
        gpu_memory: Returns a process's GPU memory in bytes, or None; called between blocks.
    """
    budget = _Budget(options, launch_s, decided)
    orders = itertools.cycle(balanced_orders(list(workers)))  # balanced over all launches together
    launch_began = clock()
    for launch in itertools.count(1):
        for name, worker in workers.items():
            timed[name].launches_ms.append([])
            _attempt(timed[name], worker, functools.partial(_warm_up, worker, options.max_time_s, clock))
        budget.record_launch(launch, launch_began, clock())
        step: _Step = "round"
        for count in itertools.count(1):
            for name in (name for name in next(orders) if name in workers):
                _attempt(timed[name], workers[name], functools.partial(_record_block, workers[name]))
                if gpu_memory is not None and timed[name].failure is None:
                    memory_bytes = gpu_memory(name, workers[name].pid)
                    timed[name].gpu_memory_bytes += [] if memory_bytes is None else [memory_bytes]
            uncertainty = _uncertainty(timed, baseline)
            widest = f", widest interval {uncertainty.widest:.1%}" if uncertainty.widest < 1 else ""
            progress(f"launch {launch}, round {count}{widest}")
            step = budget.next_step(launch, count, uncertainty, timed, timed[baseline], clock())
            if step != "round":
                break
        if step == "end":
            return
        launch_began = clock()
        workers = relaunch()


StopRule = Callable[[Mapping[str, TimingSeries]], bool]
"""Return whether the timings so far suffice to stop."""
_Step = Literal["round", "launch", "end"]


@dataclass
class _Uncertainty:
    """The widest interval of a speed-up, the largest `Level.round_variance`, the fewest `Level.launches`."""

    widest: float = 0.0
    variance: float = 0.0
    launches: float = math.inf


@dataclass
class _Budget:
    """Decide how to spend `max_time_s`. `launch_s` is the time of the last launch with its warm-up; `start_s`
    and `warm_s` are when the first and the last launch were warm."""

    options: BenchOptions
    launch_s: float
    decided: StopRule | None = None
    start_s: float = 0.0
    warm_s: float = 0.0

    def record_launch(self, launch: int, began_s: float, now_s: float) -> None:
        """Record the time of a launch; of the first only the warm-up, added to its start in `launch_s`."""
        self.launch_s = now_s - began_s + (self.launch_s if launch == 1 else 0.0)
        self.start_s, self.warm_s = (now_s if launch == 1 else self.start_s), now_s

    def next_step(
        self, launch: int, count: int, uncertainty: _Uncertainty, timed: Mapping[str, TimingSeries],
        base: TimingSeries, now_s: float,
    ) -> _Step:  # fmt: skip
        has_enough_rounds = max(len(series.round_medians_ms) for series in timed.values()) >= FEWEST_ROUNDS
        must_stop = now_s - self.start_s > self.options.max_time_s or base.failure is not None
        if all(series.failure for series in timed.values()) or (has_enough_rounds and must_stop):
            return "end"
        round_s = (now_s - self.warm_s) / count
        share_s = self.options.max_time_s / FEWEST_LAUNCHES
        is_slow = count >= _FEWEST_SLOW_ROUNDS and now_s - self.warm_s > share_s
        # Number of rounds per launch with the least uncertainty per time (Kalibera and Jones 2013, 6.3).
        best_count = math.sqrt(uncertainty.variance * self.launch_s / round_s) if round_s > 0.0 else 0.0
        if not is_slow and count < max(best_count, _FEWEST_LAUNCH_ROUNDS):
            return "round"
        if has_enough_rounds and self._is_precise(launch, uncertainty, timed):
            return "end"
        remaining_s = self.start_s + self.options.max_time_s - now_s
        if self.launch_s + _FEWEST_SLOW_ROUNDS * round_s < remaining_s:
            return "launch"
        # Another round of this launch adds no information, unless it is the only launch.
        return "end" if launch > 1 and has_enough_rounds else "round"

    def _is_precise(self, launch: int, uncertainty: _Uncertainty, timed: Mapping[str, TimingSeries]) -> bool:
        if self.decided is not None:
            return self.decided(timed)
        counted = min(launch, uncertainty.launches)
        return counted >= FEWEST_LAUNCHES and uncertainty.widest <= self.options.precision_target


def ask_timing(worker: Worker, expected_s: float, **arguments: Any) -> tuple[list[int], bool]:
    """Return the nanoseconds of calls, and whether the worker's threads came to rest; freeze it if not."""
    answer = worker.ask(
        "time", timeout_s=_patience_s(expected_s), limit_s=_BLOCK_LIMIT * expected_s, fewest=_FEWEST_CALLS,
        **arguments,
    )  # fmt: skip
    if not answer["at_rest"]:
        worker.freeze()
    return answer["ns"], answer["at_rest"]


def _warm_up(worker: Worker, max_time_s: float, clock: Callable[[], float], timed: TimingSeries) -> None:
    longest_ns = 0

    def time_calls(iterations: int) -> list[int]:
        nonlocal longest_ns
        # The very first call may include compilation.
        patience_s = _patience_s(iterations * longest_ns / 1e9) if longest_ns else None
        answer = worker.ask(
            "time", timeout_s=patience_s, iterations=iterations, limit_s=_BLOCK_LIMIT * _WARM_UP_BLOCK_S,
            rest=False,
        )  # fmt: skip
        longest_ns = max(longest_ns, *answer["ns"])
        return list(answer["ns"])

    timed.warm_up = warm_up(time_calls, limit_s=min(LIMIT_S, max_time_s), clock=clock)
    if not timed.warm_up.stable:
        timed.unsettled = timed.warm_up
    timed.iterations = max(int(BLOCK_S * 1e9 / timed.warm_up.call_ns), _FEWEST_CALLS)
    # Like the warm-up, the first block does not count: it shows whether the threads come to rest.
    _time_block(worker, timed, iterations=1)


def _patience_s(expected_s: float) -> float:
    return max(_PATIENCE * expected_s, _LEAST_PATIENCE_S)


def _time_block(worker: Worker, timed: TimingSeries, **arguments: int) -> list[float]:
    assert timed.warm_up is not None
    expected_s = (timed.iterations + _DISCARD) * timed.warm_up.call_ns / 1e9
    durations, at_rest = ask_timing(worker, expected_s, **arguments)
    timed.keeps_spinning |= not at_rest
    return [ns / 1e6 for ns in durations]


def _record_block(worker: Worker, timed: TimingSeries) -> None:
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


def _attempt(timed: TimingSeries, worker: Worker, step: Callable[[TimingSeries], None]) -> None:
    if timed.failure is None:
        try:
            step(timed)
        except QCompileError as error:
            timed.failure = error
            worker.kill()  # no further request follows


T = TypeVar("T")


def balanced_orders(items: Sequence[T]) -> list[list[T]]:
    """Return orders of `n` items in which each follows each other equally often: `n`, or `2 n` if n is odd.

    A block may depend on the one before it: caches, clocks, heat. In the rows of a Williams square (Williams
    1949, "Experimental designs balanced for the estimation of residual effects of treatments") every item has
    every place once, and follows every other once; an odd number needs the mirror image, too.
    """
    n = len(items)
    # 0, n-1, 1, n-2, ...: all steps between neighbours differ.
    first = [n - 1 - place // 2 if place % 2 else place // 2 for place in range(n)]
    rows = [[items[(place + shift) % n] for place in first] for shift in range(n)]
    return rows + [row[::-1] for row in rows] if n % 2 and n > 1 else rows
