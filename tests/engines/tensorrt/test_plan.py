"""One way from a plan to an engine: plugins, host code, and processes that have built nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from recorded_tensorrt import VERSIONS
from simulated_builder import simulated_tensorrt
from simulated_machine import Machine
from simulated_plan import MAGIC, read_plan
from tensorrt_simulation import Simulation, values

from qcompile.artifact import read_manifest
from qcompile.engines.tensorrt.adapter import Adapter
from qcompile.engines.tensorrt.log import make_log
from qcompile.engines.tensorrt.plan import PlanNeeds, needs_of, needs_of_options, open_plan, register_plugins
from qcompile.errors import ArtifactError
from qcompile.spec.tensorrt import TensorRTOptions

INSTANCE_NORM = """<ir_version: 8, opset_import: ["" : 16]>
normalized (float[batch,4,8,8] x) => (float[batch,4,8,8] y)
<float[4] scale = {1, 2, 3, 4}, float[4] bias = {0, 0, 1, 1}> {
    y = InstanceNormalization <epsilon = 0.00001> (x, scale, bias)
}"""


OnMachine = Callable[..., Machine]


@pytest.fixture
def normalized(tmp_path: Path) -> Path:
    """An InstanceNormalization, which is a plugin in engines of 8.5."""
    onnx.save(parser.parse_model(INSTANCE_NORM), tmp_path / "normalized.onnx")
    return tmp_path / "normalized.onnx"


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
    version: str, options: dict[str, Any], asked: bool, machine: OnMachine, normalized: Path
) -> None:
    here = machine(version)
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


def test_a_runner_registers_them_too(simulation: Simulation) -> None:
    x = values(2, 4)
    with simulation.open("negate", plugins=["InstanceNormalization_TRT"]) as runner:
        np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)


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


@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
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
