"""Which workers a step may go to, by what they announce."""

from __future__ import annotations

from pathlib import Path

import pytest

from qcompile.cluster.client.needs import Needs, needs_of, place
from qcompile.cluster.messages import Facts
from qcompile.errors import EngineUnavailable
from qcompile.pipeline.recipe import Recipe, parse_recipe
from qcompile.pipeline.stages import Made
from qcompile.pipeline.steps import Step
from qcompile.pipeline.store import Store

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


def worker(name: str, *has: str, gb: float = 16, slots: int = 2, **number: float) -> Facts:
    resources = {"slots": float(slots), "memory": gb * 1e9, **dict.fromkeys(has, 1000.0), **number}
    return Facts(name, f"tcp://127.0.0.1:{len(name)}{name}", "host", {}, resources, 4, int(gb * 1e9))


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "net.py").write_text("")
    return parse_recipe(RECIPE, tmp_path / "recipe.toml")


@pytest.fixture
def model(tmp_path: Path) -> Made:
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(2_000_000))
    return Made(path, "sha256:0")


def test_each_step_asks_for_what_it_uses(recipe: Recipe, model: Made, tmp_path: Path) -> None:
    store = Store(tmp_path)
    files = {"model": model}

    def required(step: Step) -> set[str]:
        return set(needs_of(recipe, step, store).required)

    assert required(Step(kind="export")) == {"export"}
    assert required(Step(kind="calibrate", files=files)) == {"onnxruntime"}
    assert required(Step(kind="build", artifact="cpu", files=files)) == {"onnxruntime"}
    assert not needs_of(recipe, Step(kind="build", artifact="rtx", files=files), store).gpu, "ahead of time"
    assert needs_of(recipe, Step(kind="build", artifact="trt", files=files), store).gpu
    bench = needs_of(recipe, Step(kind="bench", built={"cpu": model}), store)
    assert bench.alone
    assert not bench.gpu


def test_what_nobody_has_is_named_with_the_reason(recipe: Recipe, model: Made, tmp_path: Path) -> None:
    step = Step(kind="build", artifact="trt", files={"model": model})
    one = worker("a", "onnxruntime", "cpu-vnni")
    with pytest.raises(EngineUnavailable) as found:
        place(step, needs_of(recipe, step, Store(tmp_path)), [one])
    assert "no worker has tensorrt" in found.value.message
    assert "onnxruntime" in found.value.message
    with_engine = worker("b", "tensorrt")
    with pytest.raises(EngineUnavailable, match="no worker has a GPU"):
        place(step, needs_of(recipe, step, Store(tmp_path)), [one, with_engine])
    gpu = worker("c", "tensorrt", **{"gpu-sm90": 2.0})
    found_place = place(step, needs_of(recipe, step, Store(tmp_path)), [one, with_engine, gpu])
    assert found_place.workers == (gpu.address,)
    assert found_place.resources["gpu-sm90"] == 1
    assert found_place.resources["tensorrt"] == 1


def test_a_measurement_takes_one_worker_and_all_its_slots() -> None:
    step = Step(kind="bench")
    poor, rich = worker("a", "onnxruntime"), worker("b", "onnxruntime", "openvino", "pytorch", slots=4)
    chosen = place(step, Needs(preferred=("openvino", "pytorch"), alone=True), [poor, rich])
    assert chosen.workers == (rich.address,)
    assert chosen.resources["slots"] == 4
    assert chosen.alone


def test_a_step_goes_where_memory_is() -> None:
    step = Step(kind="calibrate")
    small, large = worker("a", gb=8), worker("b", gb=16)
    assert place(step, Needs(memory_bytes=4 * 10**9), [small, large]).workers == (
        small.address,
        large.address,
    )
    assert place(step, Needs(memory_bytes=10 * 10**9), [small, large]).workers == (large.address,)
    beyond = place(step, Needs(memory_bytes=64 * 10**9), [small, large])
    assert beyond.workers == (large.address,)
    assert beyond.resources["memory"] == 16e9, "Dask would wait for ever for more"
    assert "64.0 GB" in beyond.warning
    assert "worker b" in beyond.warning


def test_what_is_measured_is_built_on_machines_of_one_kind() -> None:
    step = Step(kind="build", artifact="cpu")
    new, old = worker("a", "onnxruntime", "cpu-vnni"), worker("b", "onnxruntime")
    needs = Needs(("onnxruntime",))
    assert place(step, needs, [new, old]).workers == (new.address, old.address)
    assert place(step, needs, [new, old], home=old).workers == (old.address,)
    assert place(step, needs, [new], home=old).workers == (new.address,), "better than nothing"


def test_the_last_time_tells_the_memory(recipe: Recipe, model: Made, tmp_path: Path) -> None:
    store, step = Store(tmp_path / "out"), Step(kind="calibrate", files={"model": model})
    by_rule = needs_of(recipe, step, store).memory_bytes
    assert 300e6 <= by_rule <= 400e6
    with store.locked():
        store.run(
            "calibrate",
            {},
            lambda folder: (folder / "a.ranges").write_text(""),
            took={"seconds": 1.0, "peak_bytes": 12_345_678_901},
        )
    assert needs_of(recipe, step, store).memory_bytes == 12_345_678_901
