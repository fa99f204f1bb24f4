"""What a recipe names: models, data, code, files and places, marked in the spec and walked here alone.

`trust` asks of each whether it would run or be written to, `portable` spells it anew and finds its files. An
option without a mark (`option(..., names=...)`) holds words: a shape, a precision, a name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..spec.option import Named, Option, fields_of
from ..spec.recipes import RecipeFile
from ..spec.tensorrt import AUTO, OFF
from ..spec.words import is_own_metric
from .recipe import Recipe


@dataclass(frozen=True)
class Name:
    """What one key names, as the recipe spells it; without `NAME=` of a model that has a name there."""

    key: str
    kind: Named
    text: str


def names_of(recipe: Recipe) -> list[Name]:
    """Return all that a recipe names."""
    names: list[Name] = []

    def note(name: Name) -> str:
        names.append(name)
        return name.text

    map_names(recipe, note)
    return names


def map_names(recipe: Recipe, spell: Callable[[Name], str]) -> Recipe:
    """Return the recipe with everything that it names spelled anew."""
    mapped: Recipe = _mapped(recipe, RecipeFile, "", spell)
    return mapped


def _mapped(spec: Any, kind: type, key: str, spell: Callable[[Name], str]) -> Any:
    """A table of the recipe; `key` is its path, with the number of the artifact."""
    changed: dict[str, Any] = {}
    for option in fields_of(kind):
        value, path = getattr(spec, option.name), f"{key}{option.name}"
        values = value if isinstance(value, tuple) else (value,)
        if option.table is not None and value is not None:
            paths = (f"{path}[{at}]." if path == "artifact" else f"{path}." for at in range(len(values)))
            tables = zip(values, paths, strict=True)
            values = tuple(_mapped(table, option.table, path, spell) for table, path in tables)
        elif option.spelling.names:
            values = tuple(_spelled(option, path, text, spell) for text in values)
        changed[option.name] = values if isinstance(value, tuple) else values[0]
    before = {name: getattr(spec, name) for name in changed}
    return spec if changed == before else replace(spec, **changed)


def _spelled(option: Option, key: str, text: str, spell: Callable[[Name], str]) -> str:
    """A text spelled anew; words that name nothing stay."""
    named, head, named_text = option.spelling.names, "", text
    assert named is not None, "the caller looks first"
    if named == "model" and option.repeated:  # NAME=MODEL
        head, equals, named_text = text.partition("=")
        head += equals
    is_word = (named == "cache" and text in (AUTO, OFF)) or (named == "metric" and not is_own_metric(text))
    if is_word or not named_text:
        return text
    return head + spell(Name(key, "model" if named == "metric" else named, named_text))
