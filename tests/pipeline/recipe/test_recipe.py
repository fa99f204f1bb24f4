"""A recipe is read, and what is wrong is named by its key."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qcompile.errors import MissingFile, RecipeError
from qcompile.pipeline.recipe.batches import default_shapes
from qcompile.pipeline.recipe.recipe import Recipe, parse_recipe, read_recipe
from qcompile.pipeline.stages.bench_stages import measured_options
from qcompile.spec.artifacts import ArtifactSection
from qcompile.spec.tensors import TensorInfo

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
MINIMAL = """
version = 1
name = "net"
[model]
source = "model.py:build"
{model}
[[artifact]]
name = "net-artifact"
target = "{target}"
{artifact}
"""

FULL = """
version = 1
name = "net"
output = "built"
[model]
source = "model.py:build"
inputs = ["x:[batch,3,32,32]"]
opset = 18
simplify = false
[calibrate]
method = "percentile:99.9"
ranges = "x.ranges"
[[artifact]]
name = "int8"
target = "tensorrt-rtx"
precision = "int8"
gpus = ["sm86", "sm89"]
min_shapes = ["x:1x3x32x32"]
max_shapes = ["x:16x3x32x32"]
[[artifact]]
name = "dynamic"
target = "onnxruntime"
precision = "int8"
mode = "dynamic"
[bench]
max_time_s = 30
baseline = "int8"
batch_sizes = [1, 8]
devices = ["cpu", "cuda:1"]
"""


def parsed(more: str = "", *, target: str = "onnxruntime", **lines: str) -> Recipe:
    """The minimal recipe with more lines in `model` and `artifact`, and more tables."""
    text = MINIMAL.format(**{"model": "", "artifact": "", "target": target, **lines}) + more
    return parse_recipe(text.encode(), Path("recipe.toml"))


def test_a_full_recipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(FULL)
    recipe = read_recipe(path)
    assert (recipe.name, recipe.output, recipe.folder) == ("net", "built", tmp_path.resolve())
    model, calibrate, bench = recipe.model, recipe.calibrate, recipe.bench
    assert (model.inputs, model.opset, model.simplify) == (("x:[batch,3,32,32]",), 18, False)
    assert (calibrate.method, calibrate.ranges) == ("percentile:99.9", "x.ranges")
    int8, dynamic = recipe.artifact
    assert (int8.gpus, int8.max_shapes) == (("sm86", "sm89"), ("x:16x3x32x32",))
    assert (int8.needs_ranges, dynamic.needs_ranges) == (True, False)
    assert bench is not None
    assert (bench.baseline, bench.batch_sizes, bench.devices) == ("int8", (1, 8), ("cpu", "cuda:1"))
    assert (bench.max_time_s, type(bench.max_time_s)) == (30.0, float)
    with pytest.raises(MissingFile) as caught:
        read_recipe(tmp_path / "recepi.toml")
    assert "recipe.toml" in caught.value.hint


def test_what_is_not_said_has_its_default() -> None:
    recipe = parsed()
    assert recipe.artifact == (ArtifactSection(name="net-artifact", target="onnxruntime"),)
    assert (recipe.bench, recipe.data.calibration, recipe.model.simplify) == (None, "", True)


@pytest.mark.parametrize(
    "content", [b"version = ", b"{}", b"\xff\xfe", b"a = 1\na = 2", b"a" + b".a" * 6000 + b" = 1"]
)
def test_what_is_not_toml_is_refused(content: bytes) -> None:
    with pytest.raises(RecipeError, match="not TOML"):
        parse_recipe(content, Path("recipe.toml"))


BASES = tomllib.loads(Path(__file__).with_name("refusals.toml").read_text(encoding="utf-8"))
ROWS = [
    pytest.param(base["recipe"], *row, *[""] * (5 - len(row)), id=f"{name}: {row[1] or row[0]}".strip())
    for name, base in BASES.items()
    for row in base["refused"]
]


@pytest.mark.parametrize(("recipe", "old", "new", "key", "says", "hint"), ROWS)
def test_what_is_wrong_is_named_with_its_key(
    recipe: str, old: str, new: str, key: str, says: str, hint: str
) -> None:
    """Before any work: `refusals.toml` has the recipes."""
    assert not old or recipe.count(old) == 1, f"{old!r} must be in the recipe once"
    text = recipe.replace(old, new) if old else recipe + new
    with pytest.raises(RecipeError) as refused:
        parse_recipe(text.encode(), Path("recipe.toml"))
    assert refused.value.data["key"] == key
    assert refused.value.data["file"] == Path("recipe.toml")
    assert refused.value.message.startswith(f"recipe.toml: key '{key}' ")
    assert says in refused.value.message
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("shapes", "bench", "model"),
    [
        ("", "batch_size = 64", ""),
        ('min_shapes = ["x:1x3"]\nmax_shapes = ["x:32x3"]', "batch_size = 32\nbatch_sizes = [1, 8]", ""),
        ('[artifact.tensorrt]\nprofiles = ["x:1x3..2x3..4x3", "x:8x3..8x3..8x3"]', "batch_sizes = [8]", ""),
        ('min_shapes = ["x:1x3"]\nmax_shapes = ["x:4x3"]', "batch_size = 4", 'inputs = ["x:[batch,3]"]'),
        ("", "batch_size = 4", 'inputs = ["x:4x3"]'),
        ("", "batch_size = 4", 'inputs = ["x:1x3"]\ndynamic = ["x:0=batch"]'),
    ],
)
def test_batches_that_engines_take_are_none(shapes: str, bench: str, model: str) -> None:
    parsed(f"[bench]\n{bench}", target="tensorrt-rtx", artifact=shapes, model=model)


def test_an_engine_without_shapes_takes_what_is_measured() -> None:
    x = TensorInfo("x", "float32", ("batch", 3))
    table = TensorInfo("table", "float32", (7, 3))
    large = parsed("[bench]\nbatch_size = 32\nbatch_sizes = [64]").bench
    assert default_shapes([x, table], large) == {
        "min_shapes": {"x": (1, 3)}, "opt_shapes": {"x": (32, 3)}, "max_shapes": {"x": (64, 3)},
    }  # fmt: skip
    assert default_shapes([x], parsed("[bench]\nbatch_size = 16").bench) == {}
    assert default_shapes([TensorInfo("x", "float32", ("batch", "time"))], large) == {}
    assert default_shapes([x], None) == {}


@pytest.mark.parametrize("name", ["digits", "cifar_resnet18"])
def test_the_examples_engines_take_what_they_measure(name: str) -> None:
    recipe = read_recipe(ROOT / f"examples/{name}/recipe.toml")
    assert recipe.bench is not None
    engines = [one for one in recipe.artifact if one.target.startswith("tensorrt")]
    assert len(engines) in (3, 6)
    assert all(one.max_shapes == (f"image:{recipe.bench.batch_size}x3x32x32",) for one in engines)


@pytest.mark.parametrize(
    ("bench", "on_gpu", "graph", "times"),
    [
        ("", ["net-artifact"], False, False),
        ("", ["net-artifact", "engine"], None, False),
        ("cuda_graph = false\n", ["net-artifact", "engine"], False, False),
        ("cuda_graph = true\n", ["net-artifact"], True, False),
        ("layer_times = true\n", [], False, True),
    ],
)
def test_without_an_engine_the_default_of_cuda_graphs_is_off_in_the_key(
    bench: str, on_gpu: list[str], graph: bool | None, times: bool
) -> None:
    recipe = parsed(f'[bench]\n{bench}[[artifact]]\nname = "engine"\ntarget = "tensorrt"\n')
    options = measured_options(recipe, on_gpu)
    assert (options["cuda_graph"], options["layer_times"]) == (graph, times)
