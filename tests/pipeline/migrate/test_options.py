"""What options become, by what the sources of the tools say that they do: `options.toml` has the vectors."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import qcompile
from qcompile.cli.diff import diff
from qcompile.pipeline.migrate import Migration
from qcompile.pipeline.migrate.intent import TOOLS, Tool, tomllib

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
