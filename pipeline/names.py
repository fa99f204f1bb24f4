"""What a recipe names: models, data, code, files and places, marked once by their keys and walked here alone.

`trust` asks of each whether it would run or be written to, `portable` spells it anew and finds its files. A
key that holds a text and is not here holds words: a shape, a precision, a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..spec.option import fields_of
from ..spec.recipes import RecipeFile
from ..spec.tensorrt import AUTO, OFF
from ..spec.words import is_own_metric
from .recipe import Recipe

Kind = Literal[
    "cache", "data", "file", "interpreter", "library", "model", "output", "preprocessing", "ranges", "weights"
]
KINDS: Mapping[str, Kind] = {
    "model.source": "model",
    "model.weights": "weights",
    "model.preprocessing": "preprocessing",
    "model.depends": "file",
    "model.python": "interpreter",
    "data.calibration": "data",
    "data.evaluation": "data",
    "data.depends": "file",
    "calibrate.ranges": "ranges",
    "artifact.tensorrt.plugins": "library",
    "artifact.tensorrt.timing_cache": "cache",
    "bench.metric": "model",
    "bench.models": "model",
    "bench.python": "interpreter",
    "sweep.models": "model",
    "sweep.model.source": "model",
    "sweep.model.weights": "weights",
    "sweep.model.preprocessing": "preprocessing",
    "sweep.model.calibration": "data",
    "sweep.model.evaluation": "data",
    "output": "output",
}
"""Key of a recipe to what it names; a metric that is a function is spelled as a model is."""


@dataclass(frozen=True)
class Name:
    """What one key names, as the recipe spells it; without `NAME=` of a model that has a name there."""

    key: str
    kind: Kind
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
        elif named := KINDS.get(re.sub(r"\[\d+\]", "", path)):
            values = tuple(_spelled(Name(path, named, text), spell) for text in values)
        changed[option.name] = values if isinstance(value, tuple) else values[0]
    before = {name: getattr(spec, name) for name in changed}
    return spec if changed == before else replace(spec, **changed)


def _spelled(name: Name, spell: Callable[[Name], str]) -> str:
    """The text of a name spelled anew; words that name nothing stay."""
    text, head = name.text, ""
    if name.key in ("bench.models", "sweep.models"):
        head, equals, text = text.partition("=")
        head += equals
    is_word = (name.kind == "cache" and text in (AUTO, OFF)) or (
        name.key == "bench.metric" and not is_own_metric(text)
    )
    return name.text if is_word or not text else head + spell(replace(name, text=text))
