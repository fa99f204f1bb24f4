"""The READMEs of the examples show what their commands print: the rows of the recipe, today's columns."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from qcompile.bench.results.export import markdown
from qcompile.bench.results.results import Results
from qcompile.pipeline.recipe import read_recipe

ROOT = Path(__file__).parents[2]
READMES = sorted(ROOT.glob("examples/*/README.md"))


def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_readmes", ROOT / "examples/write_readmes.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BLOCKS = [
    pytest.param(command, body, id=f"{path.parent.name}-{number}")
    for path in READMES
    for number, (command, body) in enumerate(writer().blocks(path.read_text(encoding="utf-8")))
]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.mark.parametrize(("command", "body"), BLOCKS)
def test_a_table_has_the_rows_and_the_columns_of_today(command: str, body: str) -> None:
    if body in ("", writer().NOT_RUN):
        pytest.skip("not run yet: python examples/write_readmes.py")
    program, verb, *arguments = shlex.split(command)
    if program != "qcompile" or verb not in ("run", "bench"):
        assert body.strip()
        return
    lines = [cells(line) for line in body.splitlines() if line.startswith("|")]
    today = markdown(Results("pytorch", [], {}, {"threads": 2, "inputs": {}})).splitlines()[0]
    assert lines, f"run python examples/write_readmes.py: {command} has no table"
    assert lines[0] == cells(today)
    rows = {row[0].removesuffix(" (baseline)") for row in lines[2:]}
    if verb == "run":
        recipe = read_recipe(ROOT / arguments[0])
        assert {one.name for one in recipe.artifact} | {recipe.bench.baseline if recipe.bench else ""} <= rows
    else:
        measured = arguments[: next(i for i, text in enumerate(arguments) if text.startswith("-"))]
        assert {Path(one).stem for one in measured} <= {row.removesuffix(".onnx") for row in rows}


@pytest.mark.parametrize("name", ["detector", "lstm", "segmenter", "speech", "text_encoder"])
def test_a_readme_names_its_one_command_and_says_what_to_notice(name: str) -> None:
    text = (ROOT / f"examples/{name}/README.md").read_text(encoding="utf-8")
    assert f"```console\nqcompile run examples/{name}/recipe.toml\n```" in text
    assert "## What to notice" in text


def test_an_output_is_replaced_and_all_else_stays() -> None:
    module = writer()
    text = "a\n<!-- output of: python x.py -->\nold\n<!-- end of output -->\nb\n"
    assert module.blocks(text) == [("python x.py", "old\n")]
    new = module.written(text, {"python x.py": "new\n", "python y.py": "other\n"})
    assert new == text.replace("old", "new")
    assert module.written(new, {}) == new


def test_a_command_that_fails_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="exit code 2"):
        writer().output_of("python no_such_file.py")
    with pytest.raises(SystemExit, match="qcompile or python is required"):
        writer().output_of("rm -r x")
    assert "no_such_file" in capfd.readouterr().err
