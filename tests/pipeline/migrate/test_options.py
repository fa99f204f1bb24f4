"""What options become, by what the sources of the tools say that they do: `options.toml` has the vectors.

Scales, files, variables and comments of a migrated command; the guide shows one.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from issue_models import issue_model, write_cache

import qcompile
from qcompile.calibration import load_ranges
from qcompile.cli import main
from qcompile.cli.measure import diff
from qcompile.errors import InvalidOption, MissingFile
from qcompile.pipeline.migrate.intent import TOOLS, Tool, tomllib
from qcompile.pipeline.migrate.migration import Migration
from qcompile.pipeline.recipe import read_recipe

VECTORS = tomllib.loads(Path(__file__).with_name("options.toml").read_text(encoding="utf-8"))
FOLDED = {
    "--fp16": False, "--int8": True, "--int8 --calib=not-there.cache": True,
    "--int8 --fp16 --precisionConstraints=obey --layerPrecisions=/a/Conv:fp16": False,
}  # fmt: skip


def vectors(tool: Tool, name: str) -> pytest.MarkDecorator:
    """A test for each row of a table; its arguments are `row`."""
    rows = VECTORS[tool][name]
    return pytest.mark.parametrize("row", rows, ids=[f"{tool} {row[0]}" for row in rows])


def of_both(name: str) -> pytest.MarkDecorator:
    """A test for each row of the tables of both tools; its arguments are `tool` and `row`."""
    pairs = [pytest.param(tool, row, id=f"{tool} {row[0]}") for tool in TOOLS for row in VECTORS[tool][name]]
    return pytest.mark.parametrize(("tool", "row"), pairs)


def fate(done: Migration, typed: str) -> str:
    (found,) = [item for item in done.outcomes if item.flag.startswith(typed)]
    return found.fate


def frozen(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


@of_both("precisions")
def test_precisions(tool: Tool, row: Any, request: pytest.FixtureRequest) -> None:
    options, precision, float_precision = row
    commands = [f"convert m.onnx {options} -o e.engine", f"run m.onnx --trt {options}"]
    more = {"data": "samples.npz"} if tool == "trtexec" else {}
    for command in [options] if tool == "trtexec" else commands:
        recipe, done = request.getfixturevalue(tool)(command, **more)
        (artifact,) = recipe.artifact
        assert (artifact.precision, artifact.floats) == (precision, float_precision)
        assert not done.missing
        has_scales = bool(recipe.data.calibration or recipe.calibrate.ranges)
        assert has_scales == (precision in ("int8", "fp8", "best"))


@of_both("shapes")
def test_shapes(tool: Tool, row: Any, request: pytest.FixtureRequest) -> None:
    options, expected = row
    command, shapes = f"convert m.onnx -o e.engine {options}", "image:4x3x8x8,ids:4x16"
    if tool == "trtexec":
        command = options.format(shapes, shapes.replace(":4x", ":9x"))
        expected = {kind: (f"image:{n}x3x8x8", f"ids:{n}x16") for kind, n in expected.items()}
    recipe, done = request.getfixturevalue(tool)(command)
    for kind in ("min", "opt", "max"):
        assert getattr(recipe.artifact[0], f"{kind}_shapes") == tuple(expected.get(kind, ()))
    assert not done.missing


def test_several_profiles(trtexec: Any, request: pytest.FixtureRequest) -> None:
    """Also by names with a star; a dynamic input without shapes gets 1 everywhere (setupNetworkAndConfig)."""
    recipe, done = trtexec(
        "--profile=1 --minShapes=im*:2x3x4x4,ids:2x16 --maxShapes=im*:4x3x4x4,ids:4x16 "
        "--profile=0 --optShapes=image:4x3x8x8,ids:4x16 --useProfile=1"
    )
    assert recipe.artifact[0].tensorrt.profiles == (
        "image:4x3x8x8..4x3x8x8..4x3x8x8,ids:4x16..4x16..4x16",
        "image:2x3x4x4..4x3x4x4..4x3x4x4,ids:2x16..4x16..4x16",
    )
    assert not done.missing
    assert trtexec("--optShapes=ids:1x16")[0].artifact[0].opt_shapes == ("ids:1x16", "image:1x3x1x1")
    assert trtexec("")[0].artifact[0].opt_shapes == ("image:1x3x1x1", "ids:1x16")
    polygraphy = request.getfixturevalue("polygraphy")
    pairs = "--trt-min-shapes image:[{0},3,8,8] ids:[{0},16] --trt-max-shapes image:[{1},3,8,8] ids:[{1},16]"
    recipe, _ = polygraphy(f"convert m.onnx -o e.engine {pairs.format(1, 4)} {pairs.format(5, 9)}")
    assert recipe.artifact[0].tensorrt.profiles == (
        "image:1x3x8x8..4x3x8x8..4x3x8x8,ids:1x16..4x16..4x16",
        "image:5x3x8x8..9x3x8x8..9x3x8x8,ids:5x16..9x16..9x16",
    )


@of_both("build")
def test_options_of_the_build(tool: Tool, row: Any, request: pytest.FixtureRequest) -> None:
    options, kept = row
    command = "convert m.onnx -o e.engine " if tool == "polygraphy" else ""
    recipe, done = request.getfixturevalue(tool)(f"{command}{options}")
    tensorrt, kept = recipe.artifact[0].tensorrt, frozen(kept)
    assert {name: getattr(tensorrt, name) for name in kept} == kept
    assert set(tensorrt.as_json()) == set(kept)
    assert not done.missing


@vectors("trtexec", "fates")
def test_what_becomes_of_an_option_depends_on_its_value_and_the_target(row: Any, trtexec: Any) -> None:
    option, target, expected = row
    _, done = trtexec(shlex.join([option]), target)
    assert bool(done.missing) == (expected == "missing")
    (outcome,) = [item for item in done.outcomes if item.flag == option]
    assert outcome.fate == expected
    assert outcome.note or expected == "kept"


@vectors("trtexec", "layers")
def test_precisions_of_layers(row: Any, trtexec: Any) -> None:
    options, layers, expected = row
    recipe, done = trtexec(f"--fp16 {options}")
    assert recipe.artifact[0].layers == tuple(layers)
    assert fate(done, "--layer") == expected


def test_layers_in_a_precision_that_is_not_permitted_are_named(trtexec: Any) -> None:
    """TensorRT refuses it: "fp16 has been set for a layer ... but fp16 is not configured" (issue 3612)."""
    _, done = trtexec("--precisionConstraints=obey --layerPrecisions=/a/Conv:fp16")
    assert [item.name for item in done.missing] == ["precisionConstraints", "layerPrecisions"]


@pytest.mark.parametrize("options", FOLDED)
def test_a_graph_is_folded_where_it_is_calibrated_and_no_name_of_it_is_used(
    options: str, trtexec: Any
) -> None:
    """TensorRT folds constants and BatchNormalization by itself; INT8 is placed before it could."""
    assert trtexec(options, data="samples.npz")[0].model.simplify == FOLDED[options]


@vectors("trtexec", "measured")
def test_what_trtexec_measures_is_measured(row: Any, trtexec: Any) -> None:
    options, measured = row
    recipe, _ = trtexec(f"{options} --optShapes=image:4x3x8x8,ids:4x16")
    assert (recipe.bench is not None) == measured
    if recipe.bench is not None:
        assert recipe.bench.batch_size == 4


def test_graphs_and_layer_times_are_those_of_trtexec(trtexec: Any) -> None:
    options = {"useCudaGraph": (True, False), "noCudaGraph": (False, False), "dumpProfile": (None, True)}
    for option, expected in options.items():
        bench = trtexec(f"--saveEngine=e.engine --{option}")[0].bench
        assert (bench and (bench.cuda_graph, bench.layer_times)) == expected


@vectors("polygraphy", "compared")
def test_a_comparison_with_onnx_runtime_becomes_diff(row: Any, polygraphy: Any) -> None:
    options, arguments, missing = row
    _, done = polygraphy(f"run m.onnx --trt --onnxrt --save-engine e.plan {options}")
    assert [item.name for item in done.missing] == missing
    words = shlex.split(done.then[1])
    assert words == ["qcompile", "diff", "m.onnx", "out/e.engine", *arguments]
    diff.make_context("diff", words[2:])  # the verb takes these


def test_without_a_second_runtime_nothing_is_compared(polygraphy: Any) -> None:
    _, done = polygraphy("run m.onnx --trt --atol 1e-3")
    assert (len(done.then), fate(done, "--atol")) == (1, "unneeded")


@pytest.mark.parametrize(
    "words", ["-v", "-vvv", "--verbose", "-q", "--silent", "--log-file l.txt", "--seed=1"]
)
def test_verbosity_is_not_needed(words: str, polygraphy: Any) -> None:
    _, done = polygraphy(f"convert {words} m.onnx -o e.engine")
    assert not done.missing
    assert fate(done, words) == "unneeded"


def test_compute_capabilities_of_tensorrt_rtx(polygraphy: Any) -> None:
    recipe, _ = polygraphy("convert m.onnx -o e.engine --compute-capabilities 8.6 12.0", "tensorrt-rtx")
    assert recipe.artifact[0].gpus == ("sm86", "sm120")
    qcompile.migrate("POLYGRAPHY_USE_TENSORRT_RTX=1 polygraphy convert m.onnx -o e.engine", "r.toml")
    assert qcompile.read_recipe("r.toml").artifact[0].target == "tensorrt-rtx"


@of_both("wrong")
def test_a_wrong_command_is_an_error_and_writes_nothing(
    tool: Tool, row: Any, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(qcompile.QCompileError) as caught:
        request.getfixturevalue(tool)(row[0])
    assert row[1] in str(caught.value)
    assert caught.value.exit_code == 2
    assert not Path("recipe.toml").exists()


def fates(done: Migration, *names: str) -> list[str]:
    return [item.fate for item in done.outcomes if item.name in names]


@pytest.mark.parametrize("options", ["--int8", "--best", "--int8 --fp16", "--int8 --calib=not-there.cache"])
def test_int8_without_scales_is_not_done_in_silence(options: str, trtexec: Any) -> None:
    """trtexec takes placeholder ranges (setTensorDynamicRange) or random input (RndInt8Calibrator)."""
    with pytest.raises(InvalidOption, match="needs real samples") as caught:
        trtexec(options)
    assert ("random numbers" if "calib" in options else "placeholder ranges") in caught.value.message
    assert caught.value.data["option"] == "data"
    assert not Path("recipe.toml").exists()


def test_a_calibration_cache_becomes_ranges_of_the_model(folder: Path, trtexec: Any) -> None:
    model = onnx.load("m.onnx")
    write_cache(model, folder / "m.cache")
    recipe, done = trtexec("--int8 --calib=m.cache")
    assert (recipe.calibrate.ranges, recipe.data.calibration) == ("recipe.ranges", "")
    ranges = load_ranges(done.ranges)
    assert ranges.amax("image") == 127 * np.frombuffer(b"\0\0\0\x3d", "<f4")[0]
    assert set(ranges.fixed) == {v.name for v in model.graph.input} | {
        name for node in model.graph.node for name in node.output
    }
    for _, unused in (trtexec("--calib=m.cache"), trtexec("--int8 --calib=m.cache", data="samples.npz")):
        assert (fates(unused, "calib"), unused.ranges) == (["unneeded"], None)


INT8 = "convert m.onnx -o e.engine --int8"
LOADED = f"{INT8} --data-loader-script loader.py"


@pytest.mark.parametrize(
    ("command", "calibration", "ranges", "unneeded"),
    [
        (LOADED, "loader.py:load_data", "", ""),
        (f"{INT8} --data-loader-script ./loader.py:other", "loader.py:other", "", ""),
        (f"{LOADED} --data-loader-func-name old", "loader.py:old", "", ""),
        # a cache that is there is read, and the loader is not (the help of the option)
        (f"{LOADED} --calibration-cache m.cache", "", "recipe.ranges", "data-loader-script"),
        (f"{LOADED} --calibration-cache new.cache", "loader.py:load_data", "", "calibration-cache"),
    ],
)
def test_calibration_of_polygraphy(
    command: str, calibration: str, ranges: str, unneeded: str, polygraphy: Any
) -> None:
    recipe, done = polygraphy(command)
    assert (recipe.data.calibration, recipe.calibrate.ranges) == (calibration, ranges)
    assert fates(done, unneeded or "-") == (["unneeded"] if unneeded else [])


def test_calibrators_of_polygraphy(polygraphy: Any) -> None:
    recipe, _ = polygraphy(f"{LOADED} --calib-base-cls IInt8MinMaxCalibrator")
    assert recipe.calibrate.method == "minmax"
    _, done = polygraphy(f"{LOADED} --calib-base-cls IInt8LegacyCalibrator --quantile 0.5")
    assert [item.name for item in done.missing] == ["calib-base-cls", "quantile"]
    with pytest.raises(InvalidOption, match="calibrates on random numbers from 0 to 1"):
        polygraphy(f"{INT8} --calibration-cache new.cache")


def test_paths_are_relative_to_the_recipe(folder: Path) -> None:
    (folder / "in").mkdir()
    Path("m.onnx").rename("in/m.onnx")
    done = qcompile.migrate(
        "docker run -v $PWD/in:/models trt trtexec --onnx=/models/m.onnx --plugins=/models/p.so "
        "--plugins=/opt/q.so",
        "recipes/one.toml",
    )
    recipe = read_recipe(done.recipe)
    assert recipe.model.source == "../in/m.onnx"
    assert recipe.artifact[0].tensorrt.plugins == ("../in/p.so", "/opt/q.so")
    assert (recipe.folder / recipe.model.source).is_file()


@pytest.mark.usefixtures("folder")
def test_a_model_that_is_not_there_is_named_with_the_way_out() -> None:
    with pytest.raises(MissingFile, match=r"model /workspace/m\.onnx does not exist") as caught:
        qcompile.migrate("trtexec --onnx=/workspace/m.onnx")
    assert "`paths` /workspace/m.onnx=FILE" in caught.value.hint
    done = qcompile.migrate("trtexec --onnx=/workspace/m.onnx", paths=["/workspace=."])
    assert read_recipe(done.recipe).model.source == "m.onnx"


@pytest.mark.usefixtures("folder")
def test_variables_in_front_are_kept_or_named() -> None:
    done = qcompile.migrate(
        "NVIDIA_TF32_OVERRIDE=0 CUDA_VISIBLE_DEVICES=1 LD_PRELOAD=p.so trtexec --onnx=m.onnx"
    )
    assert read_recipe(done.recipe).artifact[0].precision == "fp32"
    assert [item.fate for item in done.outcomes[1:]] == ["kept", "unneeded", "missing"]


def test_the_recipe_says_where_each_key_comes_from_and_what_is_not_kept(trtexec: Any) -> None:
    _, done = trtexec("--fp16 --saveEngine=build/net.plan --avgTiming=4")
    text = done.recipe.read_text()
    assert 'name = "net"  # --saveEngine=build/net.plan\n' in text
    assert 'precision = "fp16"  # --fp16\n' in text
    assert "# Not kept: --avgTiming=4\n" in text
    assert "#   trtexec --onnx=m.onnx --fp16 --saveEngine=build/net.plan --avgTiming=4\n" in text
    assert done.then == ["qcompile run recipe.toml"]


def test_what_a_terminal_or_toml_would_not_take_is_escaped_in_the_recipe(trtexec: Any) -> None:
    """A command comes from a script of somebody else, and comments hold it."""
    recipe, done = trtexec("--fp16 --plugins=x\x1b[2J\u202e.so")
    text = done.recipe.read_text(encoding="utf-8")
    assert r"x\x1b[2J\u202e.so" in text.splitlines()[1]
    assert not {"\x1b", "\u202e"} & set(text)
    assert recipe.artifact[0].tensorrt.plugins == ("x\x1b[2J\u202e.so",)


GUIDE = (Path(__file__).parents[3] / "docs/migrate.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    found = re.search(rf"```{kind}\n(.*?)```", GUIDE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_writes_the_recipe_that_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = issue_model({"images": ("batch", 3, 32, 32)})
    onnx.save(model, "model.onnx")
    write_cache(model, tmp_path / "model.cache")
    typed, run = block("").strip().rsplit("\n", 1)
    words = shlex.split(typed.replace("\\\n", ""))
    assert words[:2] == ["qcompile", "migrate"]
    with pytest.raises(SystemExit) as done:
        main(words[1:])
    assert done.value.code == 0
    assert (tmp_path / "recipe.toml").read_text() == block("toml")
    assert run == "qcompile run recipe.toml"
