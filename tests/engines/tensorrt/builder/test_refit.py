"""New weights for a built engine, and which GPU builds, calibrates, verifies and refits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from simulated_cuda import SimulatedGpu
from simulated_machine import GPU, Machine, install
from simulated_plan import read_plan

import qcompile
from qcompile.artifact import Artifact
from qcompile.engines.gpu import Gpu
from qcompile.engines.tensorrt import engine
from qcompile.engines.tensorrt.builder import builder, calibration, refit
from qcompile.engines.tensorrt.runner.cuda import current_device
from qcompile.errors import ArtifactError, BuildError, EngineUnavailable, InvalidOption, ModelError
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.tensorrt import TensorRTOptions

MakeFile = Callable[..., Path]
OnMachine = Callable[..., Machine]
NEW = "new.engine"


def changed(model: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    """A copy of a model that is changed."""
    proto, path = onnx.load(model), model.with_name("changed.onnx")
    change(proto)
    onnx.save(proto, path)
    return path


@pytest.fixture
def retrained(model: Path) -> Path:
    """The same with other weights."""

    def double(proto: onnx.ModelProto) -> None:
        for tensor in proto.graph.initializer:
            values = numpy_helper.to_array(tensor) * np.float32(2)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    return changed(model, double)


def refitted(built: Artifact, model: Path) -> Artifact:
    return qcompile.refit(built.path, model, built.path.with_name(NEW))


def weights(built: Artifact) -> Any:
    """What a stand-in's plan holds as weights."""
    return read_plan(built.path.read_bytes())["weights"]


@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_engine_gets_the_weights_of_another_model(
    version: str, precision: str, machine: OnMachine, model: Path, retrained: Path
) -> None:
    here = machine(version)
    built = here.build(model, precision, options={"refit": True})
    fresh = here.build(retrained, precision, name="fresh", options={"refit": True})
    new = refitted(built, retrained)
    assert weights(new) == weights(fresh) != weights(built)
    assert new.manifest.stage == "refit"
    assert new.manifest.proof["refitted_with"] == new.manifest.sources["graph"]
    assert new.manifest.proof["layers_by_precision"] == built.manifest.proof["layers_by_precision"]
    assert qcompile.load_artifact(new.path).manifest == new.manifest


@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
def test_layers_that_the_build_kept_in_float32_are_kept_by_the_refit(
    version: str, machine: OnMachine, model: Path, retrained: Path
) -> None:
    here = machine(version)
    kept: dict[str, Any] = {"layers": {"conv1": "fp32"}, "exclude": ["gemm"], "options": {"refit": True}}
    built = here.build(model, "fp16", **kept)
    assert built.manifest.proof["layers_by_precision"] == {
        "fp16": {"CONVOLUTION": 1}, "fp32": {"CONVOLUTION": 1, "MATRIX_MULTIPLY": 1}
    }  # fmt: skip
    fresh = here.build(retrained, "fp16", name="fresh", **kept)
    new = refitted(built, retrained)
    assert weights(new) == weights(fresh)
    assert new.manifest.sources["graph"] == fresh.manifest.sources["graph"]


@pytest.mark.parametrize("version", ["10.16", "11.4"])
def test_stripped_engines_get_weights(version: str, machine: OnMachine, model: Path, retrained: Path) -> None:
    here = machine(version)
    stripped = here.build(model, options={"strip_weights": True})
    assert read_plan(stripped.path.read_bytes())["stripped"]
    with pytest.raises(ModelError, match=r"changed.onnx: its weights are not those") as caught:
        refitted(stripped, retrained)
    assert "`refit` beside `strip_weights`" in caught.value.hint
    assert not stripped.path.with_name(NEW).exists()
    whole = refitted(stripped, model)
    assert not read_plan(whole.path.read_bytes())["stripped"]
    assert all(entry["sha256"] for entry in weights(whole).values())
    assert whole.manifest.size_bytes > stripped.manifest.size_bytes
    both = here.build(model, name="both", options={"strip_weights": True, "refit": True})
    assert "weights" not in both.manifest.proof
    fresh = here.build(retrained, name="fresh", options={"refit": True})
    assert weights(refitted(both, retrained)) == weights(fresh)


def test_a_refit_needs_no_budget_for_streaming(machine: OnMachine, model: Path, retrained: Path) -> None:
    here = machine("10.16")
    built = here.build(model, options={"refit": True, "weight_streaming": "50%"})
    refitted(built, retrained)
    assert len(here.told("weight_streaming_budget_v2")) == 1


def test_weights_are_the_same_in_a_file_that_stores_them_otherwise(machine: OnMachine, model: Path) -> None:
    def export_again(proto: onnx.ModelProto) -> None:
        proto.doc_string = "exported again"
        proto.graph.initializer.sort(key=lambda tensor: tensor.name, reverse=True)

    stripped = machine("10.16").build(model, options={"strip_weights": True})
    whole = refitted(stripped, changed(model, export_again))
    assert whole.manifest.sources["graph"] != stripped.manifest.sources["graph"]


