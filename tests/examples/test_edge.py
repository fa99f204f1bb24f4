"""examples/edge: a budget, and INT8 for ARM that computes the same on x86 and, where installed, on ARM."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from small_examples import EXAMPLES, built, copied, modules, value

from qcompile.core.artifact import read_manifest
from qcompile.pipeline.recipe.recipe import read_recipe

ARM_PYTHON = "QCOMPILE_ARM_PYTHON"


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    folder = copied("edge", tmp_path_factory.mktemp("edge"))
    return folder, built(folder, "onnx-fp32-arm", "onnx-int8-arm", samples=24).artifacts


def test_int8_keeps_the_size_and_the_accuracy_of_the_budget(edge: tuple[Path, dict[str, Path]]) -> None:
    folder, made = edge
    budget = read_recipe(EXAMPLES / "edge/recipe.toml").budget
    assert set(budget.limits) == {"max_size_mb", "max_latency_ms", "max_drop"}
    accuracy = {name: value(folder, path, "top1") for name, path in made.items()}
    assert accuracy["onnx-int8-arm"] > accuracy["onnx-fp32-arm"] - (budget.max_drop or 0) / 100
    limit = (budget.max_size_mb or 0) * 1e6
    assert made["onnx-int8-arm"].stat().st_size < limit < made["onnx-fp32-arm"].stat().st_size


def test_every_layer_of_the_file_for_arm_is_int8(edge: tuple[Path, dict[str, Path]]) -> None:
    manifest = read_manifest(edge[1]["onnx-int8-arm"])
    assert manifest.proof["layers_by_precision"]["int8"] == {"QLinearConv": 52, "QGemm": 1}
    assert not manifest.proof["layers_by_precision"]["fp32"]


def test_the_comparison_of_two_interpreters_finds_one_equal_to_itself(
    edge: tuple[Path, dict[str, Path]],
) -> None:
    folder, made = edge
    with modules(folder, "on_arm", "data") as (on_arm, data):
        images, labels = next(data.evaluation())
        line = on_arm.compared(made["onnx-int8-arm"], sys.executable, images, labels)
    assert "50 images: 100.0% of the outputs equal bit for bit, inf dB, 100.0% of the predictions" in line


@pytest.mark.skipif(
    ARM_PYTHON not in os.environ,
    reason=f"no ARM: python examples/edge/arm_python.py FOLDER, then {ARM_PYTHON}=FOLDER/arm-python",
)
@pytest.mark.parametrize("processor", ["max", "cortex-a72"])
def test_arm_computes_the_outputs_of_x86_bit_for_bit(
    edge: tuple[Path, dict[str, Path]], monkeypatch: pytest.MonkeyPatch, processor: str
) -> None:
    folder, made = edge
    monkeypatch.setenv("ARM_CPU", processor)
    with modules(folder, "on_arm", "data") as (on_arm, data):
        images, _ = next(data.evaluation())
        here, expected = on_arm.on(sys.executable, made["onnx-int8-arm"], images)
        there, actual = on_arm.on(os.environ[ARM_PYTHON], made["onnx-int8-arm"], images)
    assert there == "aarch64" != here
    np.testing.assert_array_equal(actual, expected)


def test_training_writes_weights_as_the_model_reads_them(
    edge: tuple[Path, dict[str, Path]], tmp_path: Path
) -> None:
    from safetensors.numpy import load_file

    with modules(edge[0], "train", "model") as (train, model):
        network = model.mobilenet_v2()
        train.train(network, tmp_path / "w.safetensors", epochs=1, steps=2)
        committed = load_file(model.WEIGHTS)
    made = load_file(tmp_path / "w.safetensors")
    assert {name: array.shape for name, array in made.items()} == {
        name: array.shape for name, array in committed.items()
    }
    assert (EXAMPLES / "edge/mobilenetv2.safetensors").stat().st_size <= 600_000
