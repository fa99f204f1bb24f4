"""What is kept for another build: new weights for an engine, on which GPU, and a cache of timed kernels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from simulated_cuda import SimulatedGpu
from simulated_machine import GPU, Machine, MakeFile, OnMachine, install
from simulated_plan import read_plan

import qcompile
from qcompile.core.artifact import Artifact
from qcompile.engines.gpu import Gpu
from qcompile.engines.tensorrt import engine
from qcompile.engines.tensorrt.builder import builder, calibration, configure, refit
from qcompile.engines.tensorrt.runner.cuda import current_device
from qcompile.errors import ArtifactError, BuildError, EngineUnavailable, InvalidOption, ModelError
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.tensorrt import TensorRTOptions

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


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_engine_gets_other_weights(precision: str, here: Machine, model: Path, retrained: Path) -> None:
    built = here.build(model, precision, options={"refit": True})
    fresh = here.build(retrained, precision, name="fresh", options={"refit": True})
    new = refitted(built, retrained)
    assert weights(new) == weights(fresh) != weights(built)
    assert new.manifest.stage == "refit"
    assert new.manifest.proof["refitted_with"] == new.manifest.sources["graph"]
    assert new.manifest.proof["layers_by_precision"] == built.manifest.proof["layers_by_precision"]
    assert qcompile.load_artifact(new.path).manifest == new.manifest


def test_layers_kept_in_float32_are_kept_by_the_refit(here: Machine, model: Path, retrained: Path) -> None:
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
def test_stripped_engines_get_weights(here: Machine, model: Path, retrained: Path) -> None:
    stripped = here.build(model, options={"strip_weights": True})
    assert read_plan(stripped.path.read_bytes())["stripped"]
    with pytest.raises(ModelError, match=r"changed.onnx: its weights differ; ") as caught:
        refitted(stripped, retrained)
    assert "both `refit` and `strip_weights`" in caught.value.hint
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
    other: str, error: type[Exception], said: str, here: Machine, model: Path,
    tiny_file: MakeFile,
) -> None:  # fmt: skip
    built = here.build(model, options={"refit": other != "not refittable"})
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

    def refuse(_: Any, path: Path, use: Any, *, declared: Any) -> Any:
        seen.verified.append(use.device)
        raise EngineUnavailable(f"{path.name} and {declared} are not run", engine="tensorrt")

    monkeypatch.setattr(refit, "open_plan", opened)
    monkeypatch.setattr("qcompile.engines.tensorrt.builder.inspector.open_plan", opened)
    monkeypatch.setattr(engine, "TensorRTRunner", refuse)
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
    monkeypatch.setattr(calibration, "DeviceBuffers", lambda device: devices.append(device) or memory)
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


def caches(folder: Path) -> list[Path]:
    """The caches of the user's folder."""
    return sorted((folder / "cache/qcompile/timing").glob("*.cache"))


def tactics(path: Path) -> set[str]:
    """What a stand-in's cache knows."""
    content = path.read_bytes()
    return set(json.loads(content[content.index(b"{") :])["tactics"])


def test_the_next_build_measures_nothing(version: str, here: Machine, model: Path, tmp_path: Path) -> None:
    here.build(model)
    measured = list(here.circumstances.measured)
    assert measured
    (path,) = caches(tmp_path)
    assert path.name.startswith(f"tensorrt-{version}")
    assert "Simulated_A10-sm86" in path.name
    here.build(model)
    assert here.circumstances.measured == measured


