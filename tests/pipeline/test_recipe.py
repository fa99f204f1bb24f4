from __future__ import annotations

import re
from pathlib import Path

import pytest

from qcompile.errors import MissingFile, RecipeError
from qcompile.pipeline.recipe import ArtifactSection, read_recipe

MINIMAL = """
version = 1
name = "net"
[model]
source = "model.py:build"
[[artifact]]
name = "fp32"
target = "onnxruntime"
"""

FULL = """
version = 1
name = "net"
output = "built"

[model]
source = "model.py:build"
inputs = ["x:[batch,3,32,32]"]
outputs = ["logits"]
dynamic = ["x:2=height"]
opset = 18
depends = ["weights.bin"]
simplify = false

[data]
calibration = "data.npz"
evaluation = "data.py:evaluation"

[calibrate]
method = "percentile:99.9"
samples = 256

[[artifact]]
name = "int8"
target = "tensorrt-rtx"
precision = "int8"
method = "minmax"
exclude = ["conv1"]
gpus = ["sm86", "sm89"]
min_shapes = ["x:1x3x32x32"]
opt_shapes = ["x:8x3x32x32"]
max_shapes = ["x:16x3x32x32"]
allow_fallback = true

[[artifact]]
name = "dynamic"
target = "onnxruntime"
precision = "int8"
mode = "dynamic"

[bench]
batch_size = 4
max_time_s = 30
precision_target = 0.05
baseline = "int8"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_full_recipe_is_read(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, FULL))
    assert (recipe.name, recipe.output, recipe.folder) == ("net", "built", tmp_path.resolve())
    assert (recipe.model.inputs, recipe.model.opset) == (("x:[batch,3,32,32]",), 18)
    assert not recipe.model.simplify
    assert (recipe.calibrate.method, recipe.calibrate.samples) == ("percentile:99.9", 256)
    int8, dynamic = recipe.artifact
    assert (int8.gpus, int8.max_shapes, int8.allow_fallback) == (("sm86", "sm89"), ("x:16x3x32x32",), True)
    assert (int8.needs_ranges, dynamic.needs_ranges) == (True, False)
    assert recipe.bench is not None
    assert (recipe.bench.baseline, recipe.bench.max_time_s) == ("int8", 30.0)
    assert isinstance(recipe.bench.max_time_s, float)


def test_what_is_not_said_has_its_default(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, MINIMAL))
    assert recipe.artifact == (ArtifactSection(name="fp32", target="onnxruntime"),)
    assert (recipe.bench, recipe.data.calibration, recipe.model.simplify) == (None, "", True)


def test_a_recipe_that_is_not_there_is_named(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL)
    with pytest.raises(MissingFile) as caught:
        read_recipe(tmp_path / "recepi.toml")
    assert "recipe.toml" in caught.value.hint


@pytest.mark.parametrize("content", [b"version = ", b"{}", b"\xff\xfe", b"a = 1\na = 2"])
def test_what_is_not_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match="not TOML"):
        read_recipe(path)


WENT = (("balance", ""), ("rest", "float_precision"), ("processor", "isa"), ("form", "quant_format"))
"""Keys of 0.1.0 that are refused, in the order in which they are found, and their names of today."""


def test_a_recipe_of_0_1_0_is_read_once_each_key_that_went_was_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    text = (Path(__file__).parents[1] / "samples/recipe-0.1.0.toml").read_text(encoding="utf-8")
    for name, today in WENT:
        path.write_text(text, encoding="utf-8")
        with pytest.raises(RecipeError, match=rf"\.{name}' is unknown") as caught:
            read_recipe(path, told=lambda _: None)
        assert f"{name} went with 0.3.0: " in caught.value.hint
        text = re.sub(rf"(?m)^{name} = (.*)$", rf"{today} = \1" if today else "", text)
    path.write_text(text, encoding="utf-8")
    with pytest.warns(DeprecationWarning, match="vnni is now avx512-vnni"):
        recipe = read_recipe(path)
    (one,) = recipe.artifact
    assert (one.name, one.float_precision, one.isa) == ("cpu-int8", "fp32", "avx512-vnni")
    assert (one.tensorrt.as_json(), one.calibrator, one.block_size) == ({}, "", 64)
    assert recipe.bench is not None
    assert (recipe.bench.batch_size, recipe.bench.timeout_s) == (32, 600.0)
    assert (recipe.calibrate.method, recipe.data.evaluation) == ("auto", "data.py:evaluation")
