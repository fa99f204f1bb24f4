"""One way from a plan to an engine, by plugins and host code; and one logger for a process (issue 1475)."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from mode_models import written
from recorded_tensorrt import VERSIONS
from simulated_builder import simulated_tensorrt
from simulated_machine import Machine, OnMachine
from simulated_plan import MAGIC, read_plan, write_plan
from tensorrt_simulation import Simulation, read_model, rows, values

from qcompile.core.artifact import read_manifest
from qcompile.engines.tensorrt.adapter import Adapter
from qcompile.engines.tensorrt.log import build_failure, last_error, make_log, plain, setting
from qcompile.engines.tensorrt.plan import PlanNeeds, needs_of, needs_of_options, open_plan, register_plugins
from qcompile.engines.tensorrt.runner.runner import TensorRTRunner
from qcompile.errors import ArtifactError, InvalidOption, ModelError
from qcompile.spec.tensorrt import TensorRTOptions


@pytest.fixture
def normalized(tmp_path: Path) -> Path:
    """An InstanceNormalization, which is a plugin in engines of 8.5."""
    body = """(float[batch,4,8,8] x) => (float[batch,4,8,8] y)
        <float[4] scale = {1, 2, 3, 4}, float[4] bias = {0, 0, 1, 1}>
        { y = InstanceNormalization <epsilon = 0.00001> (x, scale, bias) }"""
    return written(tmp_path / "normalized.onnx", body, opset=16)


def fresh(version: str, **plan: Any) -> tuple[Adapter, bytes]:
    """A process that has built nothing, and a plan for it."""
    module: Any = simulated_tensorrt(version)
    content: dict[str, Any] = {
        "module": module.__name__, "version": module.__version__, "devices": ["8.6"], "compatible": "NONE",
        "version_compatible": False, "lean_runtime": False, "weights": {}, "layers": [],
        "io": [], "profiles": [], **plan,
    }  # fmt: skip
    target = "tensorrt-rtx" if version == "rtx" else "tensorrt"
    return Adapter(module, target), MAGIC[module.__name__] + json.dumps(content).encode()


@pytest.mark.parametrize(
    ("version", "options", "asked"),
    [
        *[(version, {}, False) for version in ("8.5.3", "10.16", "11.4")],
        *[("10.16", options, True) for options in (
            {"version_compatible": True}, {"hardware_compatible": "ampere+"},
        )],
    ],
)  # fmt: skip
def test_newer_parsers_make_a_layer_of_it_and_a_portable_engine_is_parsed_without_the_plugin(
    version: str, options: dict[str, Any], asked: bool, here: Machine, normalized: Path
) -> None:
    built = here.build(normalized, options=options)
    plugins = ["InstanceNormalization_TRT"] if version == "8.5.3" else []
    assert read_plan(built.path.read_bytes())["plugins"] == plugins
    of_parser = [call for call in here.module.recorded_calls if call.owner == "OnnxParser"]
    flags = [call.args[0].name for call in of_parser if call.member == "set_flag"]
    assert ("NATIVE_INSTANCENORM" in flags) == asked


@pytest.mark.parametrize("version", VERSIONS)
def test_tensorrts_own_plugins_are_there_before_a_plan_is_read(version: str) -> None:
    adapter, plan = fresh(version, plugins=["InstanceNormalization_TRT"])
    bare = adapter.module.Runtime(make_log(adapter.module).logger)
    assert bare.deserialize_cuda_engine(plan) is None
    assert open_plan(adapter, plan, PlanNeeds(), subject="m.engine").engine is not None


def with_a_node_of(library: Path, model: Path) -> Path:
    """Give a graph a node whose operator is a library's, and return the library."""
    library.write_bytes(b"")
    odd = onnx.load(model)
    odd.graph.node[0].op_type, odd.graph.node[0].domain = "Odd", "ours"
    odd.opset_import.add(domain="ours", version=1)
    onnx.save(odd, model)
    return library


