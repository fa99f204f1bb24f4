"""What a recipe names: models, data, code, files and places, marked in the spec and walked here alone.

`portable` spells each anew and finds its files. An option without a mark (`option(..., names=...)`) holds
words: a shape, a precision, a name. What runs as code, or is written to, lies in the recipe's folder,
or is trusted.

Who takes a recipe from elsewhere takes its folder: the code in it is part of the recipe. Anything else on the
machine was not meant by the one who runs it, so a recipe that names it is refused unless the user says
otherwise with `trust`. A recipe cannot say so itself.

A function of an installed package (`http.server:test`) lies outside as well. Links are resolved first.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..data.spelling import FUNCTION, parse_spelling
from ..errors import QCompileError, RecipeError
from ..model.source import NAMED, parse_source
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


_RUNS_CODE_IF_TRUSTED = ("pt2", "keras", "savedmodel")
_CODE, _INTERPRETER, _LIBRARY, _WRITES = "code", "an interpreter", "a native library", "a place to write to"


@dataclass(frozen=True)
class NamedPlace:
    """What a key names, and where it lies; the path is None for a function of a module that lies outside."""

    key: str
    what: str
    text: str
    path: Path | None


def trusted(recipe: Recipe, *, trust: bool, output: Path | None, typed: Collection[str] = ()) -> Recipe:
    """Return the recipe, with all that its user grants it.

    `trust` grants code outside its folder, and `.pt2` and Keras files with code; `output` is the folder
    that the user gave in place of the recipe's; `typed` are spellings that he typed himself.
    """
    if trust:
        return replace(recipe, model=replace(recipe.model, trust=True))
    for one in named(recipe, output=output):
        if not _inside(one.path, recipe.folder) and not _is_typed(one, typed):
            where = f": {one.path}" if one.path else ", in an installed package"
            required = "a folder within it, or `output`," if one.key == "output" else "a file within it"
            raise RecipeError(
                f"{recipe.path}: key '{one.key}' names {one.what} outside of the recipe's folder "
                f"({one.text}{where}); {required} is required",
                hint="read what it names; if you trust it, give `trust`",
                file=recipe.path,
                key=one.key,
            )
    return recipe


def named(recipe: Recipe, *, output: Path | None) -> Iterator[NamedPlace]:
    """Yield what a recipe names that would run, or be written to, unless the user gave the output."""
    folder = recipe.folder
    for name in names_of(recipe):
        key, text = name.key, name.text
        if name.kind == "model":
            yield from _model(key, text, recipe)
        elif name.kind == "data" and parse_spelling(text).kind == FUNCTION:
            yield from _model(key, parse_spelling(text).path, recipe)
        elif name.kind == "interpreter":
            python = _located(text, folder).partition("=")[2]
            yield NamedPlace(key, _INTERPRETER, text, Path(shutil.which(python) or python).absolute())
        elif name.kind == "library":
            yield NamedPlace(key, _LIBRARY, text, folder / text)
        elif name.kind == "cache" or (name.kind == "output" and output is None):
            yield NamedPlace(key, _WRITES, text, folder / text)


def needs_trust(recipe: Recipe) -> bool:
    """Return whether a run of the recipe must be told to trust it."""
    return any(not _inside(one.path, recipe.folder) for one in named(recipe, output=None))


def interpreters(texts: Collection[str], folder: Path) -> tuple[str, ...]:
    """Return `ENGINE=INTERPRETER` with a path, not a bare name, as the recipe's folder has it."""
    return tuple(_located(text, folder) for text in texts)


def _located(text: str, folder: Path) -> str:
    name, equals, python = text.partition("=")
    return f"{name}={folder / Path(python).expanduser()}" if equals and "/" in python else text


def _model(key: str, text: str, recipe: Recipe) -> Iterator[NamedPlace]:
    if text.partition(":")[0] in NAMED and ":" in text:
        return  # a package's own; a folder of Hugging Face's is read without its code
    try:
        source = parse_source(text, base=recipe.folder)
    except QCompileError:  # the run says what is wrong with it; what is not there does not run
        return
    if source.kind == "file":
        yield NamedPlace(key, _CODE, text, source.file)
    elif source.kind == "module":
        yield NamedPlace(key, _CODE, text, _module_path(source.module, recipe.folder))
    elif source.kind in _RUNS_CODE_IF_TRUSTED and recipe.model.trust:
        yield NamedPlace(key, "a file that may hold code", text, source.file)


def _module_path(module: str, folder: Path) -> Path | None:
    """Where the top package of a module lies, which is not imported: inside the folder, or None."""
    spec = None
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(module.split(".")[0])
    if spec is None:
        return None
    origin = [spec.origin] if spec.has_location and spec.origin else []
    paths = [Path(place) for place in (*(spec.submodule_search_locations or ()), *origin)]
    # A built-in or frozen module has no place; its origin is a word.
    return paths[0] if paths and all(_inside(path, folder) for path in paths) else None


def _inside(path: Path | None, folder: Path) -> bool:
    return path is not None and path.resolve().is_relative_to(folder.resolve())


def _is_typed(one: NamedPlace, typed: Collection[str]) -> bool:
    """Whether the user typed the very code himself, with whatever path."""
    if one.path is None:
        return one.text in typed
    files = {text.partition("?")[0].rpartition(":")[0] for text in typed}
    return one.what == _CODE and any(file and Path(file).resolve() == one.path.resolve() for file in files)
