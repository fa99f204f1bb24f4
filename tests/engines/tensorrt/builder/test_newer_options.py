"""Options of TensorRT 10 and 11: weights that stream, memory of contexts, tiling, build routes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorrt_rtx
from simulated_machine import Machine
from simulated_plan import read_plan

import qcompile
from qcompile.engines.registry import engine
from qcompile.engines.tensorrt.adapter import load_adapter
from qcompile.engines.tensorrt.builder.configure import configure
from qcompile.engines.tensorrt.log import make_log
from qcompile.engines.tensorrt.plan import needs_of
from qcompile.errors import InvalidOption
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.tensorrt import TensorRTOptions

MakeFile = Callable[..., Path]
OnMachine = Callable[..., Machine]
NEWER = ("10.16", "11.4")


@pytest.fixture
def model(tiny_file: MakeFile) -> Path:
    """The tiny residual model: x [batch,4,8,8]."""
    return tiny_file("residual")


def written(here: Machine, attribute: str) -> list[Any]:
    """The values that an attribute of TensorRT's objects was given."""
    return [call.args[0] for call in here.module.recorded_calls if call.member == attribute and call.written]


@pytest.mark.parametrize("version", NEWER)
def test_tiling_and_its_part_of_the_l2_cache(version: str, machine: OnMachine, model: Path) -> None:
    here = machine(version)
    here.build(model, options={"tiling_level": 2, "tiling_l2_limit": "8M"})
    assert [level.name for level in written(here, "tiling_optimization_level")] == ["MODERATE"]
    assert written(here, "l2_limit_for_tiling") == [8 << 20]
    here.build(model, options={"tiling_level": 0})
    assert [level.name for level in written(here, "tiling_optimization_level")] == ["MODERATE", "NONE"]


def test_a_build_route_and_what_it_may_be_made_of(machine: OnMachine, model: Path) -> None:
    here, route = machine("11.4"), "-conv_use_long_w=off"
    assert here.build(model, options={"build_route": route}).manifest.options["build_route"] == route
    assert written(here, "build_route") == [route]
    found = qcompile.building.plan(model, target="tensorrt", precision="fp32")
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


def test_the_real_rtx_takes_tiling_and_weights_that_stream(model: Path) -> None:
    streams = {"weight_streaming": "50%", "allocation_strategy": "profile"}
    built = qcompile.build(
        model, model.parent / "m.engine", target="tensorrt-rtx", gpus=["sm86"], tensorrt=streams
    ).manifest
    assert streams.items() <= built.options.items()
    config = rtx_config()
    configure(load_adapter("tensorrt-rtx"), *config, TensorRTOptions(tiling_level=3, tiling_l2_limit="1M"))
    assert config[1].tiling_optimization_level.name == "FULL"
    assert config[1].l2_limit_for_tiling == 1 << 20


def rtx_config() -> tuple[Any, Any, Any]:
    """A builder of the real TensorRT-RTX, a configuration of it, and its log."""
    log = make_log(tensorrt_rtx)
    builder = tensorrt_rtx.Builder(log.logger)
    return builder, builder.create_builder_config(), log