def reshape_a_weight(proto: onnx.ModelProto) -> None:
    for tensor in proto.graph.initializer:
        if tensor.name == "w1":
            tensor.CopyFrom(numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "w1"))
    for node in proto.graph.node:
        if node.name == "conv1":
            del node.attribute[:]


@pytest.mark.parametrize(
    ("version", "other", "error", "said"),
    [
        ("10.16", "not refittable", ArtifactError, "takes no new weights.*build it with `refit`"),
        ("10.16", "mlp", ModelError, "its inputs and outputs are not those of"),
        ("8.5.3", "another shape", BuildError, r"changed\.onnx: .*w"),
        ("10.16", "another shape", BuildError, r"changed\.onnx: .*w"),
    ],
)
def test_what_is_no_model_with_other_weights_is_refused(
    version: str, other: str, error: type[Exception], said: str, machine: OnMachine, model: Path,
    tiny_file: MakeFile,
) -> None:  # fmt: skip
    built = machine(version).build(model, options={"refit": other != "not refittable"})
    new = {"mlp": tiny_file("mlp"), "another shape": changed(model, reshape_a_weight)}.get(other, model)
    with pytest.raises(error, match=f"(?s){said}"):
        refitted(built, new)
    assert not built.path.with_name(NEW).exists()


def test_only_engines_of_tensorrt_can_be_refitted(model: Path, tmp_path: Path) -> None:
    built = qcompile.build(model, tmp_path / "cpu.onnx", target="onnxruntime")
    with pytest.raises(InvalidOption, match="is for onnxruntime; an engine of TensorRT is required"):
        refitted(built, model)


GPUS = {0: GPU, 1: Gpu("Simulated L4", "sm89", 24 << 30, "12.4")}


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch, gpu: SimulatedGpu) -> SimpleNamespace:
    """The contexts that were current at builds and refits, and the GPUs that verified: these cannot run."""
    seen = SimpleNamespace(contexts=[], verified=[])
    ordinary = refit.open_plan

    def opened(*arguments: Any, **named: Any) -> Any:
        seen.contexts.append(gpu.stack[-1])
        return ordinary(*arguments, **named)

    def refuse(_: Any, path: Path, use: Any, declared: Any) -> Any:
        seen.verified.append(use.device)
        raise EngineUnavailable(f"{path.name} and {declared} are not run", engine="tensorrt")

    monkeypatch.setattr(refit, "open_plan", opened)
    monkeypatch.setattr("qcompile.engines.tensorrt.builder.inspector.open_plan", opened)
    monkeypatch.setattr(engine.TensorRT, "_opened", refuse)
    return seen


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, used: SimpleNamespace) -> OnMachine:
    """`two_gpus("10.16")` is a machine with that TensorRT and two GPUs."""

    def make(version: str) -> Machine:
        here = install(monkeypatch, tmp_path, version, device="8.9")
        for home in (builder, engine, refit):
            monkeypatch.setattr(home, "find_gpu", lambda number=0: GPUS.get(number))
        why_not = dict.fromkeys(GPUS, "")
        monkeypatch.setattr(engine, "why_not_gpu", lambda n: why_not.get(n, f"there is no GPU number {n}"))
        assert used.verified == []
        return here

    return make


@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
def test_the_gpu_that_is_named_builds_and_verifies_and_refits(
    version: str, two_gpus: OnMachine, gpu: SimulatedGpu, used: SimpleNamespace, model: Path
) -> None:
    built = two_gpus(version).build(model, options={"device": 1, "refit": True})
    assert built.manifest.device["gpu"] == "Simulated L4"
    assert built.manifest.options["device"] == 1
    assert (used.contexts, used.verified) == ([gpu.primary(1)], [1])
    refitted(built, model)
    assert used.contexts == [gpu.primary(1)] * 2


def test_the_first_gpu_builds_where_a_caller_has_another_one_current(
    two_gpus: OnMachine, gpu: SimulatedGpu, used: SimpleNamespace, model: Path
) -> None:
    here = two_gpus("10.16")
    with current_device(1, "another"):
        here.build(model)
    assert used.contexts == [gpu.primary(0)]


def test_calibration_copies_to_it(
    two_gpus: OnMachine, model: Path, samples: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: list[int] = []
    memory = SimpleNamespace(copy=lambda *_: 1000, close=lambda: None)
    monkeypatch.setattr(calibration, "Device", lambda device: devices.append(device) or memory)
    data = str(samples("residual"))
    two_gpus("8.5.3").build(model, "int8", calibrator="native", data=data, options={"device": 1})
    assert devices == [1]


def test_a_gpu_that_is_not_there_is_refused_before_any_work(two_gpus: OnMachine, model: Path) -> None:
    here = two_gpus("10.16")
    with pytest.raises(InvalidOption, match="`device`: there is no GPU number 2"):
        here.build(model, options={"device": 2})
    assert here.nothing_built
    with pytest.raises(InvalidOption, match="excludes `gpus`"):  # a build ahead of time uses none
        BuildSpec(target="tensorrt-rtx", gpus=("sm86",), tensorrt=TensorRTOptions(device=1))
