"""Every option of a build reaches TensorRT, or is refused: each test fails when its option is dropped.

On stand-ins for TensorRT 8.5, 10 and 11 with exactly the names of the real modules, and on the real
TensorRT-RTX where that has the option.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tensorrt_rtx
from simulated_machine import Machine, OnMachine
from simulated_plan import read_plan

import qcompile
from qcompile.building.build import plan
from qcompile.engines.gpu import why_no_gpu
from qcompile.engines.registry import engine
from qcompile.engines.tensorrt.adapter import load_adapter
from qcompile.engines.tensorrt.builder.configure import configure
from qcompile.engines.tensorrt.log import make_log
from qcompile.engines.tensorrt.plan import needs_of
from qcompile.errors import BuildError, InvalidOption, MissingFile
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.tensorrt import TensorRTOptions

Options = dict[str, Any]
ALL = ("8.5.3", "10.16", "11.4")
NEWER = ("10.16", "11.4")
ROUTE = "-conv_use_long_w=off"


def told(here: Machine, member: str) -> list[Any]:
    """What a member of TensorRT's objects was told, in order: members of enumerations by their names."""
    plain = [tuple(getattr(value, "name", value) for value in args) for args in here.told(member)]
    return [args[0] if len(args) == 1 else args for args in plain]


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({"refit": True}, "REFIT"),
        ({"sparse_weights": True}, "SPARSE_WEIGHTS"),
        ({"strip_weights": True}, "STRIP_PLAN REFIT_IDENTICAL"),
        ({"strip_weights": True, "refit": True}, "STRIP_PLAN REFIT"),
        ({"version_compatible": True}, "VERSION_COMPATIBLE"),
        ({"version_compatible": True, "exclude_lean_runtime": True},
         "VERSION_COMPATIBLE EXCLUDE_LEAN_RUNTIME"),
    ],
)  # fmt: skip
def test_builder_flags(options: Options, flags: str, here: Machine, model: Path) -> None:
    if not all(hasattr(here.module.BuilderFlag, flag) for flag in flags.split()):
        with pytest.raises(InvalidOption, match=r"tensorrt 8\.5\.3\.1 has no builder flag"):
            here.build(model, options=options)
        assert here.nothing_built
        return
    manifest = here.build(model, options=options).manifest
    assert here.flags() == set(flags.split())
    assert options.items() <= manifest.options.items()


JIT = 1 << int(tensorrt_rtx.TacticSource.JIT_CONVOLUTIONS)


@pytest.mark.parametrize(
    ("versions", "options", "members"),
    [
        (ALL, {"workspace": "2G"}, {"set_memory_pool_limit": ("WORKSPACE", 2 << 30)}),
        (NEWER, {"memory_pools": ("tactic-shared-memory=64K",)},
         {"set_memory_pool_limit": ("TACTIC_SHARED_MEMORY", 64 << 10)}),
        (ALL, {"tactic_sources": ("jit-convolutions",)}, {"set_tactic_sources": JIT}),
        (ALL, {"tactic_sources": ("none",)}, {"set_tactic_sources": 0}),
        (NEWER, {"optimization_level": 0}, {"builder_optimization_level": 0}),
        (NEWER, {"optimization_level": 5}, {"builder_optimization_level": 5}),
        (NEWER, {"aux_streams": 0}, {"max_aux_streams": 0}),
        (NEWER, {"hardware_compatible": "ampere+"}, {"hardware_compatibility_level": "AMPERE_PLUS"}),
        (NEWER, {"hardware_compatible": "same-sm"},
         {"hardware_compatibility_level": "SAME_COMPUTE_CAPABILITY"}),
        (NEWER, {"tiling_level": 2, "tiling_l2_limit": "8M"},
         {"tiling_optimization_level": "MODERATE", "l2_limit_for_tiling": 8 << 20}),
        (NEWER, {"tiling_level": 0}, {"tiling_optimization_level": "NONE"}),
        (("11.4",), {"build_route": ROUTE}, {"build_route": ROUTE}),
    ],
)  # fmt: skip
def test_what_a_configuration_is_told(
    versions: tuple[str, ...], options: Options, members: dict[str, Any], machine: OnMachine, model: Path
) -> None:
    for version in versions:
        here = machine(version)
        here.build(model, options=options)
        assert {member: told(here, member) for member in members} == {
            member: [value] for member, value in members.items()
        }