@pytest.mark.parametrize("version", ["10.16", "11.4"])
def test_libraries_reach_runtimes(version: str, machine: OnMachine, normalized: Path, tmp_path: Path) -> None:
    library = with_a_node_of(tmp_path / "libours.so", normalized)
    here = machine(version, plugins={str(library): {"Odd"}})
    built = here.build(normalized, options={"plugins": (str(library),)})
    assert here.told("load_library") == [(str(library),)] * 2
    manifest = read_manifest(built.path)
    assert needs_of(manifest).plugins == (str(library),)

    adapter = Adapter(simulated_tensorrt(version, here.circumstances), "tensorrt")
    plan = built.path.read_bytes()
    assert open_plan(adapter, plan, needs_of(manifest), subject="m").engine is not None
    with pytest.raises(ArtifactError, match=r"m: .* cannot load it: .*IPluginCreator not found"):
        open_plan(adapter, plan, PlanNeeds(), subject="m")
    library.unlink()
    with pytest.raises(ArtifactError, match=r"m: needs a library of plugins .*libours.so does not exist"):
        open_plan(adapter, plan, needs_of(manifest), subject="m")


def test_a_library_that_registers_itself_is_loaded_and_kept_from_the_registry(
    version: str, machine: OnMachine, normalized: Path, tmp_path: Path
) -> None:
    library = with_a_node_of(tmp_path / "libours.so", normalized)
    here = machine(version, registering={str(library): {"Odd"}})
    built = here.build(normalized, options={"plugins": (str(library),)})
    assert read_plan(built.path.read_bytes())["plugins"] == ["Odd"]
    assert here.told("load_library") == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_real_registry_refuses_such_a_library_and_we_do_not_ask_it(tmp_path: Path) -> None:
    module = pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    (tmp_path / "ours.c").write_text("int nothing(void) { return 0; }\n")
    library = str(tmp_path / "libours.so")
    subprocess.run(["cc", "-shared", "-fPIC", str(tmp_path / "ours.c"), "-o", library], check=True)
    log = make_log(module)
    builder = module.Builder(log.logger)
    assert builder.get_plugin_registry().load_library(library) is None
    assert "getCreators could not be loaded" in "".join(log.errors)
    register_plugins(Adapter(module, "tensorrt-rtx"), builder, log, [library])


def test_tensorrt_8_5_loads_a_library_into_the_process_and_knows_no_permission() -> None:
    adapter, plan = fresh("8.5.3")
    with pytest.raises(ArtifactError, match="needs a library of plugins that cannot be loaded here"):
        open_plan(adapter, plan, PlanNeeds([__file__]), subject="m")
    assert open_plan(adapter, plan, PlanNeeds(host_code=True), subject="m").engine is not None


@pytest.mark.parametrize("version", ["10.16", "11.4"])
def test_host_code_runs_only_where_it_may(version: str) -> None:
    adapter, plan = fresh(version, version_compatible=True, lean_runtime=True)
    assert open_plan(adapter, plan, PlanNeeds(host_code=True), subject="m").runtime.engine_host_code_allowed
    with pytest.raises(ArtifactError, match=r"lean runtime since .*getEngineHostCodeAllowed\(\) is false"):
        open_plan(adapter, plan, PlanNeeds(), subject="m")
    adapter, plan = fresh(version)
    assert not open_plan(adapter, plan, PlanNeeds(), subject="m").runtime.engine_host_code_allowed


WEIGHTS = {"w": {"bytes": 1000, "sha256": "1"}}


@pytest.mark.parametrize("version", ["10.16", "11.4", "rtx"])
def test_weights_stay_on_the_gpu_as_far_as_the_build_says(version: str) -> None:
    needs = PlanNeeds(weights_on_gpu="20%")
    adapter, plan = fresh(version, streams_weights=True, weights=WEIGHTS)
    assert open_plan(adapter, plan, needs, subject="m").engine.weight_streaming_budget_v2 == 200
    assert open_plan(adapter, plan, PlanNeeds(), subject="m").engine.weight_streaming_budget_v2 == 1000


def test_a_budget_that_tensorrt_does_not_take_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, plan = fresh("10.16", streams_weights=True, weights=WEIGHTS)
    kept = property(lambda _: 1000, lambda *_: None)
    monkeypatch.setattr(adapter.module.ICudaEngine, "weight_streaming_budget_v2", kept)
    with pytest.raises(ArtifactError, match="m: 500 bytes of weights cannot be kept on the GPU"):
        open_plan(adapter, plan, PlanNeeds(weights_on_gpu="50%"), subject="m")


