"""New weights for a built engine, and which GPU builds, calibrates, verifies and refits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from simulated_cuda import SimulatedGpu
from simulated_machine import GPU, Machine, install
from simulated_plan import read_plan

import qcompile
from qcompile.engines.gpu import Gpu
from qcompile.engines.tensorrt import engine
from qcompile.engines.tensorrt.builder import builder, calibration, refit
from qcompile.engines.tensorrt.runner.cuda import current_device
from qcompile.errors import ArtifactError, BuildError, EngineUnavailable, InvalidOption, ModelError
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.tensorrt import TensorRTOptions

MakeFile = Callable[..., Path]
OnMachine = Callable[..., Machine]


@pytest.fixture
def model(tiny_file: MakeFile) -> Path:
    """The tiny residual model."""
    return tiny_file("residual")


@pytest.fixture
def retrained(model: Path, tmp_path: Path) -> Path:
    """The same with other weights."""
    made = onnx.load(model)
    for tensor in made.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(2), tensor.name))
    onnx.save(made, tmp_path / "retrained.onnx")
    return tmp_path / "retrained.onnx"


@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_engine_gets_the_weights_of_another_model(
    version: str, precision: str, machine: OnMachine, model: Path, retrained: Path, tmp_path: Path
) -> None:
    here = machine(version)
    built = here.build(model, precision, options={"refit": True})
    fresh = here.build(retrained, precision, name="fresh", options={"refit": True})
    new = qcompile.refit(built.path, retrained, tmp_path / "new.engine")
    plans = [read_plan(one.path.read_bytes())["weights"] for one in (built, fresh, new)]
    assert plans[2] == plans[1] != plans[0]
    assert new.manifest.stage == "refit"
    assert new.manifest.proof["refitted_with"] == new.manifest.sources["graph"]
    assert new.manifest.proof["layers_by_precision"] == built.manifest.proof["layers_by_precision"]
    assert qcompile.load_artifact(new.path).manifest == new.manifest


@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
def test_layers_that_the_build_kept_in_float32_are_kept_by_the_refit(
    version: str, machine: OnMachine, model: Path, retrained: Path, tmp_path: Path
) -> None:
    here = machine(version)
    kept: dict[str, Any] = {"layers": {"conv1": "fp32"}, "exclude": ["gemm"], "options": {"refit": True}}
    built = here.build(model, "fp16", **kept)
    assert built.manifest.proof["layers_by_precision"] == {
        "fp16": {"CONVOLUTION": 1}, "fp32": {"CONVOLUTION": 1, "MATRIX_MULTIPLY": 1}
    }  # fmt: skip
    fresh = here.build(retrained, "fp16", name="fresh", **kept)
    new = qcompile.refit(built.path, retrained, tmp_path / "new.engine")
    weights = [read_plan(one.path.read_bytes())["weights"] for one in (fresh, new)]
    assert weights[0] == weights[1]
    assert new.manifest.sources["graph"] == fresh.manifest.sources["graph"]


@pytest.mark.parametrize("version", ["10.16", "11.4"])
def test_a_stripped_engine_becomes_whole(
    version: str, machine: OnMachine, model: Path, tmp_path: Path
) -> None:
    here = machine(version)
    stripped = here.build(model, options={"strip_weights": True})
    assert read_plan(stripped.path.read_bytes())["stripped"]
    whole = qcompile.refit(stripped.path, model, tmp_path / "whole.engine")
    plan = read_plan(whole.path.read_bytes())
    assert not plan["stripped"]
    assert all(entry["sha256"] for entry in plan["weights"].values())
    assert whole.manifest.size_bytes > stripped.manifest.size_bytes


@pytest.mark.parametrize("version", ["10.16", "11.4"])
def test_a_stripped_engine_takes_other_weights_only_where_it_was_built_for_refits(
    version: str, machine: OnMachine, model: Path, retrained: Path, tmp_path: Path
) -> None:
    here = machine(version)
    stripped = here.build(model, options={"strip_weights": True})
    with pytest.raises(ModelError, match=r"retrained.onnx: its weights are not those") as caught:
        qcompile.refit(stripped.path, retrained, tmp_path / "new.engine")
    assert "`refit` beside `strip_weights`" in caught.value.hint
    assert not (tmp_path / "new.engine").exists()
    both = here.build(model, name="both", options={"strip_weights": True, "refit": True})
    assert "weights" not in both.manifest.proof
    fresh = here.build(retrained, name="fresh", options={"refit": True})
    new = qcompile.refit(both.path, retrained, tmp_path / "new.engine")
    plans = [read_plan(one.path.read_bytes())["weights"] for one in (fresh, new)]
    assert plans[0] == plans[1]


def test_a_refit_needs_no_budget_for_weights_that_stream(
    machine: OnMachine, model: Path, retrained: Path, tmp_path: Path
) -> None:
    here = machine("10.16")
    built = here.build(model, options={"refit": True, "weight_streaming": "50%"})
    before = len(here.told("weight_streaming_budget_v2"))
    qcompile.refit(built.path, retrained, tmp_path / "new.engine")
    assert len(here.told("weight_streaming_budget_v2")) == before == 1


def test_the_weights_of_a_build_are_the_same_in_a_file_that_stores_them_otherwise(
    machine: OnMachine, model: Path, tmp_path: Path
) -> None:
    stripped = machine("10.16").build(model, options={"strip_weights": True})
    made = onnx.load(model)
    made.doc_string = "exported again"
    made.graph.initializer.sort(key=lambda tensor: tensor.name, reverse=True)
    onnx.save(made, tmp_path / "again.onnx")
    whole = qcompile.refit(stripped.path, tmp_path / "again.onnx", tmp_path / "whole.engine")
    assert whole.manifest.sources["graph"] != stripped.manifest.sources["graph"]


def test_an_engine_that_takes_none_says_how_to_build_one_that_does(
    machine: OnMachine, model: Path, retrained: Path, tmp_path: Path
) -> None:
    built = machine("10.16").build(model)
    with pytest.raises(ArtifactError, match="takes no new weights") as caught:
        qcompile.refit(built.path, retrained, tmp_path / "new.engine")
    assert caught.value.hint == "build it with `refit`"
    assert not (tmp_path / "new.engine").exists()


def test_another_model_is_refused(
    machine: OnMachine, model: Path, tiny_file: MakeFile, tmp_path: Path
) -> None:
    built = machine("10.16").build(model, options={"refit": True})
    with pytest.raises(ModelError, match="its inputs and outputs are not those of"):
        qcompile.refit(built.path, tiny_file("mlp"), tmp_path / "new.engine")


@pytest.mark.parametrize("version", ["8.5.3", "10.16"])
def test_weights_of_another_shape_are_named(
    version: str, machine: OnMachine, model: Path, tmp_path: Path
) -> None:
    built = machine(version).build(model, options={"refit": True})
    made = onnx.load(model)
    for tensor in made.graph.initializer:
        if tensor.name == "w1":
            tensor.CopyFrom(numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "w1"))
    for node in made.graph.node:
        if node.name == "conv1":
            del node.attribute[:]
    onnx.save(made, tmp_path / "other.onnx")
    with pytest.raises(BuildError, match=r"other\.onnx: .*w"):
        qcompile.refit(built.path, tmp_path / "other.onnx", tmp_path / "new.engine")
    assert not (tmp_path / "new.engine").exists()


def test_only_engines_of_tensorrt_can_be_refitted(model: Path, tmp_path: Path) -> None:
    built = qcompile.build(model, tmp_path / "cpu.onnx", target="onnxruntime")
    with pytest.raises(InvalidOption, match="is for onnxruntime; an engine of TensorRT is required"):
        qcompile.refit(built.path, model, tmp_path / "new.engine")


OTHER = Gpu("Simulated L4", "sm89", 24 << 30, "12.4")
GPUS = {0: GPU, 1: OTHER}


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
