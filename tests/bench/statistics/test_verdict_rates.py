"""How often two runs of one file are called different, and a slower file slower: the real rounds and
verdicts on simulated machines whose noise is of the kinds that real ones have. Seeds are fixed."""

from __future__ import annotations

import random
from typing import Any

import pytest
from bench_simulation import MACHINES, Machine, SimulatedWorker, Simulation

from qcompile.bench.measuring.rounds import TimingSeries, measure
from qcompile.bench.statistics.speedup import speedup

CALL_S = 0.06
LAUNCH_S = 0.5
BENCHES = 80


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
