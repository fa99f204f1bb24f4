"""The timing cache, and second builds that measure nothing again: those of engines that tell less."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_machine import Machine
from simulated_plan import read_plan

import qcompile
from qcompile.engines.tensorrt.adapter import Adapter
from qcompile.engines.tensorrt.builder import builder, calibration, timing_cache
from qcompile.errors import InvalidOption
from qcompile.spec.tensorrt import TensorRTOptions

MakeFile = Callable[..., Path]
OnMachine = Callable[..., Machine]


def caches(folder: Path) -> list[Path]:
    """The caches of the user's folder."""
    return sorted((folder / "cache/qcompile/timing").glob("*.cache"))


def tactics(path: Path) -> set[str]:
    """What a stand-in's cache knows."""
    content = path.read_bytes()
    return set(json.loads(content[content.index(b"{") :])["tactics"])


@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
def test_the_next_build_measures_nothing_again(
    version: str, machine: OnMachine, model: Path, tmp_path: Path
) -> None:
    here = machine(version)
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
    merge, entered = timing_cache.merge_cache, []

    def while_another_builds(*arguments: Any) -> tuple[str, ...]:
        if not entered:
            entered.append(1)
            here.build(tiny_file("mlp"), name="other", options={"timing_cache": str(path)})
        return merge(*arguments)

    monkeypatch.setattr(builder, "merge_cache", while_another_builds)
    here.build(model, options={"timing_cache": str(path)})
    names = {entry.split(":")[0] for entry in tactics(path)}
    assert {"conv1", "matmul1"} <= names


@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
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
    assert f"timing cache {path} is not used, kernels are timed anew: " in warnings
    assert f"timing cache {path}: what was measured is not kept: " in warnings
    assert path.read_bytes() == before


def test_tensorrt_8_5_without_cudnn_builds_although_it_cannot_read_its_own_cache(
    machine: OnMachine, model: Path, tmp_path: Path
) -> None:
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
    assert [text for text in built.manifest.warnings if "what was measured is not kept" in text]


def test_an_unwritable_folder_is_named(machine: OnMachine, model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOption, match=r"timing cache .*file/t.cache"):
        machine("10.16").build(model, options={"timing_cache": str(tmp_path / "file/t.cache")})


def verbosity(path: Path) -> Any:
    """What a stand-in's plan was built with."""
    return read_plan(path.read_bytes())["verbosity"]


@pytest.mark.parametrize("timing_cache", ["auto", "off"])
@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
def test_the_proof_is_the_twins_and_nothing_is_measured_twice(
    version: str, timing_cache: str, machine: OnMachine, model: Path, tmp_path: Path
) -> None:
    here = machine(version)
    options = {"timing_cache": timing_cache}
    plain = here.build(model, "fp16", options=options)
    measured = len(here.circumstances.measured)
    quiet = here.build(model, "fp16", name="quiet", options={**options, "profiling_verbosity": "none"})
    assert (verbosity(plain.path), verbosity(quiet.path)) == ("DETAILED", "NONE")
    assert quiet.manifest.proof == plain.manifest.proof
    assert quiet.manifest.options["profiling_verbosity"] == "none"
    assert not [text for text in quiet.manifest.warnings if "detailed" in text]
    # The twin and the engine measure what one build does; with a cache on the disk nothing at all.
    assert len(here.circumstances.measured) == measured * (2 if timing_cache == "off" else 1)
    assert len(caches(tmp_path)) == (timing_cache == "auto")
    assert len(here.told("build_serialized_network")) == 3


def test_other_kernels_than_the_twins_are_said(
    machine: OnMachine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, sizes = machine("10.16"), iter((4096, 8192))
    monkeypatch.setattr(Adapter, "memory_bytes", lambda *_: next(sizes))
    made = here.build(model, options={"profiling_verbosity": "layer-names"}).manifest
    assert any("needs 8192 bytes; the detailed one that was inspected" in text for text in made.warnings)


def test_a_calibrator_is_fed_once(
    machine: OnMachine, model: Path, samples: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[str] = []
    memory = SimpleNamespace(copy=lambda name, _: fed.append(name) or 1000, close=lambda: None)
    monkeypatch.setattr(calibration, "Device", lambda _: memory)
    made = machine("8.5.3").build(
        model, "int8", calibrator="native", data=str(samples("residual", 1)), allow_fallback=True,
        options={"profiling_verbosity": "none"},
    )  # fmt: skip
    assert (fed, made.manifest.proof["calibration_batches"]) == (["x"], 1)
    assert verbosity(made.path) == "NONE"


def test_the_real_rtx_keeps_the_verbosity_for_the_run(model: Path, tmp_path: Path) -> None:
    plans = []
    for name in ("detailed", "none"):
        path, options = tmp_path / f"{name}.engine", TensorRTOptions(profiling_verbosity=name)  # type: ignore[arg-type]
        qcompile.build(model, path, target="tensorrt-rtx", gpus=("sm86",), tensorrt=options)
        plans.append(path.read_bytes())
    assert sum(one != other for one, other in zip(*plans, strict=True)) == 1  # of 430,860 bytes, in 1.7.1
