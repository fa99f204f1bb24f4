"""The cost model of docs/cluster.md: what tasks take on a fleet, in seconds, bytes and dollars.

A task reads files, works, and makes files. Its worker fetches what it does not hold yet. Formulas, with `m`
slots in all (Graham 1969, "Bounds on multiprocessing timing anomalies"):

    t_i     = overhead + fetched_i / bandwidth + seconds_i + made_i / bandwidth
    longest = the longest chain of t_i along the files
    T      >= max(longest, sum(t_i) / m)
    T      <= sum(t_i) / m + (1 - 1 / m) * longest
    dollars = workers * price * T / 3600 + egress * made / 1e9
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Task:
    """A stage, as its record tells.

    Attributes:
        name: Of the stage.
        seconds: Its own time on one slot.
        reads: Digest of each file that it reads to its bytes.
        makes: Digest of each file that it makes to its bytes.
        peak_bytes: Largest memory of its process.
    """

    name: str
    seconds: float
    reads: Mapping[str, int] = field(default_factory=dict)
    makes: Mapping[str, int] = field(default_factory=dict)
    peak_bytes: int = 0


@dataclass(frozen=True)
class Fleet:
    """Machines that are alike.

    Attributes:
        workers: How many.
        slots: Stages at a time, of each.
        bytes_per_s: Of the link of one worker.
        overhead_s: Of each task: scheduling, the key, the process.
        price_per_hour: Dollars for one worker.
        egress_per_gb: Dollars for 1e9 bytes that leave the fleet.
    """

    workers: int = 1
    slots: int = 1
    bytes_per_s: float = 1.25e9 / 8
    overhead_s: float = 0.05
    price_per_hour: float = 0.0
    egress_per_gb: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """What a fleet takes.

    Attributes:
        work_s: Sum of the stages' own seconds.
        longest_s: The longest chain.
        least_s, scheduled_s, most_s: Lower bound, first-come schedule, upper bound.
        fetched_bytes: To workers, each file once to a worker, in that schedule.
        made_bytes: From workers to the client.
        dollars: For the schedule.
    """

    work_s: float
    longest_s: float
    least_s: float
    scheduled_s: float
    most_s: float
    fetched_bytes: int
    made_bytes: int
    dollars: float


def estimate(tasks: Sequence[Task], fleet: Fleet) -> Estimate:
    """Return what tasks take on a fleet.

    Args:
        tasks: In an order in which they can be done: a file is made before it is read.
        fleet: The machines.
    """
    scheduled_s, fetched, spent = _schedule(tasks, fleet)
    longest = _longest(tasks, spent)
    slots = fleet.workers * fleet.slots
    total = sum(spent.values())
    made = sum(sum(task.makes.values()) for task in tasks)
    return Estimate(
        work_s=sum(task.seconds for task in tasks),
        longest_s=longest,
        least_s=max(longest, total / slots),
        scheduled_s=scheduled_s,
        most_s=total / slots + (1 - 1 / slots) * longest,
        fetched_bytes=fetched,
        made_bytes=made,
        dollars=fleet.workers * fleet.price_per_hour * scheduled_s / 3600 + fleet.egress_per_gb * made / 1e9,
    )


def _schedule(tasks: Sequence[Task], fleet: Fleet) -> tuple[float, int, dict[str, float]]:
    """Give each task, when its files are there, to the worker that has a slot first.

    Returns:
        The end of the last, the bytes fetched, and each task's time with what it fetches.
    """
    maker = {digest: task for task in tasks for digest in task.makes}
    waits = {task.name: {maker[digest].name for digest in task.reads if digest in maker} for task in tasks}
    free = [worker for worker in range(fleet.workers) for _ in range(fleet.slots)]
    held: list[set[str]] = [set() for _ in range(fleet.workers)]
    running: list[tuple[float, int, int, Task]] = []
    order = {task.name: number for number, task in enumerate(tasks)}
    waiting, now, fetched = list(tasks), 0.0, 0
    spent: dict[str, float] = {}
    while waiting or running:
        ready = [task for task in waiting if not waits[task.name]]
        for task in ready[: len(free)]:
            worker = free.pop(0)
            waiting.remove(task)
            needed = sum(size for digest, size in task.reads.items() if digest not in held[worker])
            held[worker] |= {*task.reads, *task.makes}
            fetched += needed
            carried = needed + sum(task.makes.values())
            spent[task.name] = fleet.overhead_s + carried / fleet.bytes_per_s + task.seconds
            heapq.heappush(running, (now + spent[task.name], order[task.name], worker, task))
        if not running:
            raise ValueError(f"{waiting[0].name}: reads what a later stage makes of it")
        now, _, worker, done = heapq.heappop(running)
        free.append(worker)
        for names in waits.values():
            names.discard(done.name)
    return now, fetched, spent


def _longest(tasks: Sequence[Task], spent: Mapping[str, float]) -> float:
    maker = {digest: task.name for task in tasks for digest in task.makes}
    end: dict[str, float] = {}
    for task in tasks:
        before = [end[maker[digest]] for digest in task.reads if maker.get(digest) in end]
        end[task.name] = spent[task.name] + max(before, default=0.0)
    return max(end.values(), default=0.0)
