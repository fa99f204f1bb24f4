"""What docs/sweep.md shows runs, and says what the file format holds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qcompile.bench.results.sweep_results import CellResult, load_sweep
from qcompile.cli import main
from qcompile.spec.option import fields_of
from qcompile.spec.sweep import SweepSection

GUIDE = (Path(__file__).parents[1] / "docs" / "sweep.md").read_text(encoding="utf-8")
RECIPE = re.findall(r"<!-- recipe -->\n```toml\n(.*?)```", GUIDE, re.DOTALL)[0]
COMMANDS = re.findall(r"<!-- commands -->\n```console\n(.*?)```", GUIDE, re.DOTALL)[0].splitlines()


def test_the_commands_of_the_guide_run(
    tiny_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On local workers; nothing is measured, which takes the time of several processes."""
    tiny_file("residual", file="small.onnx")
    tiny_file("residual", file="large.onnx", opset=15)
    x = np.random.default_rng(0).standard_normal((4, 4, 8, 8)).astype(np.float32)
    for name in ("calibration", "evaluation"):
        np.savez(tmp_path / f"{name}.npz", x=x, labels=np.arange(4) % 3)
    head = RECIPE[: RECIPE.index("[bench]")]
    (tmp_path / "recipe.toml").write_text(
        head.replace('targets = ["onnxruntime", "openvino"]', 'targets = ["openvino"]')
    )
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        program, *words = shlex.split(command)
        assert program == "qcompile"
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert not ended.value.code, command
    results = load_sweep("out/sweep.json")
    assert results.finished
    assert sorted(cell.name for cell in results.cells) == [
        "large-b1-openvino-int8",
        "large-b8-openvino-int8",
        "small-b1-openvino-fp32",
        "small-b1-openvino-int8",
        "small-b8-openvino-fp32",
        "small-b8-openvino-int8",
    ]
    assert {cell.state for cell in results.cells} == {"done"}
    for cell in results.cells:
        assert (tmp_path / "out" / cell.artifact).is_file()
    for shown in re.findall(r"^out/(\S+)", GUIDE, re.MULTILINE):
        assert (tmp_path / "out" / shown).exists(), shown


def test_the_whole_recipe_of_the_guide_is_a_sweep_of_fourteen_cells(tmp_path: Path) -> None:
    from qcompile.pipeline.recipe import parse_recipe
    from qcompile.pipeline.sweep.cells import members

    every = list(members(parse_recipe(RECIPE.encode(), tmp_path / "recipe.toml")))
    cells = [cell for member in every for cell in member.cells]
    assert (len(every), len(cells)) == (4, 14)
    assert not [cell for cell in cells if cell.why_not]


def test_the_guide_names_every_key() -> None:
    for name in [*CellResult.__struct_fields__, *(one.name for one in fields_of(SweepSection))]:
        assert f"`{name}`" in GUIDE or f"[[sweep.{name}]]" in GUIDE, name
