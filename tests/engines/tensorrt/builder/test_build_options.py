"""Every option of a build reaches TensorRT, or is refused: each test fails when its option is dropped.

On stand-ins for TensorRT 8.5, 10 and 11 with exactly the names of the real modules, and on the real
TensorRT-RTX where that has the option.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorrt_rtx
from simulated_machine import Machine
from simulated_plan import read_plan

import qcompile
from qcompile.building import plan
from qcompile.engines.gpu import why_no_gpu
from qcompile.engines.registry import engine
from qcompile.engines.tensorrt.adapter import load_adapter
from qcompile.engines.tensorrt.builder.configure import configure
from qcompile.engines.tensorrt.log import make_log
from qcompile.engines.tensorrt.plan import needs_of
from qcompile.errors import BuildError, InvalidOption, MissingFile
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.tensorrt import TensorRTOptions

MakeFile = Callable[..., Path]
OnMachine = Callable[..., Machine]
ALL = ("8.5.3", "10.16", "11.4")
NEWER = ("10.16", "11.4")


@pytest.fixture
def model(tiny_file: MakeFile) -> Path:
    """The tiny residual model: x [batch,4,8,8]."""
    return tiny_file("residual")


def pool_limits(here: Machine) -> dict[str, int]:
    """Memory pool to the size it was given."""
    return {pool.name: size for pool, size in here.told("set_memory_pool_limit")}


def written(here: Machine, attribute: str) -> list[Any]:
    """The values that an attribute of TensorRT's objects was given."""
    return [call.args[0] for call in here.module.recorded_calls if call.member == attribute and call.written]


@pytest.mark.parametrize("version", ALL)
def test_workspace_and_other_pools(version: str, machine: OnMachine, model: Path) -> None:
    here = machine(version)
    here.build(model, options={"workspace": "2G"})
    assert pool_limits(here) == {"WORKSPACE": 2 << 30}
    if version != "8.5.3":
        here.build(model, options={"memory_pools": ("tactic-shared-memory=64K",)})
        assert pool_limits(here)["TACTIC_SHARED_MEMORY"] == 64 << 10


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({"refit": True}, {"REFIT"}),
        ({"sparse_weights": True}, {"SPARSE_WEIGHTS"}),
        ({"strip_weights": True}, {"STRIP_PLAN", "REFIT_IDENTICAL"}),
        ({"strip_weights": True, "refit": True}, {"STRIP_PLAN", "REFIT"}),
        ({"version_compatible": True}, {"VERSION_COMPATIBLE"}),
        (
            {"version_compatible": True, "exclude_lean_runtime": True},
            {"VERSION_COMPATIBLE", "EXCLUDE_LEAN_RUNTIME"},
        ),
    ],
)
@pytest.mark.parametrize("version", ALL)
def test_options_that_are_builder_flags(
    version: str, options: dict[str, Any], flags: set[str], machine: OnMachine, model: Path
) -> None:
    here = machine(version)
    if not all(hasattr(here.module.BuilderFlag, flag) for flag in flags):
        with pytest.raises(InvalidOption, match=r"tensorrt 8\.5\.3\.1 has no builder flag"):
            here.build(model, options=options)
        assert here.nothing_built
        return
    manifest = here.build(model, options=options).manifest
    assert here.flags() == flags
    assert options.items() <= manifest.options.items()


@pytest.mark.parametrize("version", NEWER)
@pytest.mark.parametrize(
    ("options", "written_values"),
    [
        ({"optimization_level": 0}, {"builder_optimization_level": 0}),
        ({"optimization_level": 5}, {"builder_optimization_level": 5}),
        ({"aux_streams": 0}, {"max_aux_streams": 0}),
        ({"hardware_compatible": "ampere+"}, {"hardware_compatibility_level": "AMPERE_PLUS"}),
        ({"hardware_compatible": "same-sm"}, {"hardware_compatibility_level": "SAME_COMPUTE_CAPABILITY"}),
        (
            {"tiling_level": 2, "tiling_l2_limit": "8M"},
            {"tiling_optimization_level": "MODERATE", "l2_limit_for_tiling": 8 << 20},
        ),
        ({"tiling_level": 0}, {"tiling_optimization_level": "NONE"}),
    ],
)
def test_options_that_are_attributes(
    version: str, options: dict[str, Any], written_values: dict[str, Any], machine: OnMachine, model: Path
) -> None:
    here = machine(version)
    here.build(model, options=options)
    for attribute, value in written_values.items():
        assert [getattr(one, "name", one) for one in written(here, attribute)] == [value]