def test_what_another_build_wrote_meanwhile_is_kept(
    machine: OnMachine, model: Path, tiny_file: MakeFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, path = machine("10.16"), tmp_path / "shared.cache"
    merge, entered = configure.merge_cache, []

    def while_another_builds(*arguments: Any) -> tuple[str, ...]:
        if not entered:
            entered.append(1)
            here.build(tiny_file("mlp"), name="other", options={"timing_cache": str(path)})
        return merge(*arguments)

    monkeypatch.setattr(builder, "merge_cache", while_another_builds)
    here.build(model, options={"timing_cache": str(path)})
    names = {entry.split(":")[0] for entry in tactics(path)}
    assert {"conv1", "matmul1"} <= names


@pytest.mark.parametrize("foreign", [True, False])
def test_a_foreign_or_damaged_file_of_the_user_is_not_used_said_and_left_alone(
    version: str, foreign: bool, machine: OnMachine, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "t.cache"
    path.write_bytes(b"garbage")
    if foreign:
        path.unlink()
        machine(version, device="8.0").build(model, options={"timing_cache": str(path)})
    before = path.read_bytes()
    here = machine(version)
    built = here.build(model, name="second", options={"timing_cache": str(path)})
    assert built.path.is_file()
    assert here.circumstances.measured
    warnings = "\n".join(built.manifest.warnings)
    assert f"timing cache {path} is not used, kernels are timed again: " in warnings
    assert f"timing cache {path}: kernel timings are not saved: " in warnings
    assert path.read_bytes() == before


def test_8_5_builds_where_it_cannot_read_its_cache(machine: OnMachine, model: Path, tmp_path: Path) -> None:
    here = machine("8.5.3", reads_no_caches=True)
    first = here.build(model)
    assert not [text for text in first.manifest.warnings if "cache" in text]
    measured = len(here.circumstances.measured)
    again = here.build(model, name="again")
    assert len(here.circumstances.measured) == 2 * measured
    (said,) = [text for text in again.manifest.warnings if "not used" in text]
    assert "Myelin error from unknown graph" in said
    assert again.path.is_file()
    (path,) = caches(tmp_path)
    assert tactics(path)


def test_a_damaged_file_of_ours_is_replaced(machine: OnMachine, model: Path, tmp_path: Path) -> None:
    here = machine("10.16")
    here.build(model)
    (path,) = caches(tmp_path)
    path.write_bytes(b"half of a file")
    built = here.build(model, name="again")
    assert [text for text in built.manifest.warnings if "it will be replaced" in text]
    assert tactics(path)


@pytest.mark.parametrize("fault", ["serialize", "get_timing_cache", "combine"])
def test_the_plan_is_on_the_disk_before_the_cache_is_merged_and_outlives_its_failure(
    fault: str, machine: OnMachine, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, written = machine("8.5.3"), list[bool]()
    here.build(model)

    def failing(*_: object) -> None:
        written.extend(path.is_file() for path in (tmp_path / "built").glob(".*/second.engine"))
        if fault == "combine":
            raise RuntimeError("a binding that raises")

    owner = here.module.IBuilderConfig if fault == "get_timing_cache" else here.module.ITimingCache
    monkeypatch.setattr(owner, fault, failing)
    built = here.build(model, name="second")
    assert built.path.is_file()
    assert written == [True]
    assert [text for text in built.manifest.warnings if "kernel timings are not saved" in text]


def test_an_unwritable_folder_is_named(machine: OnMachine, model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOption, match=r"timing cache .*file/t.cache"):
        machine("10.16").build(model, options={"timing_cache": str(tmp_path / "file/t.cache")})


def verbosity(path: Path) -> Any:
    """What a stand-in's plan was built with."""
    return read_plan(path.read_bytes())["verbosity"]


@pytest.mark.parametrize("verbosity_option", ["none", "layer-names"])
def test_an_engine_that_tells_no_types_is_built_once_and_its_precision_is_unreported(
    verbosity_option: str, here: Machine, model: Path
) -> None:
    plain = here.build(model, "fp16")
    quiet = here.build(model, "fp16", name="quiet", options={"profiling_verbosity": verbosity_option})
    assert verbosity(plain.path) == "DETAILED"
    assert verbosity(quiet.path) == ("NONE" if verbosity_option == "none" else "LAYER_NAMES_ONLY")
    (layers,) = plain.manifest.proof["layers_by_precision"].values()
    proof = quiet.manifest.proof
    assert proof["layers_by_precision"] == {"unreported": layers}
    assert (proof["reached_in_precision"], proof["unreported_share"], proof["missed"]) == (0, 1.0, {})
    assert ("no other type is permitted" in proof["evidence"]) == (proof["typing"] == "strong")
    assert len(here.told("build_serialized_network")) == 2
