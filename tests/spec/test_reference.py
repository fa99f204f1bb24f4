"""The reference pages and the schemas in docs/ are what `spec/` says; docstrings tell every parameter."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from keyword_types import keyword_types
from reference_pages import FOLDER, pages, verbs

import qcompile
from qcompile.cli.main import group
from qcompile.pipeline.propose.init import init
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.option import fields_of, options_of
from qcompile.spec.words import TARGETS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs/recipe.schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", pages())
def test_the_pages_are_what_the_fields_say(name: str) -> None:
    written = (FOLDER / name).read_text(encoding="utf-8")
    assert written == pages()[name], "`make reference` writes it again"


def test_the_keyword_arguments_are_what_the_fields_say() -> None:
    text = (ROOT / "spec/keywords.pyi").read_text(encoding="utf-8")
    assert text == keyword_types(), "`make reference`"
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec("qcompile.spec.keywords", None))
    exec(compile(text, "keywords.pyi", "exec"), vars(module))
    assert [*get_type_hints(module.BuildKeywords, vars(module))] == [one.name for one in fields_of(BuildSpec)]
    assert "ranges" not in get_type_hints(module.QuantizeKeywords, vars(module))  # a parameter of its own


def test_every_option_says_what_it_does_in_one_sentence() -> None:
    for name, made in verbs():
        assert made.spec.__doc__, name
        for one in options_of(made.spec):
            assert one.sentence.endswith("."), f"{name}: {one.key}"
            assert one.sentence[0].isupper(), f"{name}: {one.key}"


@pytest.mark.parametrize("name", [name for name in qcompile.__all__ if name.islower() and name[0] != "_"])
def test_every_parameter_of_a_function_is_told(name: str) -> None:
    """MkDocs makes the page of Python from the docstrings."""
    function = inspect.unwrap(getattr(qcompile, name))
    doc = inspect.cleandoc(function.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
    told = {
        one.strip("* ")
        for names in re.findall(r"^ {4}(\*{0,2}\w[\w*, ]*): ", doc, re.M)
        for one in names.split(",")
    }
    assert told == set(inspect.signature(function).parameters) or name == "load_artifact"


def test_options_stand_in_the_spec_alone() -> None:
    for path in (ROOT / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and path.stem not in ("verb", "session", "untrusted"):
                assert ast.unparse(node.func) not in ("click.option", "click.Option", "click.argument"), path


def test_run_prints_the_schema() -> None:
    said = CliRunner().invoke(group, ["run", "--schema"])
    assert (said.exit_code, json.loads(said.output)) == (0, SCHEMA)


VALIDATOR = Draft202012Validator(SCHEMA)
RECIPES = {*ROOT.glob("**/*recipe*.toml"), *ROOT.glob("examples/*/*.toml")} - {*ROOT.glob("tests/samples/*")}


@pytest.mark.parametrize("path", sorted(RECIPES), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_recipes_of_the_repository_fit_the_schema(path: Path) -> None:
    VALIDATOR.check_schema(SCHEMA)
    assert list(VALIDATOR.iter_errors(tomllib.loads(path.read_text(encoding="utf-8")))) == []


def test_it_accepts_what_init_writes_and_the_recipe_names_it(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> None:
    data, model = str(samples("residual", 16)), str(tiny_file("residual"))
    text = init(model, tmp_path / "recipe.toml", data=data, targets=TARGETS, max_drop=0.5).text
    VALIDATOR.validate(tomllib.loads(text))
    assert text.splitlines()[0] == f"#:schema {(ROOT / 'docs/recipe.schema.json').as_uri()}"


@pytest.mark.parametrize(
    "wrong",
    [
        'outptu = "x"',
        'name = "../x"',
        "[model]\nsorce = 1",
        "[model]\nsource = 1",
        '[[artifact]]\nname = "a"\ntarget = "tensort"',
        '[[artifact]]\nname = "a"\ntarget = "openvino"\nlayers = ["gemm"]',
        '[[artifact]]\nname = "a"\ntarget = "tensorrt"\n[artifact.tensorrt]\noptimization_level = 6',
        "[bench]\nbatch_size = 0",
    ],
)
def test_an_editor_finds_what_the_reader_refuses(wrong: str) -> None:
    right: dict[str, Any] = {
        "version": 1, "name": "net", "model": {"source": "m.py:build"},
        "artifact": [{"name": "cpu", "target": "onnxruntime"}],
    }  # fmt: skip
    assert VALIDATOR.is_valid(right)
    assert not VALIDATOR.is_valid({**right, **tomllib.loads(wrong)})
    assert not VALIDATOR.is_valid({key: value for key, value in right.items() if key != "artifact"})
