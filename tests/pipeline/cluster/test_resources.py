"""Which workers a stage may go to, by what they announce."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qcompile.core.processor import isa_here
from qcompile.errors import EngineUnavailable
from qcompile.pipeline.cluster.resources import (
    PLENTY,
    WorkerFacts,
    isa_announced,
    place_stage,
    resources_here,
    versions_here,
    why_refused,
)
from qcompile.pipeline.recipe.recipe import Recipe, parse_recipe
from qcompile.pipeline.stages.stage import Stage, StageFile
from qcompile.version import __version__

RECIPE = b"""
version = 1
name = "tiny"
[model]
source = "net.py:build"
[data]
calibration = "calibration.npz"
[[artifact]]
name = "cpu"
target = "onnxruntime"
precision = "int8"
[[artifact]]
name = "rtx"
target = "tensorrt-rtx"
gpus = ["sm86"]
[[artifact]]
name = "trt"
target = "tensorrt"
[bench]
"""
MODEL = StageFile(Path("model.onnx"), "sha256:0")


def worker(name: str, *has: str, slots: int = 2, **number: float) -> WorkerFacts:
    resources = {"slots": float(slots), **dict.fromkeys(has, PLENTY), **number}
    return WorkerFacts(name, f"tcp://{name}:1", resources)


WORKERS = [
    worker("a", "export"),
    worker("b", "onnxruntime", "cpu-avx2", slots=3),
    worker("c", "onnxruntime", "pytorch", "cpu-avx2", "cpu-vnni"),
    worker("d", "onnxruntime", "tensorrt-rtx", "cpu-avx2"),
    worker("e", "onnxruntime", "tensorrt", "cpu-avx2", **{"gpu-sm90": 1.0}),
]


@pytest.fixture
def placed(tmp_path: Path) -> Callable[..., Any]:
    (tmp_path / "net.py").write_text("")
    recipe: Recipe = parse_recipe(RECIPE, tmp_path / "recipe.toml")
    return lambda stage, workers=WORKERS, home=None: place_stage(recipe, stage, workers, home)


@pytest.mark.parametrize(
    ("stage", "names", "resources"),
    [
        (Stage(kind="export"), "a", {"slots": 1, "export": 1}),
        (Stage(kind="simplify"), "bcde", {"slots": 1}),
        (Stage(kind="calibrate"), "bcde", {"slots": 1, "onnxruntime": 1}),
        (Stage(kind="quantize", artifact="cpu"), "bcde", {"slots": 1, "onnxruntime": 1}),
        (Stage(kind="build", artifact="cpu"), "bcde", {"slots": 1, "onnxruntime": 1}),
        (Stage(kind="build", artifact="rtx"), "d", {"slots": 1, "tensorrt-rtx": 1}),
        (Stage(kind="build", artifact="trt"), "e", {"slots": 1, "tensorrt": 1, "gpu-sm90": 1}),
        (Stage(kind="bench", built={"cpu": MODEL}), "c", {"slots": 2}),
        (Stage(kind="bench", built={"trt": MODEL}, machine="sm90"), "e", {"slots": 2, "gpu-sm90": 1}),
    ],
)
def test_a_step_goes_where_its_needs_are_met(
    placed: Callable[..., Any], stage: Stage, names: str, resources: dict[str, float]
) -> None:
    chosen = placed(stage)
    assert chosen == ([f"tcp://{name}:1" for name in names], resources)


def test_what_is_measured_is_built_on_the_processor_that_measures_it(placed: Callable[..., Any]) -> None:
    workers, _ = placed(Stage(kind="build", artifact="cpu"), home=WORKERS[2])
    assert workers == ["tcp://c:1"]


def test_a_measurement_goes_to_one_worker_and_takes_all_its_slots(placed: Callable[..., Any]) -> None:
    alike = [worker(name, "onnxruntime", "pytorch", slots=3) for name in "yx"]
    workers, needs = placed(Stage(kind="bench", built={"cpu": MODEL}), alike)
    assert (workers, needs["slots"]) == (["tcp://x:1"], 3)


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (Stage(kind="build", artifact="trt"), "build-trt: no worker has tensorrt; they announce cpu-avx2"),
        (Stage(kind="export"), "export: no worker has export"),
    ],
)
def test_what_nobody_has_is_named(placed: Callable[..., Any], stage: Stage, words: str) -> None:
    with pytest.raises(EngineUnavailable) as raised:
        placed(stage, [WORKERS[1]])
    assert words in raised.value.message


def test_a_machine_announces_its_engines_versions_and_itself() -> None:
    resources = resources_here()
    assert {"onnxruntime", f"{'qcompile'}=={__version__}"} <= resources.keys()
    assert ("export" in resources) == ({"torch", "onnxscript"} <= versions_here().keys())
    facts = WorkerFacts("w", "tcp://w:1", resources)
    assert facts.value("onnxruntime", "==") == versions_here()["onnxruntime"]
    assert len(facts.value("host", "=")) == 16
    assert isa_announced(facts) == isa_here()
    assert why_refused(facts) == ""


@pytest.mark.parametrize("package", ["qcompile", "onnxruntime"])
def test_a_worker_of_another_version_is_refused_and_one_without_the_package_is_not(package: str) -> None:
    facts = WorkerFacts("w", "tcp://w:1", {f"{package}==0.0.9": PLENTY})
    required = versions_here()[package]
    assert why_refused(facts) == f"worker w (tcp://w:1) has {package} 0.0.9; {required} is required"
    assert why_refused(WorkerFacts("w", "tcp://w:1", {})) == ""
