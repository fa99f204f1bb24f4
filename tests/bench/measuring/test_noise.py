"""A disturbed run says by what; a quiet one says nothing."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import pytest

from qcompile.bench.measuring.environment import Effort, environment, machine_of, noise, state

QUIET: dict[str, Any] = {
    "cpu_ticks": {"busy_s": 0.0, "stolen_s": 0.0, "idle_s": 0.0}, "frequency_mhz": 3000.0,
    "cpu_limited_us": 0.0, "gpu": None,
}  # fmt: skip
AFTER = QUIET | {"cpu_ticks": {"busy_s": 10.0, "stolen_s": 0.0, "idle_s": 10.0}}
EFFORT = Effort(seconds=10.0, cpu_s=9.9, involuntary_switches=50, worker_cpu_s=9.5)
STEADY = [5.0] * 12


def reasons(after: dict[str, Any], effort: Effort = EFFORT, medians: list[float] = STEADY,
            governor: str | None = None, before: dict[str, Any] = QUIET) -> list[str]:  # fmt: skip
    found = noise(before, after, effort, medians, governor=governor)
    assert found["noisy"] == bool(found["reasons"])
    return list(found["reasons"])


def test_a_quiet_run_says_nothing() -> None:
    assert reasons(AFTER) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cpu_ticks": {"busy_s": 15.0, "stolen_s": 0.0, "idle_s": 5.0}}, "other processes took 26%"),
        ({"cpu_ticks": {"busy_s": 10.0, "stolen_s": 1.0, "idle_s": 9.0}}, "hypervisor took 5.0%"),
        ({"cpu_limited_us": 2e6}, "CPU limit kept threads waiting for 2.0 s"),
        ({"frequency_mhz": 2000.0}, "from 3000 to 2000 MHz"),
        ({"gpu": {"throttled": ["power cap"]}}, r"throttled \(power cap\)"),
    ],
)
def test_what_disturbed_is_named(change: dict[str, Any], said: str) -> None:
    import re

    [reason] = reasons(AFTER | change)
    assert re.search(said, reason)
    assert ": " in reason, "and what to do"


def test_lost_cores_drift_and_governor_are_named() -> None:
    [reason] = reasons(AFTER, Effort(10.0, 9.9, 2000, 9.5))
    assert "lost their core 211 times per second" in reason
    [reason] = reasons(AFTER, medians=[5.0 + 0.1 * i for i in range(12)])
    assert "became 16% slower" in reason
    assert reasons(AFTER, medians=[5.0, 9.0]) == []
    [reason] = reasons(AFTER | {"frequency_mhz": 1000.0}, governor="powersave")
    assert "powersave" in reason


def test_a_system_that_tells_nothing_is_not_called_noisy() -> None:
    silent = {"cpu_ticks": None, "frequency_mhz": None, "cpu_limited_us": None, "gpu": None}
    assert reasons(silent, before=silent) == []


def burn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_a_neighbour_is_really_seen() -> None:
    before = state()
    if before["cpu_ticks"] is None:
        pytest.skip("this system has no /proc/stat")
    neighbour = multiprocessing.get_context("spawn").Process(target=burn, args=(60.0,))
    neighbour.start()
    try:
        deadline = time.monotonic() + 60.0
        while state()["cpu_ticks"]["busy_s"] - before["cpu_ticks"]["busy_s"] < 1.0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        neighbour.terminate()
        neighbour.join()
    after = state()
    found = noise(before, after, Effort(1.0, 0.0, 0, 0.0), STEADY)
    assert any("other processes took" in reason for reason in found["reasons"])


def test_the_environment_names_the_machine() -> None:
    found = environment(2)
    assert found["threads"] == 2
    assert found["packages"]["qcompile"]
    assert bool(found["gpu"]) != bool(found.get("why_no_gpu"))
    machine = machine_of(found)
    assert machine["processor"]
    assert machine["cores_usable"] == len(found["affinity"] or []) or None
    assert machine_of(found) == machine_of(environment(1))
