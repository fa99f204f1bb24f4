"""How often two runs of one file are called different, and a slower file slower: the real rounds and
verdicts on simulated machines whose noise is of the kinds that real ones have. Seeds are fixed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import pytest

from qcompile.bench.measuring.rounds import TimingSeries, measure
from qcompile.bench.statistics.speedup import speedup

CALL_S = 0.06
LAUNCH_S = 0.5
BENCHES = 80


@dataclass
class Machine:
    """A simulated machine.

    Attributes:
        white: Independent noise of each block, as a share.
        drift: Level that wanders for all alike.
        own: Level that wanders for each process by itself, remembered over `memory` of a block.
        burst: Share of blocks that something else disturbs, by up to a half.
        process: How much two processes of one file differ for as long as they live.
        file: How much two copies of one file differ in all their processes, which they do not.
        second: How much a block gains from following one of its own.
    """

    white: float = 0.003
    drift: float = 0.01
    own: float = 0.0
    memory: float = 0.8
    burst: float = 0.0
    process: float = 0.0
    file: float = 0.0
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

    def __init__(self, name: str, simulation: Simulation, call_s: float, file: float) -> None:
        self.name, self.simulation, self.call_s = name, simulation, call_s
        noise, machine = simulation.noise, simulation.machine
        self.offset = file + noise.gauss(0.0, machine.process)
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


def verdicts(machine: Machine, slower: float, *, seed: int, benches: int = BENCHES) -> list[str]:
    """The verdict of each of many benches, each with launches of its own."""
    found = []
    for number in range(benches):
        simulation = Simulation(machine, random.Random(1000 * seed + number))
        call_s = {"a": CALL_S, "b": CALL_S * (1.0 + slower)}
        files = {name: simulation.noise.gauss(0.0, machine.file) for name in call_s}
        timed = {name: TimingSeries() for name in call_s}

        def launch() -> dict[str, Any]:
            simulation.now_s += LAUNCH_S  # noqa: B023 (called in this turn of the loop)
            return {name: SimulatedWorker(name, simulation, call_s[name], files[name]) for name in call_s}  # noqa: B023

        measure(
            launch(), launch, "a", timed, max_time_s=60.0, precision_target=0.01, launch_s=LAUNCH_S,
            progress=lambda _: None, clock=simulation.clock,
        )  # fmt: skip
        found.append(speedup(timed["a"].launches_ms, timed["b"].launches_ms).verdict)
    return found


@pytest.mark.parametrize("name", MACHINES)
def test_two_runs_of_one_file_are_rarely_called_different(name: str) -> None:
    found = verdicts(MACHINES[name], 0.0, seed=1)
    different = sum(verdict != "no difference" for verdict in found)
    assert different <= BENCHES * 0.05, found


@pytest.mark.parametrize("name", ["quiet", "noisy", "a neighbour stays for seconds", "as measured"])
def test_three_percent_slower_is_called_slower(name: str) -> None:
    found = verdicts(MACHINES[name], 0.03, seed=2)
    assert found.count("slower") >= 0.9 * BENCHES, found
    assert "faster" not in found


@pytest.mark.parametrize(("name", "slower"), [("crowded", 0.15), ("processes differ much", 0.05)])
def test_what_is_slower_still_is_seen_on_bad_machines(name: str, slower: float) -> None:
    found = verdicts(MACHINES[name], slower, seed=3)
    assert found.count("slower") >= 0.9 * BENCHES, found
    assert "faster" not in found


def test_these_tests_can_fail() -> None:
    """Files that differ by two percent in all their processes are called different."""
    found = verdicts(Machine(file=0.02), 0.0, seed=4)
    assert sum(verdict != "no difference" for verdict in found) > BENCHES * 0.2
