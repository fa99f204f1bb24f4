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


def refused(folder: Path, text: str) -> RecipeError:
    """The error of a recipe that must be refused."""
    path = write(folder, text)
    with pytest.raises(RecipeError) as caught:
        read_recipe(path)
    assert str(path) in caught.value.message
    assert caught.value.data["file"] == path
    return caught.value


def changed(line: str, *, instead_of: str, text: str = FULL) -> str:
    assert text.count(instead_of) == 1, f"{instead_of!r} must be in the recipe once"
    return text.replace(instead_of, line)


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


@pytest.mark.parametrize(
    ("line", "instead_of", "key", "hint"),
    [
        ("outptu = 'built'", 'output = "built"', "outptu", "did you mean output?"),
        ("soruce = 'm.py:b'", 'source = "model.py:build"', "model.soruce", "did you mean model.source?"),
        (
            "precison = 'int8'",
            'gpus = ["sm86", "sm89"]',
            "artifact[0].precison",
            "did you mean artifact[0].precision?",
        ),
        (
            "zzz = 1",
            "batch_size = 4",
            "bench.zzz",
            "known keys: max_drop, max_size_mb, max_latency_ms, threads,",
        ),
        ("path = 'elsewhere'", 'output = "built"', "path", ""),
    ],
)
def test_an_unknown_key_is_named_with_its_path_and_the_nearest(
    tmp_path: Path, line: str, instead_of: str, key: str, hint: str
) -> None:
    error = refused(tmp_path, changed(line, instead_of=instead_of))
    assert f"key '{key}' is unknown" in error.message
    assert error.data["key"] == key
    assert error.hint.startswith(hint)


@pytest.mark.parametrize(
    ("line", "instead_of", "problem"),
    [
        ("opset = '18'", "opset = 18", "'model.opset' is a text ('18'); a whole number is required"),
        ("opset = 18.5", "opset = 18", "'model.opset' is a number (18.5); a whole number is required"),
        ("opset = true", "opset = 18", "'model.opset' is true or false (True); a whole number is required"),
        ("simplify = 0", "simplify = false", "'model.simplify' is a whole number (0); true or false"),
        ("outputs = 'logits'", 'outputs = ["logits"]', "'model.outputs' is a text ('logits'); a list"),
        ("outputs = ['a', 1]", 'outputs = ["logits"]', "'model.outputs[1]' is a whole number (1); a text"),
        ("max_time_s = '1'", "max_time_s = 30", "'bench.max_time_s' is a text ('1'); a number"),
        ("version = 2", "version = 1", "'version' is 2; 1 is required"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(tmp_path: Path, line: str, instead_of: str, problem: str) -> None:
    assert problem in refused(tmp_path, changed(line, instead_of=instead_of)).message


def test_a_table_and_a_value_are_not_confused(tmp_path: Path) -> None:
    text = 'version = 1\nname = "net"\nmodel = "model.py:build"\nartifact = 3\n'
    assert "'model' is a text ('model.py:build'); a table is required" in refused(tmp_path, text).message


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('name = "net"\n', "name"),
        ('source = "model.py:build"\n', "model.source"),
        ('name = "fp32"\n', "artifact[0].name"),
        ('target = "onnxruntime"\n', "artifact[0].target"),
        ("version = 1\n", "version"),
    ],
)
def test_a_missing_key_is_named(tmp_path: Path, line: str, key: str) -> None:
    assert refused(tmp_path, changed("", instead_of=line, text=MINIMAL)).data["key"] == key


def test_a_recipe_without_artifacts_is_refused(tmp_path: Path) -> None:
    text = 'version = 1\nname = "net"\nartifact = []\n[model]\nsource = "model.py:build"\n'
    assert "at least one [[artifact]] is required" in refused(tmp_path, text).message


@pytest.mark.parametrize(
    ("line", "instead_of", "key", "hint"),
    [
        ('target = "tensorrt_rtx"', 'target = "tensorrt-rtx"', "artifact[0].target", "'tensorrt-rtx'?"),
        ('mode = "dynamics"', 'mode = "dynamic"', "artifact[1].mode", "'dynamic'?"),
        ('name = "../int8"', 'name = "int8"', "artifact[0].name", ""),
        ('name = ""', 'name = "int8"', "artifact[0].name", ""),
        ('name = ".int8"', 'name = "int8"', "artifact[0].name", ""),
        ('name = "int8"', 'name = "dynamic"', "artifact[1].name", ""),
        ('name = "pytorch"', 'name = "dynamic"', "artifact[1].name", ""),
        ('name = "net"', 'name = "dynamic"', "artifact[1].name", ""),
        ('baseline = "fp64"', 'baseline = "int8"', "bench.baseline", ""),
        ('inputs = ["x"]', 'inputs = ["x:[batch,3,32,32]"]', "model.inputs", "write NAME:SHAPE"),
        ('dynamic = ["x"]', 'dynamic = ["x:2=height"]', "model.dynamic", "write for instance x:0=batch"),
        ('opt_shapes = ["x:[n,3]"]', 'opt_shapes = ["x:8x3x32x32"]', "artifact[0].opt_shapes", ""),
        ('calibration = ""', 'calibration = "data.npz"', "data.calibration", ""),
    ],
)
def test_a_value_that_cannot_work_is_refused_before_any_work(
    tmp_path: Path, line: str, instead_of: str, key: str, hint: str
) -> None:
    error = refused(tmp_path, changed(line, instead_of=instead_of))
    assert error.data["key"] == key
    assert hint in error.hint


@pytest.mark.parametrize(
    ("line", "instead_of", "key"),
    [
        ('name = "../net"', 'name = "net"', "name"),
        ('name = ""', 'name = "net"', "name"),
        ('method = "entropi"', 'method = "percentile:99.9"', "calibrate.method"),
        ('method = "kl"', 'method = "minmax"', "artifact[0].method"),
        ("samples = -1", "samples = 256", "calibrate.samples"),
        ("batch_size = 0", "batch_size = 4", "bench.batch_size"),
        ('metric = "top3"', "batch_size = 4", "bench.metric"),
    ],
)
def test_a_value_that_a_later_stage_would_refuse_is_refused_at_once(
    tmp_path: Path, line: str, instead_of: str, key: str
) -> None:
    assert refused(tmp_path, changed(line, instead_of=instead_of)).data["key"] == key


def test_static_int8_without_calibration_data_is_refused(tmp_path: Path) -> None:
    error = refused(tmp_path, MINIMAL + 'precision = "int8"\n')
    assert "key 'data.calibration' is missing; 'fp32' is static INT8" in error.message
    recipe = read_recipe(write(tmp_path, MINIMAL + 'precision = "int8"\nmode = "dynamic"\n'))
    assert recipe.artifact[0].mode == "dynamic"


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


def test_a_recipe_of_a_later_version_is_refused_by_its_version_alone(tmp_path: Path) -> None:
    error = refused(tmp_path, changed("version = 2\nnew = true", instead_of="version = 1", text=MINIMAL))
    assert error.data["key"] == "version"