def test_a_compatible_manifest_and_a_trusted_file_permit_it(machine: OnMachine, normalized: Path) -> None:
    manifest = machine("10.16").build(normalized, options={"version_compatible": True}).manifest
    assert needs_of(manifest).host_code
    assert not needs_of(replace(manifest, options={})).host_code
    lean = {"version_compatible": True, "exclude_lean_runtime": True}
    assert not needs_of(replace(manifest, options=lean)).host_code
    assert not needs_of_options(vars(TensorRTOptions(**lean))).host_code
    assert needs_of(None) == PlanNeeds(host_code=True)


def test_a_plan_for_a_core_that_is_not_here_is_refused(machine: OnMachine, normalized: Path) -> None:
    here = machine("8.5.3", dla_cores=1)
    path = here.build(normalized, options={"dla_core": 0}).path
    needs = needs_of(read_manifest(path))
    assert needs.dla_core == 0
    here.circumstances.dla_cores = 0
    with pytest.raises(ArtifactError, match="is for DLA core 0; this machine has 0"):
        open_plan(Adapter(here.module, "tensorrt"), path.read_bytes(), needs, subject="it")


def listen(module: Any) -> tuple[Any, list[tuple[str, str]]]:
    """A logger, and what it will be told: (severity, text)."""
    said: list[tuple[str, str]] = []

    class Log(module.ILogger):  # type: ignore[misc]
        def log(self, severity: Any, message: str) -> None:
            said.append((severity.name, message))

    return Log(), said


@pytest.fixture(params=["real", "simulated"])
def module(request: pytest.FixtureRequest) -> Any:
    """TensorRT-RTX, and its stand-in."""
    if request.param == "simulated":
        return simulated_tensorrt("rtx")
    return pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")


def complain(builder: Any) -> None:
    """Let TensorRT log a warning."""
    assert builder.create_builder_config().hardware_compatibility_level is not None


def test_a_second_logger_is_ignored_while_a_builder_lives(module: Any) -> None:
    gc.collect()
    (first, told_first), (second, told_second) = listen(module), listen(module)
    older, newer = module.Builder(first), module.Builder(second)
    assert [text for _, text in told_second if "differs from one already registered" in text]
    said = len(told_first), len(told_second)
    complain(newer)
    del older
    complain(newer)
    assert len(told_second) == said[1]
    assert len([text for _, text in told_first[said[0] :] if "unsupported" in text]) == 2


def test_what_listens_hears_the_same_logger_and_nothing_from_before(module: Any) -> None:
    logger = make_log(module).logger
    gc.collect()
    complain(module.Builder(logger))  # the logger outlives those who listened, and nobody hears it
    first = make_log(module)
    builder = module.Builder(first.logger)
    complain(builder)
    second = make_log(module)
    assert first.logger is second.logger is logger
    assert first.warnings
    assert not second.warnings
    complain(module.Builder(second.logger))
    assert first.warnings == second.warnings  # once each, and no word of another logger
    assert len(first.warnings) == 1


def test_a_setting_that_was_complained_of_before_is_complained_of_again(module: Any) -> None:
    log = make_log(module)
    builder = module.Builder(log.logger)
    for _ in range(2):
        with (
            pytest.raises(InvalidOption, match=r"`odd`: RTX refuses it: .*unsupported"),
            setting(log, "`odd`", "RTX"),
        ):
            complain(builder)


def test_the_last_errors_are_kept_without_their_source_files_and_warnings_once(module: Any) -> None:
    log, severity = make_log(module), module.ILogger.Severity
    assert last_error(log, "nothing was said") == "nothing was said"
    for index in range(1200):
        log.logger.log(severity.ERROR, f"error {index}")
    assert (len(log.errors), last_error(log, "")) == (1000, "error 1199")
    log.logger.log(severity.INTERNAL_ERROR, "[network.cpp::check::12]: the axis is wrong")
    for level, text in [(severity.WARNING, "slow")] * 2 + [(severity.INFO, "hello")]:
        log.logger.log(level, text)
    assert last_error(log, "") == "the axis is wrong"
    assert log.warnings == ["slow"]


