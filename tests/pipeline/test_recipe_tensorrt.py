"""A recipe's TensorRT artifacts: what reaches the builder, and which keys are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from simulated_machine import install

import qcompile
from qcompile.artifact import Manifest, read_manifest

HEAD = """
version = 1
name = "tiny"
[model]
source = "residual.onnx"
simplify = false
[data]
calibration = "calibration.npz"
[[artifact]]
name = "engine"
"""
RTX = 'target = "tensorrt-rtx"\ngpus = ["sm86"]\n'
WriteRecipe = Callable[[str], Path]


@pytest.fixture
def recipe(tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path) -> WriteRecipe:
    """`recipe(TEXT)` writes a recipe over the tiny residual network with this artifact."""
    tiny_file("residual")
    samples("residual", 16).rename(tmp_path / "calibration.npz")

    def write(artifact: str) -> Path:
        path = tmp_path / "recipe.toml"
        path.write_text(HEAD + artifact)
        return path

    return write


def built(path: Path) -> Manifest:
    """Run a recipe and return its engine's manifest."""
    manifest = read_manifest(qcompile.run(path).artifacts["engine"])
    assert manifest is not None
    return manifest


@pytest.mark.parametrize(
    ("precision", "reached", "float_precision"),
    [("fp32", "fp32", None), ("tf32", "tf32", None), ("best", "int8", "fp16")],
)
def test_precisions_of_tensorrt(
    precision: str, reached: str, float_precision: str | None, recipe: WriteRecipe
) -> None:
    manifest = built(recipe(f'{RTX}precision = "{precision}"'))
    assert manifest.precision == reached
    assert manifest.proof["layers_by_precision"] == {reached: {"CONVOLUTION": 2, "MATRIX_MULTIPLY": 1}}
    assert manifest.options.get("float_precision") == float_precision


def test_options_of_the_table_reach_the_engine_and_a_change_builds_it_again(recipe: WriteRecipe) -> None:
    text = f'{RTX}[artifact.tensorrt]\nworkspace = "1G"\nprofiles = ["x:1x4x8x8..2x4x8x8..4x4x8x8"]\n'
    manifest = built(recipe(text))
    assert manifest.options["workspace"] == "1G"
    assert manifest.proof["profiles"] == [
        {"x": {"min": [1, 4, 8, 8], "opt": [2, 4, 8, 8], "max": [4, 4, 8, 8]}}
    ]
    assert qcompile.run(recipe(text)).stages["build-engine"] == "skipped"
    assert qcompile.run(recipe(text.replace("1G", "2G"))).stages["build-engine"] == "done"


def test_tensorrts_own_calibrator_gets_the_calibration_data(
    recipe: WriteRecipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from qcompile.engines.tensorrt.builder import calibration

    class Memory:
        """A device that keeps nothing."""

        def __init__(self, device: int) -> None:
            assert device == 0

        def copy(self, name: str, array: object) -> int:
            return 1

        def close(self) -> None:
            """Nothing to free."""

    monkeypatch.setattr(calibration, "Device", Memory)
    here = install(monkeypatch, tmp_path, "8.5.3")
    path = recipe('target = "tensorrt"\nprecision = "int8"\ncalibrator = "native"')
    manifest = built(path)
    assert manifest.proof["calibration_batches"] == 16
    assert "INT8" in here.flags()
    assert not any(name.startswith(("calibrate", "quantize")) for name in qcompile.run(path).stages)
