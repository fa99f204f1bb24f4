"""Scales, files, variables and comments of a migrated command; the guide shows one."""

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
from qcompile.errors import InvalidOption, MissingFile
from qcompile.pipeline.migrate import Migration
from qcompile.pipeline.recipe import read_recipe


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
