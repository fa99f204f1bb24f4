"""Polygraphy reads the same command lines: what its own parser makes of them is what the recipe says."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import pytest

import qcompile
from qcompile.pipeline.migrate.precision import read_facts
from qcompile.pipeline.recipe import read_recipe
from qcompile.spec.tensorrt import parse_bytes

pytest.importorskip("polygraphy")
pytestmark = pytest.mark.filterwarnings("ignore:SelectableGroups dict interface:DeprecationWarning")
A, B = "image:[1,3,8,8] ids:[1,16]", "image:[4,3,8,8] ids:[4,16]"
COMMANDS = [
    "m.onnx -o e.engine",
    "m.onnx -o e.engine --fp16",
    "m.onnx -o e.engine --tf32 --bf16",
    "m.onnx -o e.engine --int8 --fp16 --data-loader-script loader.py",
    "m.onnx -o e.engine --int8 --data-loader-script loader.py:other --calib-base-cls IInt8MinMaxCalibrator",
    f"m.onnx -o e.engine --trt-min-shapes {A} --trt-opt-shapes {A} --trt-max-shapes {B}",
    f"m.onnx -o e.engine --input-shapes {B}",
    f"--trt-min-shapes {A} --trt-opt-shapes {A} --trt-max-shapes {A} --trt-min-shapes {B} "
    f"--trt-opt-shapes {B} --trt-max-shapes {B} --output e.engine m.onnx",
    "m.onnx -o e.engine --pool-limit workspace:1.5G tactic_shared_memory:48K",
    "m.onnx -o e.engine --pool-limit workspace:1e9",
    "m.onnx -o e.engine --builder-optimization-level=4 --max-aux-streams 2 --sparse-weights --refittable",
    "m.onnx -o e.engine --strip-plan --version-compatible --exclude-lean-runtime",
    "m.onnx -o e.engine --use-dla --allow-gpu-fallback --fp16",
    "-v m.onnx --fp16 -o e.engine --tactic-sources",
    "m.onnx -vv --builder-opt 3 -o e.engine",
]


def parsed(command: str) -> Any:
    """What `polygraphy convert` makes of a command line."""
    from polygraphy.tools.args import DataLoaderArgs, ModelArgs, TrtConfigArgs
    from polygraphy.tools.convert.convert import Convert

    tool = Convert()
    parser = argparse.ArgumentParser()
    tools = parser.add_subparsers()
    tool.setup_parser(tools)
    (own,) = tools.choices.values()
    args = own.parse_args(shlex.split(command))
    for group in tool.arg_groups.values():
        group.parse(args)
    found = tool.arg_groups
    return found[TrtConfigArgs], found[ModelArgs], found[DataLoaderArgs], args


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("small")
def test_the_recipe_says_what_polygraphy_reads(command: str) -> None:
    config, model, loader, args = parsed(command)
    done = qcompile.migrate(f"polygraphy convert {command}")
    assert not done.missing
    recipe = read_recipe(done.recipe)
    (artifact,) = recipe.artifact
    tensorrt = artifact.tensorrt
    assert (recipe.folder / recipe.model.source).resolve() == Path(model.path)
    assert artifact.name == Path(args.output).stem

    permitted = {name for name in ("tf32", "fp16", "bf16", "int8") if getattr(config, name)}
    lowest = next((name for name in ("int8", "fp16", "bf16", "tf32") if name in permitted), "fp32")
    assert artifact.precision == lowest
    assert artifact.floats == ("fp16" if {"int8", "fp16"} <= permitted else "fp32")
    told = [{name: tuple(map(tuple, shapes)) for name, shapes in one.items()} for one in config.profile_dicts]
    assert profiles(done.recipe) == (told or [ones()])

    limits = {str(name).rpartition(".")[2]: size for name, size in (config.memory_pool_limits or {}).items()}
    assert tensorrt.workspace_bytes == limits.get("WORKSPACE", 0)
    assert tensorrt.pool_bytes.get("tactic-shared-memory") == limits.get("TACTIC_SHARED_MEMORY")
    assert tensorrt.optimization_level == (config.builder_optimization_level or -1)
    assert tensorrt.aux_streams == (-1 if config.max_aux_streams is None else config.max_aux_streams)
    switches = {
        "sparse_weights": config.sparse_weights,
        "refit": config.refittable,
        "strip_weights": config.strip_plan,
        "version_compatible": config.version_compatible,
        "exclude_lean_runtime": config.exclude_lean_runtime,
        "gpu_fallback": config.allow_gpu_fallback,
    }
    assert {name: getattr(tensorrt, name) for name in switches} == {k: bool(v) for k, v in switches.items()}
    assert (tensorrt.dla_core >= 0) == bool(config.use_dla)
    assert tensorrt.tactic_sources == (("none",) if config.tactic_sources == [] else ())
    script, function = loader.data_loader_script, loader.data_loader_func_name
    assert recipe.data.calibration == (f"{script}:{function}" if script else "")


def ones() -> dict[str, Any]:
    """Polygraphy's default: 1 for every dynamic axis."""
    facts = read_facts(Path("m.onnx"))
    shapes = {
        one.name: tuple(extent if isinstance(extent, int) else 1 for extent in one.shape)
        for one in facts.inputs
    }
    return {name: (shape, shape, shape) for name, shape in shapes.items()}


def profiles(path: Path) -> list[dict[str, Any]]:
    """Input to (min, opt, max) of each profile, as the build makes them of the recipe."""
    from qcompile.engines.tensorrt.builder.configure import make_profiles
    from qcompile.spec.artifacts import BuildSpec
    from qcompile.spec.decode import shared

    recipe = read_recipe(path)
    spec = shared(BuildSpec, recipe.artifact[0], data=recipe.data.calibration or None)
    made = make_profiles(read_facts(Path("m.onnx")).inputs, spec)
    return [{one.name: (one.min, one.opt, one.max) for one in profile} for profile in made]


@pytest.mark.parametrize("text", ["1", "16777216", "1e9", "16M", "1.5G", "48k", "3.7K"])
def test_sizes_are_polygraphys(text: str) -> None:
    from polygraphy.tools.args.util.util import parse_num_bytes

    from qcompile.pipeline.migrate.intent import read_size

    assert parse_bytes(read_size("size", text), option="size") == parse_num_bytes(text)