def test_a_build_route_and_what_it_may_be_made_of(machine: OnMachine, model: Path) -> None:
    here, route = machine("11.4"), "-conv_use_long_w=off"
    assert here.build(model, options={"build_route": route}).manifest.options["build_route"] == route
    assert written(here, "build_route") == [route]
    found = plan(model, target="tensorrt", precision="fp32")
    assert found["build_routes"] == ["-conv_use_long_w=[on|off]"]
    with pytest.raises(InvalidOption, match=r"`build_route` -dump: .* has no such option of its compiler"):
        here.build(model, options={"build_route": f"{route} -dump=/tmp/x"})
    with pytest.raises(InvalidOption, match=r"`build_route`: tensorrt 10\.16.* has no IBuilderConfig"):
        machine("10.16").build(model, options={"build_route": route})
    here = machine("11.4", refused={"build_route": "no such knob"})
    with pytest.raises(InvalidOption, match=r"`build_route`: .*no such knob"):
        here.build(model, options={"build_route": route})


@pytest.mark.parametrize("version", NEWER)
@pytest.mark.parametrize(("on_gpu", "share"), [("25%", 0.25), ("all", 1.0), ("1K", None)])
def test_weights_that_stream_have_their_budget_before_there_is_a_context(
    version: str, on_gpu: str, share: float | None, machine: OnMachine, model: Path
) -> None:
    here = machine(version)
    artifact = here.build(model, options={"weight_streaming": on_gpu})
    assert here.flags() == {"WEIGHT_STREAMING"}
    entries = read_plan(artifact.path.read_bytes())["weights"].values()
    total = sum(entry["bytes"] for entry in entries)
    assert written(here, "weight_streaming_budget_v2") == [int(total * share) if share else 1 << 10]
    assert needs_of(artifact.manifest).weights_on_gpu == on_gpu
    members = [call.member for call in here.module.recorded_calls]
    assert members.index("weight_streaming_budget_v2") < members.index("create_execution_context")


def test_weights_of_a_weakly_typed_network_do_not_stream(machine: OnMachine) -> None:
    machine("10.16")
    spec = BuildSpec(
        target="tensorrt", precision="int8", calibrator="ranges", ranges=Path("x.json"),
        tensorrt=TensorRTOptions(weight_streaming="all"),
    )  # fmt: skip
    said = "`weight_streaming`: tensorrt 10.* has no weight streaming in weakly typed networks"
    with pytest.raises(InvalidOption, match=said):
        engine("tensorrt").check(spec)


def test_a_deep_learning_accelerator_with_the_gpu_behind_it(machine: OnMachine, model: Path) -> None:
    here = machine("8.5.3", dla_cores=2)
    here.build(model, options={"dla_core": 1, "gpu_fallback": True})
    assert [value.name for value in written(here, "default_device_type")] == ["DLA"]
    assert "GPU_FALLBACK" in here.flags()
    # trtexec: sampleEngines.cpp of 10.16, line 150: the runtime's core, before it reads the plan.
    order = [(call.owner, call.member, call.args[0]) for call in here.module.recorded_calls
             if call.member in ("DLA_core", "deserialize_cuda_engine")]  # fmt: skip
    assert order[:2] == [("IBuilderConfig", "DLA_core", 1), ("Runtime", "DLA_core", 1)]
    assert order[2][:2] == ("Runtime", "deserialize_cuda_engine")
    with pytest.raises(InvalidOption, match="`dla_core` 0: this machine has 0 DLA cores"):
        machine("8.5.3").build(model, name="none", options={"dla_core": 0})


