"""The JSON Schema of recipes accepts those of the examples and those that `init` writes, and no wrong key."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from qcompile.pipeline.propose import init

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(ROOT.glob("examples/*/*.toml"))


@pytest.fixture(scope="module")
def validator() -> Any:
    """Of the installed schema, which is what `#:schema` of a recipe names."""
    schema = json.loads((ROOT / "docs/recipe.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_it_accepts_the_recipes_of_the_examples(path: Path, validator: Any) -> None:
    validator.validate(tomllib.loads(path.read_text(encoding="utf-8")))


def test_it_accepts_what_init_writes_and_the_recipe_names_it(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path, validator: Any
) -> None:
    data = samples("residual", 16)
    targets = ["onnxruntime", "openvino", "tensorrt-rtx", "tensorrt", "torchscript"]
    path = tmp_path / "recipe.toml"
    text = init(str(tiny_file("residual")), path, data=str(data), targets=targets, max_drop=0.5).text
    validator.validate(tomllib.loads(text))
    first = text.splitlines()[0]
    assert first == f"#:schema {(ROOT / 'docs/recipe.schema.json').as_uri()}"


@pytest.mark.parametrize(
    "wrong",
    [
        "[model]\nsource = 1\n[[artifact]]\nname = 'a'\ntarget = 'onnxruntime'\n",
        "[model]\nsource = 'm.onnx'\n[[artifact]]\nname = 'a'\ntarget = 'cpu'\n",
        "[model]\nsource = 'm.onnx'\nsauce = 1\n[[artifact]]\nname = 'a'\ntarget = 'onnxruntime'\n",
        "[model]\nsource = 'm.onnx'\n",
    ],
)
def test_it_refuses_what_the_recipe_refuses(wrong: str, validator: Any) -> None:
    values = tomllib.loads(f"version = 1\nname = 'm'\n{wrong}")
    assert list(validator.iter_errors(values))