SAYS_NO_KERNEL = "Could not find any implementation for node {ForeignNode[embedding...layer1.norm2/Add_2]}."
NO_KERNEL = f"10: [optimizer.cpp::computeCosts::3728] Error Code 10: Internal Error ({SAYS_NO_KERNEL})"
SAYS_NO_ENGINE = "Assertion engine != nullptr failed."
NO_ENGINE = f"2: [builder.cpp::buildSerializedNetwork::751] Error Code 2: Internal Error ({SAYS_NO_ENGINE} )"
NO_PLUGIN = (
    "5: [pluginV2Runner.cpp::allocateResources::33] Error Code 5: Miscellaneous (no further information)"
)
NOT_STARTED = (
    "6: [standardEngineBuilder.cpp::makeEngineFromGraph::1161] Error Code 6: Internal Error (Engine "
    "generation failed because the engine could not be initialized.)"
)
LEFT_OUT = "Skipping tactic 0x0000000000000000 due to exception cuBLASLt error 1 querying major version."
MYELIN = "Myelin error from unknown graph"
NO_CACHE = f"1: [myelinCache.h::deserializeFromBuffer::52] Error Code 1: Myelin ({MYELIN})"
"""Of TensorRT 8.5.3.1 on an H200 with stubs of cuBLAS and cuDNN, 2026-11-28."""


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (NO_KERNEL, SAYS_NO_KERNEL),
        (NO_ENGINE, SAYS_NO_ENGINE),
        (NO_CACHE, MYELIN),
        ("4: The timing cache will not be used!", "The timing cache will not be used!"),
    ],
)
def test_what_a_real_tensorrt_said_is_told_without_its_places(message: str, said: str) -> None:
    assert plain(message) == said


def test_warnings_that_say_nothing_of_the_model_are_not_kept(module: Any) -> None:
    log = make_log(module)
    for text in (
        "onnx2trt_utils.cpp:377: Your ONNX model has been generated with INT64 weights, while TensorRT does "
        "not natively support INT64. Attempting to cast down to INT32.",
        "ICudaEngine::getProfileDimensions: bindingIndex 0 is not in profile 1. Using bindingIndex = 2 "
        "instead.",
        "One or more weights outside the range of INT32 was clamped",
    ):
        log.add(text, is_error=False)
    assert log.warnings == ["One or more weights outside the range of INT32 was clamped"]


@pytest.mark.parametrize(
    ("errors", "warnings", "said", "hint"),
    [
        (
            [NO_KERNEL, NO_ENGINE],
            [LEFT_OUT],
            f"it has no kernel for a layer: {SAYS_NO_KERNEL}; kernels were left out: cuBLASLt error 1",
            "raise `workspace`",
        ),
        ([NO_PLUGIN, NOT_STARTED, NO_ENGINE], [], "a plugin cannot allocate its resources", "cuDNN"),
        (
            ["7: [a.cpp::b::1] Error Code 7: Internal Error (the cause)", NO_ENGINE],
            [],
            "build it: the cause",
            "",
        ),
        ([NO_ENGINE], [], f"build it: {SAYS_NO_ENGINE}", "try another way"),
        ([], [], "build it: it gave no reason", "try another way"),
    ],
)
def test_a_build_that_fails_tells_the_cause(
    errors: list[str], warnings: list[str], said: str, hint: str, module: Any
) -> None:
    log = make_log(module)
    for text in errors:
        log.add(text, is_error=True)
    for text in warnings:
        log.add(text, is_error=False)
    failure = build_failure(log, "m.onnx: tensorrt", "try another way")
    assert said in failure.message
    assert hint in failure.hint


@pytest.mark.parametrize("closed", [0, 1])
def test_of_two_runners_either_may_be_closed_first(closed: int, simulation: Simulation) -> None:
    model = read_model("negate")
    runners = []
    for name in ("a", "b"):
        path = write_plan(
            simulation.folder / f"{name}.engine", model, simulation.version, profiles=[rows(model, 1, 2, 8)]
        )
        runners.append(TensorRTRunner(simulation.adapter, path))
    runners.pop(closed).close()
    (left,) = runners
    x = values(2, 4)
    np.testing.assert_array_equal(left.infer({"x": x})["y"], -x)
    gpu, ordinary = simulation.gpu, simulation.gpu.enter
    gpu.enter = lambda name: name == "execute_async_v3" or ordinary(name)  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="an illegal memory access was encountered"):
        left.infer({"x": x})
    left.close()