def test_versions_without_accelerators_refuse_them_by_name(machine: OnMachine, model: Path) -> None:
    # docs.nvidia.com, "Working with DLA" of 11.4.1: none from 10.8 to 11.3, again from 11.4 on.
    here = machine("10.16", dla_cores=2)
    with pytest.raises(InvalidOption, match=r"`dla_core`: tensorrt 10\.16\S* has no support") as caught:
        here.build(model, options={"dla_core": 1})
    assert "10.7" in caught.value.hint
    assert here.nothing_built
    assert machine("11.4", dla_cores=2).build(model, options={"dla_core": 1}).path.exists()


@pytest.mark.parametrize("version", ALL)
def test_tactic_sources(version: str, machine: OnMachine, model: Path) -> None:
    here = machine(version)
    here.build(model, options={"tactic_sources": ("jit-convolutions",)})
    here.build(model, options={"tactic_sources": ("none",)})
    bit = int(here.module.TacticSource.__members__["JIT_CONVOLUTIONS"])
    assert here.told("set_tactic_sources") == [(1 << bit,), (0,)]
    with pytest.raises(InvalidOption, match=r"`tactic_sources` nowhere: .* has no such source; it has"):
        here.build(model, options={"tactic_sources": ("nowhere",)})


@pytest.mark.parametrize("version", ALL)
def test_memory_formats_of_inputs_and_outputs(version: str, machine: OnMachine, model: Path) -> None:
    here = machine(version)
    artifact = here.build(model, options={"io_formats": ("x=:chw32",)})
    (x,) = [one for one in read_plan(artifact.path.read_bytes())["io"] if one["name"] == "x"]
    assert x["format"] == "CHW32"
    with pytest.raises(InvalidOption, match=r"no input or output 'z'; there are x, y"):
        here.build(model, options={"io_formats": ("z=:chw32",)})
    with pytest.raises(InvalidOption, match=r"has no format 'chw7'; it has .*linear"):
        here.build(model, options={"io_formats": ("x=:chw7",)})


@pytest.mark.parametrize("version", ALL)
def test_types_of_inputs_and_outputs_are_in_the_graph(version: str, machine: OnMachine, model: Path) -> None:
    manifest = machine(version).build(model, options={"io_formats": ("x=float16", "y=float16")}).manifest
    assert manifest.io is not None
    assert [str(tensor) for tensor in manifest.io.inputs] == ["x:[batch,4,8,8]:float16"]
    assert [tensor.dtype for tensor in manifest.io.outputs] == ["float16"]


@pytest.mark.parametrize("version", ALL)
def test_several_profiles(version: str, machine: OnMachine, model: Path) -> None:
    here = machine(version)
    profiles = ("x:1x4x8x8..1x4x8x8..1x4x8x8", "x:2x4x8x8..8x4x8x8..32x4x8x8")
    manifest = here.build(model, options={"profiles": profiles}).manifest
    expected = [
        {"x": {"min": [1, 4, 8, 8], "opt": [1, 4, 8, 8], "max": [1, 4, 8, 8]}},
        {"x": {"min": [2, 4, 8, 8], "opt": [8, 4, 8, 8], "max": [32, 4, 8, 8]}},
    ]
    assert manifest.proof["profiles"] == expected
    assert len(here.told("add_optimization_profile")) == 2
    # The proof asks the engine about each of them.
    assert [args[0] for args in here.told("set_optimization_profile_async")] == [1]


@pytest.mark.parametrize("version", NEWER)
def test_plugins_are_loaded_for_the_build_and_for_its_inspection(
    version: str, machine: OnMachine, model: Path, tmp_path: Path
) -> None:
    library = tmp_path / "libplugins.so"
    library.write_bytes(b"")
    here = machine(version, plugins={str(library): {"Odd"}})
    here.build(model, options={"plugins": (str(library),)})
    assert here.told("load_library") == [(str(library),)] * 2
    with pytest.raises(MissingFile, match=r"plugin .*nowhere.so does not exist"):
        here.build(model, options={"plugins": (str(tmp_path / "nowhere.so"),)})


