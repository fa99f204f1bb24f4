"""What is wrong in a recipe is named with its key before any work: `refusals.toml` has the recipes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qcompile.errors import RecipeError
from qcompile.pipeline.recipe import parse_recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
    assert not old or recipe.count(old) == 1, f"{old!r} must be in the recipe once"
    text = recipe.replace(old, new) if old else recipe + new
    with pytest.raises(RecipeError) as refused:
        parse_recipe(text.encode(), Path("recipe.toml"))
    assert refused.value.data["key"] == key
    assert refused.value.data["file"] == Path("recipe.toml")
    assert refused.value.message.startswith(f"recipe.toml: key '{key}' ")
    assert says in refused.value.message
    assert hint in refused.value.hint