@pytest.mark.parametrize("version", NEWER)
@pytest.mark.parametrize(("on_gpu", "share"), [("25%", 0.25), ("all", 1.0), ("1K", None)])
def test_streamed_weights_have_a_budget(on_gpu: str, share: float | None, here: Machine, model: Path) -> None:
    artifact = here.build(model, options={"weight_streaming": on_gpu})
    assert here.flags() == {"WEIGHT_STREAMING"}
    entries = read_plan(artifact.path.read_bytes())["weights"].values()
    total = sum(entry["bytes"] for entry in entries)
    assert told(here, "weight_streaming_budget_v2") == [int(total * share) if share else 1 << 10]
    assert needs_of(artifact.manifest).weights_on_gpu == on_gpu
    members = [call.member for call in here.module.recorded_calls]
    assert members.index("weight_streaming_budget_v2") < members.index("create_execution_context")


def test_a_deep_learning_accelerator_with_the_gpu_behind_it(machine: OnMachine, model: Path) -> None:
    here = machine("8.5.3", dla_cores=2)
    here.build(model, options={"dla_core": 1, "gpu_fallback": True})
    assert told(here, "default_device_type") == ["DLA"]
    assert "GPU_FALLBACK" in here.flags()
    # trtexec: sampleEngines.cpp of 10.16, line 150: the runtime's core, before it reads the plan.
    order = [(call.owner, call.member, call.args[0]) for call in here.module.recorded_calls
             if call.member in ("DLA_core", "deserialize_cuda_engine")]  # fmt: skip
    assert order[:2] == [("IBuilderConfig", "DLA_core", 1), ("Runtime", "DLA_core", 1)]
    assert order[2][:2] == ("Runtime", "deserialize_cuda_engine")
    assert machine("11.4", dla_cores=2).build(model, name="new", options={"dla_core": 1}).path.exists()


def test_types_and_memory_formats_of_tensors(here: Machine, model: Path) -> None:
    artifact = here.build(model, options={"io_formats": ("x=:chw32",)})
    (x,) = [one for one in read_plan(artifact.path.read_bytes())["io"] if one["name"] == "x"]
    assert x["format"] == "CHW32"
    manifest = here.build(model, options={"io_formats": ("x=float16", "y=float16")}).manifest
    assert manifest.io is not None
    assert [str(tensor) for tensor in manifest.io.inputs] == ["x:[batch,4,8,8]:float16"]
    assert [tensor.dtype for tensor in manifest.io.outputs] == ["float16"]


def test_plugins_that_cannot_be_loaded_are_refused(machine: OnMachine, model: Path, tmp_path: Path) -> None:
    library = tmp_path / "libplugins.so"
    library.write_bytes(b"not a library")
    options = {"plugins": (str(library),)}
    with pytest.raises(InvalidOption, match=r"`plugins` .*libplugins.so: cannot be loaded"):
        machine("8.5.3").build(model, options=options)
    library.unlink()
    with pytest.raises(MissingFile, match=r"plugin .*libplugins.so does not exist"):
        machine("10.16").build(model, options=options)


