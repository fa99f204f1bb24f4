"""Simulated machines and workers for the real rounds of a bench: noise of the kinds that real ones have."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from qcompile.bench.measure.rounds import StopRule, TimingSeries, measure
from qcompile.core.progress import silent
from qcompile.spec.measure import BenchOptions


@dataclass
class Machine:
    """A simulated machine.

    Attributes:
        white: Independent noise of each block, as a share.
        drift: Level that wanders for all alike.
        own: Level that wanders for each process by itself, remembered over `memory` of a block.
        burst: Share of blocks that something else disturbs, by up to a half.
        process: How much two processes of one file differ for as long as they live.
        second: How much a block gains from following one of its own.
    """

    white: float = 0.003
    drift: float = 0.01
    own: float = 0.0
    memory: float = 0.8
    burst: float = 0.0
    process: float = 0.0
    second: float = 0.0


MACHINES = {
    "quiet": Machine(),
    "noisy": Machine(white=0.02, drift=0.02, second=0.003),
    "a neighbour stays for seconds": Machine(white=0.01, drift=0.02, own=0.01, burst=0.05),
    "as measured": Machine(white=0.01, own=0.003, burst=0.02, process=0.007),
    "processes differ much": Machine(white=0.005, own=0.003, process=0.015),
    "crowded": Machine(white=0.05, drift=0.05, own=0.03, burst=0.2, process=0.01),
}


class Simulation:
    """Time that passes only in calls, and the level of the machine over it."""

    def __init__(self, machine: Machine, noise: random.Random) -> None:
        self.machine, self.noise = machine, noise
        self.now_s, self.level, self.last = 0.0, 0.0, ""

    def clock(self) -> float:
        return self.now_s


class SimulatedWorker:
    """What `measure` needs of a worker: it answers with latencies."""

    def __init__(self, name: str, simulation: Simulation, call_s: float) -> None:
        self.name, self.simulation, self.call_s = name, simulation, call_s
        noise, machine = simulation.noise, simulation.machine
        self.offset = noise.gauss(0.0, machine.process)
        self.level = noise.gauss(0.0, machine.own)

    def ask(self, do: str, *, iterations: int, **_: Any) -> dict[str, Any]:
        one, machine = self.simulation, self.simulation.machine
        one.level = 0.98 * one.level + one.noise.gauss(0.0, machine.drift * 0.2)
        keep = machine.memory
        self.level = keep * self.level + one.noise.gauss(0.0, machine.own * math.sqrt(1.0 - keep**2))
        change = one.level + self.level + self.offset + one.noise.gauss(0.0, machine.white)
        change += 0.5 * one.noise.random() * (one.noise.random() < machine.burst)
        change -= machine.second * (one.last == self.name)
        one.last = self.name
        ns = int(self.call_s * math.exp(change) * 1e9)
        one.now_s += iterations * ns / 1e9
        return {"ns": [ns] * iterations, "at_rest": True}

    def freeze(self) -> None:
        raise AssertionError("it is at rest")

    def kill(self) -> None:
        raise AssertionError("it does not fail")


def simulate(
    machine: Machine,
    seed: int,
    call_s: dict[str, float],
    *,
    launch_s: float,
    decided: StopRule | None = None,
    **options: Any,
) -> tuple[dict[str, list[list[float]]], float]:
    """Time artifacts of so many seconds a call against the first; return their launches and when it ended."""
    simulation = Simulation(machine, random.Random(seed))
    timed = {name: TimingSeries() for name in call_s}

    def launch() -> dict[str, Any]:
        simulation.now_s += launch_s
        return {name: SimulatedWorker(name, simulation, seconds) for name, seconds in call_s.items()}

    measure(
        launch(), lambda _: launch(), next(iter(call_s)), timed, BenchOptions(**options), launch_s=launch_s,
        progress=silent, decided=decided, clock=simulation.clock,
    )  # fmt: skip
    return {name: series.launches_ms for name, series in timed.items()}, simulation.now_s