def test_tensorrt_8_5_loads_a_plugin_library_itself(machine: OnMachine, model: Path, tmp_path: Path) -> None:
    library = tmp_path / "libplugins.so"
    library.write_bytes(b"not a library")
    with pytest.raises(InvalidOption, match=r"`plugins` .*libplugins.so: cannot be loaded"):
        machine("8.5.3").build(model, options={"plugins": (str(library),)})


@pytest.mark.parametrize("version", ALL)
def test_an_option_that_tensorrt_only_complains_about_is_an_error(
    version: str, machine: OnMachine, model: Path
) -> None:
    text = "IBuilderConfig::setFlag: Error Code 3: API Usage Error (Parameter check failed, condition: x)"
    here = machine(version, refused={"SPARSE_WEIGHTS": text})
    with pytest.raises(InvalidOption, match=r"`sparse_weights`: .* refuses it: .*Parameter check failed"):
        here.build(model, options={"sparse_weights": True})
    assert here.nothing_built


def test_a_dry_run_says_what_would_be_built_and_writes_nothing(
    machine: OnMachine, model: Path, tmp_path: Path
) -> None:
    here = machine("10.16")
    options = TensorRTOptions(workspace="1G", profiles=("x:1x4x8x8..2x4x8x8..4x4x8x8",))
    found = plan(model, target="tensorrt", precision="fp16", tensorrt=options)
    assert found["layers_by_precision"] == {"fp16": {"CONVOLUTION": 2, "MATRIX_MULTIPLY": 1}}
    assert found["options"] == {"workspace": "1G", "profiles": ["x:1x4x8x8..2x4x8x8..4x4x8x8"]}
    assert found["gpus"] == ["sm86"]
    assert pool_limits(here) == {"WORKSPACE": 1 << 30}
    assert here.told("build_serialized_network") == []
    assert not (tmp_path / "dry-run").exists()


def rtx(model: Path, options: dict[str, Any], **more: Any) -> Any:
    """Build with the real TensorRT-RTX for sm86."""
    return qcompile.build(
        model, model.parent / "m.engine", target="tensorrt-rtx", gpus=["sm86"],
        tensorrt=TensorRTOptions(**options), **more,
    ).manifest  # fmt: skip


def test_the_real_rtx_takes_profiles_and_formats(model: Path) -> None:
    plain = rtx(model, {})
    assert rtx(model, {"io_formats": ("x=:chw32",)}).digest != plain.digest
    two = rtx(model, {"profiles": ("x:1x4x8x8..1x4x8x8..1x4x8x8", "x:2x4x8x8..8x4x8x8..32x4x8x8")})
    assert two.size_bytes > plain.size_bytes
    assert len(two.proof["profiles"]) == 2
    half = rtx(model, {"io_formats": ("x=float16",)})
    assert half.io.inputs[0].dtype == "float16"


def test_the_real_rtx_takes_tiling_and_weights_that_stream(model: Path) -> None:
    streams = {"weight_streaming": "50%", "allocation_strategy": "profile"}
    assert streams.items() <= rtx(model, streams).options.items()
    log = make_log(tensorrt_rtx)
    builder = tensorrt_rtx.Builder(log.logger)
    config, options = builder.create_builder_config(), TensorRTOptions(tiling_level=3, tiling_l2_limit="1M")
    configure(load_adapter("tensorrt-rtx"), builder, config, log, options)
    assert config.tiling_optimization_level.name == "FULL"
    assert config.l2_limit_for_tiling == 1 << 20