@pytest.mark.parametrize(
    ("version", "precision", "constraints", "flag"),
    [
        *[(version, "fp16", *flags) for version in ("8.5.3", "10.16")
          for flags in (("", "OBEY"), ("obey", "OBEY"), ("prefer", "PREFER"))],
        ("10.16", "bf16", "", "OBEY"),
    ],
)  # fmt: skip
def test_named_layers_obey_or_prefer_where_types_are_weak(
    precision: str, constraints: str, flag: str, here: Machine, model: Path
) -> None:
    options = {"typing": "weak", "precision_constraints": constraints}
    manifest = here.build(model, precision, options=options, layers={"gemm": "fp32"}).manifest
    assert here.flags() == {precision.upper(), f"{flag}_PRECISION_CONSTRAINTS"}
    assert manifest.proof["typing"] == "weak"
    assert manifest.proof["layers_by_precision"] == {
        precision: {"CONVOLUTION": 2}, "fp32": {"MATRIX_MULTIPLY": 1}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("version", "options", "said"),
    [
        ("11.4", {"typing": "weak"}, "`typing` weak: tensorrt 11.* has no flags that permit a precision"),
        ("8.5.3", {"typing": "strong"}, "`typing` strong: tensorrt 8.* has no strongly typed networks"),
        ("10.16", {"precision_constraints": "prefer"}, "`precision_constraints`: tensorrt 10.* strongly"),
        *[("8.5.3", option, r"tensorrt 8\.5\.3\.1 has no ") for option in (
            {"optimization_level": 5}, {"aux_streams": 1}, {"hardware_compatible": "ampere+"},
            {"weight_streaming": "all"}, {"allocation_strategy": "profile"}, {"tiling_level": 1},
        )],
        ("8.5.3", {"memory_pools": ("tactic-dram=1G",)}, r"tactic-dram: tensorrt 8\.5.* it has .*workspace"),
        ("10.16", {"ignore_faults": ("cumsum",)}, "`ignore_faults` cumsum: unknown fault"),
        ("11.4", {"build_route": f"{ROUTE} -dump=/tmp/x"}, "`build_route` -dump: .* has no such option of"),
        ("10.16", {"build_route": ROUTE}, r"`build_route`: tensorrt 10\.16.* has no IBuilderConfig"),
        # docs.nvidia.com, "Working with DLA" of 11.4.1: none from 10.8 to 11.3, again from 11.4 on.
        ("10.16", {"dla_core": 1}, r"`dla_core`: tensorrt 10\.16\S* has no support for DLA.*10\.7"),
        ("8.5.3", {"dla_core": 0}, "`dla_core` 0: this machine has 0 DLA cores"),
        *[(one, {"tactic_sources": ("nowhere",)}, "`tactic_sources` nowhere: .* has no such source; it has")
          for one in ALL],
        *[(one, {"io_formats": ("z=:chw32",)}, "no input or output 'z'; there are x, y") for one in ALL],
        *[(one, {"io_formats": ("x=:chw7",)}, "has no format 'chw7'; it has .*linear") for one in ALL],
    ],
)  # fmt: skip
def test_what_a_version_has_not_is_refused(options: Options, said: str, here: Machine, model: Path) -> None:
    with pytest.raises(InvalidOption) as caught:
        here.build(model, "fp16", options=options)
    assert re.search(said, f"{caught.value.message} {caught.value.hint}")
    assert here.nothing_built


def test_weights_of_a_weakly_typed_network_do_not_stream(machine: OnMachine) -> None:
    machine("10.16")
    options = TensorRTOptions(weight_streaming="all")
    ranges: dict[str, Any] = {"precision": "int8", "calibrator": "ranges", "ranges": Path("x.json")}
    spec = BuildSpec(target="tensorrt", tensorrt=options, **ranges)
    said = "`weight_streaming`: tensorrt 10.* has no weight streaming in weakly typed networks"
    with pytest.raises(InvalidOption, match=said):
        engine("tensorrt").check(spec)


@pytest.mark.parametrize(
    ("version", "member", "options", "said"),
    [
        *[(one, "SPARSE_WEIGHTS", {"sparse_weights": True}, "`sparse_weights`: .* refuses it: .*no such knob")
          for one in ALL],
        ("11.4", "build_route", {"build_route": ROUTE}, "`build_route`: .*no such knob"),
    ],
)  # fmt: skip
def test_an_option_that_is_complained_of_is_an_error(
    version: str, member: str, options: Options, said: str, machine: OnMachine, model: Path
) -> None:
    text = "IBuilderConfig::set: Error Code 3: API Usage Error (Parameter check failed, no such knob)"
    here = machine(version, refused={member: text})
    with pytest.raises(InvalidOption, match=said):
        here.build(model, options=options)
    assert here.nothing_built


