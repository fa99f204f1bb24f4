"""How often a gate fails one file against itself, and how often it catches 5%: the real rounds and the real
rule on simulated machines (`bench_simulation`). Seeds are fixed."""

from __future__ import annotations

import random
from typing import Any

import pytest
from bench_simulation import MACHINES, SimulatedWorker, Simulation

from qcompile.bench.gate.checks import Decision, GateRule, decide, slowdown
from qcompile.bench.measuring.rounds import TimingSeries, measure

CALL_S, LAUNCH_S, MAX_TIME_S, LIMIT = 0.03, 1.0, 30.0, 0.02
GATES = 40


def gates(machine: str, slower: float) -> tuple[list[Decision], float]:
    """The decisions of 40 gates, and the mean of their simulated seconds."""
    found: list[Decision] = []
    seconds = 0.0
    for number in range(GATES):
        simulation = Simulation(MACHINES[machine], random.Random(5000 + number))
        call_s = {"old": CALL_S, "new": CALL_S * (1.0 + slower)}
        timed = {name: TimingSeries() for name in call_s}

        def launch() -> dict[str, Any]:
            simulation.now_s += LAUNCH_S  # noqa: B023 (called in this turn of the loop)
            return {name: SimulatedWorker(name, simulation, call_s[name], 0.0) for name in call_s}  # noqa: B023

        measure(
            launch(), launch, "old", timed, max_time_s=MAX_TIME_S, precision_target=0.5, launch_s=LAUNCH_S,
            decided=GateRule("old", "new", LIMIT), progress=lambda _: None, clock=simulation.clock,
        )  # fmt: skip
        found.append(decide(slowdown(timed["old"].launches_ms, timed["new"].launches_ms), LIMIT))
        seconds += simulation.now_s
    return found, seconds / GATES


@pytest.mark.parametrize("machine", ["quiet", "noisy", "a neighbour stays for seconds", "as measured"])
def test_one_file_does_not_fail_and_five_percent_are_caught_in_36_of_40(machine: str) -> None:
    same, same_s = gates(machine, 0.0)
    slower, slower_s = gates(machine, 0.05)
    assert same.count("slower") == 0
    assert same.count("not slower") >= GATES // 2
    assert slower.count("slower") >= 36
    assert slower_s < same_s < MAX_TIME_S


@pytest.mark.parametrize("machine", ["processes differ much", "crowded"])
def test_nothing_fails_on_a_bad_machine_that_is_not_slower(machine: str) -> None:
    same, _ = gates(machine, 0.0)
    assert same.count("slower") == 0
