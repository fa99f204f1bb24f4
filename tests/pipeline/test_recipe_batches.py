"""An engine's profile covers the batches that the recipe measures, or the recipe is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from qcompile.pipeline.recipe import default_shapes, read_recipe
from qcompile.tensors import TensorInfo

RECIPE = """
version = 1
name = "tiny"

[model]
source = "model.onnx"
INPUTS

[[artifact]]
name = "trt"
target = "TARGET"
SHAPES

[bench]
BENCH
"""


def write(folder: Path, shapes: str, bench: str, *, inputs: str = "", target: str = "tensorrt-rtx") -> Path:
    path = folder / "recipe.toml"
    text = RECIPE.replace("SHAPES", shapes).replace("BENCH", bench).replace("TARGET", target)
    path.write_text(text.replace("INPUTS", inputs))
    return path


@pytest.mark.parametrize(
    ("shapes", "bench", "inputs"),
    [
        ("", "batch_size = 64", ""),
        ('min_shapes = ["x:1x3"]\nmax_shapes = ["x:32x3"]', "batch_size = 32\nbatch_sizes = [1, 8]", ""),
        ('[artifact.tensorrt]\nprofiles = ["x:1x3..2x3..4x3", "x:8x3..8x3..8x3"]', "batch_sizes = [8]", ""),
        ('min_shapes = ["x:1x3"]\nmax_shapes = ["x:4x3"]', "batch_size = 4", 'inputs = ["x:[batch,3]"]'),
        ("", "batch_size = 4", 'inputs = ["x:4x3"]'),
        ("", "batch_size = 4", 'inputs = ["x:1x3"]\ndynamic = ["x:0=batch"]'),
    ],
)
def test_batches_that_engines_take_are_none(shapes: str, bench: str, inputs: str, tmp_path: Path) -> None:
    read_recipe(write(tmp_path, shapes, bench, inputs=inputs))


def test_an_engine_without_shapes_takes_what_is_measured(tmp_path: Path) -> None:
    x = TensorInfo("x", "float32", ("batch", 3))
    table = TensorInfo("table", "float32", (7, 3))
    large = read_recipe(write(tmp_path, "", "batch_size = 32\nbatch_sizes = [64]")).bench
    assert default_shapes([x, table], large) == {
        "min_shapes": {"x": (1, 3)},
        "opt_shapes": {"x": (32, 3)},
        "max_shapes": {"x": (64, 3)},
    }
    small = read_recipe(write(tmp_path, "", "batch_size = 16")).bench
    assert default_shapes([x], small) == {}
    assert default_shapes([TensorInfo("x", "float32", ("batch", "time"))], large) == {}
    assert default_shapes([x], None) == {}


@pytest.mark.parametrize("name", ["digits", "cifar_resnet18"])
def test_the_examples_engines_take_what_they_measure(name: str) -> None:
    recipe = read_recipe(Path(__file__).parents[2] / f"examples/{name}/recipe.toml")
    assert recipe.bench is not None
    engines = [one for one in recipe.artifact if one.target.startswith("tensorrt")]
    assert len(engines) in (3, 6)
    assert all(one.max_shapes == (f"image:{recipe.bench.batch_size}x3x32x32",) for one in engines)
