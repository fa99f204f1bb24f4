"""A recipe as the text that would be read as the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..spec.option import fields_of
from ..spec.recipes import RecipeFile
from .propose.recipe_text import toml
from .recipe import Recipe


def recipe_text(recipe: Recipe) -> str:
    """Return the TOML of a recipe; what has its default is left out."""
    return "\n".join(_lines(recipe)) + "\n"


def _lines(recipe: Recipe) -> Iterator[str]:
    options = fields_of(RecipeFile)
    yield from _values(recipe, RecipeFile)
    for one in options:
        value = getattr(recipe, one.name)
        if one.table is None or value is None:
            continue
        for table in value if one.repeated else (value,):
            lines = [*_values(table, one.table)]
            if lines or one.optional or one.repeated:
                yield from ("", f"[[{one.name}]]" if one.repeated else f"[{one.name}]", *lines)
            yield from _tables(table, one.table, one.name)


def _tables(values: Any, kind: type, name: str) -> Iterator[str]:
    """The tables in a table."""
    for one in fields_of(kind):
        if one.table is not None and (lines := [*_values(getattr(values, one.name), one.table)]):
            yield from ("", f"[{name}.{one.name}]", *lines)


def _values(values: Any, kind: type) -> Iterator[str]:
    for one in fields_of(kind):
        value = getattr(values, one.name)
        if one.table is None and value is not None and (one.required or value != one.default):
            yield f"{one.name} = {toml(value)}"