def test_the_real_rtx_obeys_the_workspace(model: Path) -> None:
    with pytest.raises(BuildError, match="no kernel fits the workspace") as caught:
        rtx(model, {"workspace": "1K"}, precision="fp16")
    assert "raise `workspace`" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hardware_compatible": "ampere+"}, "has no such levels"),
        ({"timing_cache": "t.cache"}, "has no use for one"),
        ({"dla_core": 0}, "has no support for DLA"),
        ({"memory_pools": ("dla-local-dram=1M",)}, "refuses it: .*DLA disabled"),
        ({"memory_pools": ("heap=1M",)}, "has no such pool"),
        ({"typing": "weak"}, "`typing` weak: tensorrt_rtx .* has no flags"),
        (
            {"build_route": "-conv_use_long_w=off"},
            "`build_route` -conv_use_long_w: tensorrt_rtx .* has no such",
        ),
    ],
)
def test_the_real_rtx_refuses_what_it_has_no_use_for(options: dict[str, Any], said: str, model: Path) -> None:
    with pytest.raises(InvalidOption, match=said):
        rtx(model, options)


def test_the_real_rtx_says_that_engines_for_new_weights_need_a_gpu_to_build(model: Path) -> None:
    if not why_no_gpu():
        rtx(model, {"refit": True})
        return
    for options in ({"refit": True}, {"strip_weights": True}):
        with pytest.raises(BuildError, match="needs a GPU to compile with these options"):
            rtx(model, options)


def test_every_option_is_tested_here() -> None:
    names = ("test_build_options", "test_timing_cache")
    text = "".join((Path(__file__).parent / f"{name}.py").read_text() for name in names)
    for name in TensorRTOptions.__dataclass_fields__:
        assert re.search(rf"[\"']?{name}[\"']?\s*[:=]", text), name


@pytest.mark.parametrize("version", ["8.5.3", "10.16"])
@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ("", "OBEY_PRECISION_CONSTRAINTS"),
        ("obey", "OBEY_PRECISION_CONSTRAINTS"),
        ("prefer", "PREFER_PRECISION_CONSTRAINTS"),
    ],
)
def test_named_layers_of_weak_networks_obey_or_prefer(
    version: str, given: str, flag: str, machine: OnMachine, model: Path
) -> None:
    here = machine(version)
    options = {"typing": "weak", "precision_constraints": given}
    manifest = here.build(model, "fp16", options=options, layers={"gemm": "fp32"}).manifest
    assert here.flags() == {"FP16", flag}
    assert manifest.proof["typing"] == "weak"
    assert manifest.proof["layers_by_precision"] == {
        "fp16": {"CONVOLUTION": 2}, "fp32": {"MATRIX_MULTIPLY": 1}
    }  # fmt: skip


def test_bf16_has_a_flag_where_types_are_weak_on_10(machine: OnMachine, model: Path) -> None:
    here = machine("10.16")
    here.build(model, "bf16", options={"typing": "weak"})
    assert here.flags() == {"BF16"}


@pytest.mark.parametrize(
    ("version", "options", "said"),
    [
        ("11.4", {"typing": "weak"}, "`typing` weak: tensorrt 11.* has no flags that permit a precision"),
        ("8.5.3", {"typing": "strong"}, "`typing` strong: tensorrt 8.* has no strongly typed networks"),
        (
            "10.16",
            {"precision_constraints": "prefer"},
            "`precision_constraints`: tensorrt 10.* strongly typed",
        ),
        *[
            ("8.5.3", {name: value}, r"tensorrt 8\.5\.3\.1 has no ")
            for name, value in [
                *[("optimization_level", 5), ("aux_streams", 1), ("hardware_compatible", "ampere+")],
                *[("weight_streaming", "all"), ("allocation_strategy", "profile"), ("tiling_level", 1)],
            ]
        ],
        ("8.5.3", {"memory_pools": ("tactic-dram=1G",)}, r"tactic-dram: tensorrt 8\.5.* it has .*workspace"),
        ("10.16", {"ignore_faults": ("cumsum",)}, "`ignore_faults` cumsum: there is no such known fault"),
    ],
)
def test_what_a_version_has_no_use_for_is_refused_by_name(
    version: str, options: dict[str, Any], said: str, machine: OnMachine, model: Path
) -> None:
    here = machine(version)
    with pytest.raises(InvalidOption, match=said):
        here.build(model, "fp16", options=options)
    assert here.nothing_built
