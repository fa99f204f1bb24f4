"""What an execution context has memory for: all profiles, the chosen one, or the shapes of now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_cuda import SimulatedGpu
from simulated_engine import CONTEXT_BYTES
from tensorrt_simulation import Simulation, make_adapter, read_model, rows, values

from qcompile.engines.tensorrt.plan import PlanNeeds

BUFFERS = {2: 2 * 2 * 4 * 4, 8: 2 * 8 * 4 * 4}
"""Rows to the bytes of x and y."""


@pytest.fixture(params=["10.16", "11.4", "rtx"])
def simulation(request: pytest.FixtureRequest, gpu: SimulatedGpu, tmp_path: Path) -> Simulation:
    """Each TensorRT that has a choice."""
    return Simulation(request.param, gpu, make_adapter(request.param, gpu), tmp_path)


def opened(simulation: Simulation, allocation: str, **more: Any) -> Any:
    """A runner of an engine with two profiles: 1 to 4 rows, and 5 to 8."""
    model = read_model("negate")
    profiles = [rows(model, 1, 2, 4), rows(model, 5, 8, 8)]
    needs = PlanNeeds(allocation=allocation)
    return simulation.open("negate", runner={"needs": needs, **more}, profiles=profiles)


def infers(runner: Any, count: int) -> None:
    """Run, and compare."""
    x = values(count, 4, seed=count)
    np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)


@pytest.mark.parametrize("allocation", ["", "static"])
def test_memory_for_all_profiles_is_the_default(simulation: Simulation, allocation: str) -> None:
    with opened(simulation, allocation) as runner:
        infers(runner, 2)
        assert runner.device_memory_bytes == 2 * CONTEXT_BYTES + BUFFERS[2]


def test_memory_for_the_chosen_profile(simulation: Simulation) -> None:
    with opened(simulation, "profile") as runner:
        infers(runner, 2)
        assert runner.device_memory_bytes == CONTEXT_BYTES + BUFFERS[2]
        infers(runner, 8)
        assert runner.device_memory_bytes == 2 * CONTEXT_BYTES + BUFFERS[8]
    assert strategies(simulation) == ["ON_PROFILE_CHANGE"]


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_memory_for_the_shapes_of_now(simulation: Simulation, cuda_graph: bool) -> None:
    with opened(simulation, "runtime", cuda_graph=cuda_graph) as runner:
        for count in (2, 8, 2, 2):
            infers(runner, count)
        grown = 256 * 8 * 4
        contexts = len(simulation.told("update_device_memory_size_for_shapes"))
        assert contexts == (2 if cuda_graph and simulation.version != "rtx" else 3)
        if not cuda_graph:
            assert runner.device_memory_bytes == grown + BUFFERS[8]
    assert set(strategies(simulation)) == {"USER_MANAGED"}
    assert simulation.gpu.live["device memory"] == 0


def strategies(simulation: Simulation) -> list[str]:
    """The strategies that execution contexts were made with."""
    member = "set_execution_context_allocation_strategy"
    calls = simulation.told(member if simulation.version == "rtx" else "create_execution_context")
    return [args[0].name for args in calls]
