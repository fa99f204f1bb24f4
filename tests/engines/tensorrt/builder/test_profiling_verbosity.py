"""An engine that tells nothing of its layers is proven by a detailed twin out of the same timing cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_machine import Machine
from simulated_plan import read_plan

import qcompile
from qcompile.engines.tensorrt.adapter import Adapter
from qcompile.engines.tensorrt.builder import calibration
from qcompile.spec.tensorrt import TensorRTOptions

MakeFile = Callable[..., Path]
OnMachine = Callable[..., Machine]


def verbosity(path: Path) -> str:
    """What a stand-in's plan was built with."""
    content = read_plan(path.read_bytes())
    assert content is not None
    return str(content["verbosity"])


@pytest.mark.parametrize("timing_cache", ["auto", "off"])
@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
def test_the_proof_is_the_twins_and_nothing_is_measured_twice(
    version: str, timing_cache: str, machine: OnMachine, tiny_file: MakeFile
) -> None:
    here, model = machine(version), tiny_file("residual")
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
    assert len(here.told("build_serialized_network")) == 3


def test_other_kernels_than_the_twins_are_said(
    machine: OnMachine, tiny_file: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, sizes = machine("10.16"), iter((4096, 8192))
    monkeypatch.setattr(Adapter, "memory_bytes", lambda *_: next(sizes))
    made = here.build(tiny_file("residual"), options={"profiling_verbosity": "layer-names"}).manifest
    assert any("needs 8192 bytes; the detailed one that was inspected" in text for text in made.warnings)


def test_a_calibrator_is_fed_once(
    machine: OnMachine, tiny_file: MakeFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, fed = machine("8.5.3"), []

    class Memory:
        def __init__(self, *_: Any) -> None: ...

        def copy(self, name: str, array: np.ndarray[Any, Any]) -> int:
            fed.append(name)
            return 1000

        def close(self) -> None: ...

    monkeypatch.setattr(calibration, "Device", Memory)
    np.savez(tmp_path / "x.npz", x=np.ones((1, 4, 8, 8), np.float32))
    made = here.build(
        tiny_file("residual"), "int8", calibrator="native", data=str(tmp_path / "x.npz"), allow_fallback=True,
        options={"profiling_verbosity": "none"},
    )  # fmt: skip
    assert (fed, made.manifest.proof["calibration_batches"]) == (["x"], 1)
    assert verbosity(made.path) == "NONE"


def test_the_real_rtx_keeps_the_verbosity_for_where_the_engine_runs(
    tiny_file: MakeFile, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    plans = []
    for name in ("detailed", "none"):
        path, options = tmp_path / f"{name}.engine", TensorRTOptions(profiling_verbosity=name)  # type: ignore[arg-type]
        qcompile.build(tiny_file("residual"), path, target="tensorrt-rtx", gpus=("sm86",), tensorrt=options)
        plans.append(path.read_bytes())
    assert sum(one != other for one, other in zip(*plans, strict=True)) == 1  # of 430,860 bytes, in 1.7.1