def test_a_dry_run_configures_and_builds_nothing(machine: OnMachine, model: Path) -> None:
    here = machine("11.4")
    found = plan(model, target="tensorrt", precision="fp32", tensorrt=TensorRTOptions(workspace="1G"))
    assert (found["gpus"], found["build_routes"]) == (["sm86"], ["-conv_use_long_w=[on|off]"])
    assert told(here, "set_memory_pool_limit") == [("WORKSPACE", 1 << 30)]
    assert here.told("build_serialized_network") == []


def rtx(model: Path, options: Options, **more: Any) -> Any:
    """Build with the real TensorRT-RTX for sm86."""
    return qcompile.build(
        model, model.parent / "m.engine", target="tensorrt-rtx", gpus=["sm86"],
        tensorrt=TensorRTOptions(**options), **more,
    ).manifest  # fmt: skip


def test_the_real_rtx_takes_profiles_formats_tiling_and_weights_that_stream(model: Path) -> None:
    plain = rtx(model, {})
    assert rtx(model, {"io_formats": ("x=:chw32",)}).digest != plain.digest
    two = rtx(model, {"profiles": ("x:1x4x8x8..1x4x8x8..1x4x8x8", "x:2x4x8x8..8x4x8x8..32x4x8x8")})
    assert two.size_bytes > plain.size_bytes
    assert two.proof["profiles"] == [
        {"x": {"min": [1, 4, 8, 8], "opt": [1, 4, 8, 8], "max": [1, 4, 8, 8]}},
        {"x": {"min": [2, 4, 8, 8], "opt": [8, 4, 8, 8], "max": [32, 4, 8, 8]}},
    ]
    assert rtx(model, {"io_formats": ("x=float16",)}).io.inputs[0].dtype == "float16"
    streams = {"weight_streaming": "50%", "allocation_strategy": "profile"}
    assert streams.items() <= rtx(model, streams).options.items()
    log = make_log(tensorrt_rtx)
    builder = tensorrt_rtx.Builder(log.logger)
    config, options = builder.create_builder_config(), TensorRTOptions(tiling_level=3, tiling_l2_limit="1M")
    configure(load_adapter("tensorrt-rtx"), builder, config, log, options)
    assert config.tiling_optimization_level.name == "FULL"
    assert config.l2_limit_for_tiling == 1 << 20


NO_KERNEL = "no kernel fits the workspace.*raise `workspace`"
NO_GPU = "needs a GPU to compile with these options"


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"memory_pools": ("dla-local-dram=1M",)}, InvalidOption, "refuses it: .*DLA disabled"),
        ({"memory_pools": ("heap=1M",)}, InvalidOption, "has no such pool"),
        ({"typing": "weak"}, InvalidOption, "`typing` weak: tensorrt_rtx .* has no flags"),
        ({"build_route": ROUTE}, InvalidOption, "`build_route` -conv_use_long_w: .* has no such"),
        ({"workspace": "1K"}, BuildError, NO_KERNEL),
        *[({name: True}, BuildError, NO_GPU) for name in ("refit", "strip_weights") if why_no_gpu()],
    ],
)  # fmt: skip
def test_the_real_rtx_refuses_what_it_has_no_use_for(
    options: Options, error: type[Exception], said: str, model: Path
) -> None:
    with pytest.raises(error) as caught:
        rtx(model, options, precision="fp16" if "workspace" in options else "fp32")
    assert re.search(said, f"{caught.value} {getattr(caught.value, 'hint', '')}", re.DOTALL)


def test_every_option_is_tested_here() -> None:
    names = ("test_build_options", "test_refit")
    text = "".join((Path(__file__).parent / f"{name}.py").read_text() for name in names)
    for name in TensorRTOptions.__dataclass_fields__:
        assert re.search(rf"[\"']?{name}[\"']?\s*[:=]", text), name
