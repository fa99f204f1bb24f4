"""Which GPU builds: its context is current meanwhile, and calibration, verification and refit use it too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_cuda import SimulatedGpu
from simulated_machine import GPU, Machine, install

import qcompile
from qcompile.engines.gpu import Gpu
from qcompile.engines.tensorrt import engine
from qcompile.engines.tensorrt.builder import builder, calibration, refit
from qcompile.engines.tensorrt.runner.cuda import current_device
from qcompile.errors import EngineUnavailable, InvalidOption
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.tensorrt import TensorRTOptions

OTHER = Gpu("Simulated L4", "sm89", 24 << 30, "12.4")
GPUS = {0: GPU, 1: OTHER}

MakeFile = Callable[..., Path]
OnMachine = Callable[..., Machine]


@pytest.fixture
def run_on(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The GPUs that engines were verified on, which these cannot."""
    seen: list[int] = []

    def opened(_: Any, path: Path, use: Any, declared: Any) -> Any:
        seen.append(use.device)
        raise EngineUnavailable(f"{path.name} and {declared} are not run", engine="tensorrt")

    monkeypatch.setattr(engine.TensorRT, "_opened", opened)
    return seen


@pytest.fixture
def machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpu: SimulatedGpu, run_on: list[int]
) -> OnMachine:
    """`machine("10.16")` is a machine with that TensorRT and two GPUs."""

    def make(version: str) -> Machine:
        assert run_on == []
        here = install(monkeypatch, tmp_path, version, device="8.9")
        for home in (builder, engine, refit):
            monkeypatch.setattr(home, "find_gpu", lambda number=0: GPUS.get(number))
        monkeypatch.setattr(
            engine, "why_not_gpu", lambda n: "" if n in GPUS else f"there is no GPU number {n}"
        )
        assert gpu.is_clean
        return here

    return make


@pytest.fixture
def current(gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The context that was current at each build and refit."""
    seen: list[int] = []
    ordinary = refit.open_plan

    def opened(*arguments: Any, **named: Any) -> Any:
        seen.append(gpu.stack[-1])
        return ordinary(*arguments, **named)

    monkeypatch.setattr(refit, "open_plan", opened)
    monkeypatch.setattr("qcompile.engines.tensorrt.builder.inspector.open_plan", opened)
    return seen


@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
def test_the_gpu_that_is_named_builds_and_verifies(
    version: str,
    machine: OnMachine,
    gpu: SimulatedGpu,
    current: list[int],
    run_on: list[int],
    tiny_file: MakeFile,
) -> None:
    built = machine(version).build(tiny_file("residual"), options={"device": 1})
    assert built.manifest.device["gpu"] == "Simulated L4"
    assert current == [gpu.primary(1)]
    assert run_on == [1]
    assert built.manifest.options["device"] == 1


def test_the_first_gpu_builds_where_a_caller_has_another_one_current(
    machine: OnMachine, gpu: SimulatedGpu, current: list[int], tiny_file: MakeFile
) -> None:
    here = machine("10.16")
    with current_device(1, "another"):
        here.build(tiny_file("residual"))
    assert current == [gpu.primary(0)]


def test_calibration_copies_to_it(
    machine: OnMachine, tiny_file: MakeFile, samples: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    class Memory:
        def __init__(self, device: int) -> None:
            made.append(device)

        def copy(self, name: str, array: np.ndarray[Any, Any]) -> int:
            return 1000 + len(name) + array.nbytes

        def close(self) -> None:
            """Nothing to free."""

    monkeypatch.setattr(calibration, "Device", Memory)
    data = str(samples("residual"))
    machine("8.5.3").build(
        tiny_file("residual"), "int8", calibrator="native", data=data, options={"device": 1}
    )
    assert made == [1]


def test_a_refit_happens_where_it_was_built(
    machine: OnMachine, gpu: SimulatedGpu, current: list[int], tiny_file: MakeFile, tmp_path: Path
) -> None:
    here = machine("10.16")
    built = here.build(tiny_file("residual"), options={"device": 1, "refit": True})
    qcompile.refit(built.path, tiny_file("residual"), tmp_path / "new.engine")
    assert current == [gpu.primary(1)] * 2


def test_a_gpu_that_is_not_there_is_refused_before_any_work(machine: OnMachine, tiny_file: MakeFile) -> None:
    here = machine("10.16")
    with pytest.raises(InvalidOption, match="`device`: there is no GPU number 2"):
        here.build(tiny_file("residual"), options={"device": 2})
    assert here.nothing_built


def test_a_build_ahead_of_time_uses_none() -> None:
    options = TensorRTOptions(device=1)
    with pytest.raises(InvalidOption, match="excludes `gpus`"):
        BuildSpec(target="tensorrt-rtx", gpus=("sm86",), tensorrt=options)
