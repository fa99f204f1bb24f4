"""List and replace the models, data, code, files and folders that a recipe names.

`option(..., names=...)` in the spec marks the options that name them; other options hold words: a shape, a
precision, a name. The files that a recipe names go with it to a cluster.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...core.files import manifest_path, require_file, side_files
from ...data.kinds import data_files
from ...model.sources.load import preprocessing_files
from ...model.sources.source import Source, parse_source, source_files
from ...spec.option import Named, Option, fields_of
from ...spec.recipes import RecipeFile
from ...spec.tensorrt import AUTO, OFF
from ...spec.words import is_user_metric
from .recipe import Recipe, recipe_source


@dataclass(frozen=True)
class Name:
    """A value of a recipe that names a file, model or code; `text` omits the `NAME=` of a named model."""

    key: str
    kind: Named
    text: str


def names_of(recipe: Recipe) -> list[Name]:
    """Return all names in a recipe."""
    names: list[Name] = []

    def note(name: Name) -> str:
        names.append(name)
        return name.text

    map_names(recipe, note)
    return names


def map_names(recipe: Recipe, spell: Callable[[Name], str]) -> Recipe:
    """Return the recipe with each name replaced by the result of `spell`."""
    mapped: Recipe = _map_table(recipe, RecipeFile, "", spell)
    return mapped


def _map_table(spec: Any, kind: type, key: str, spell: Callable[[Name], str]) -> Any:
    """Return a table with replaced names; `key` is its path, including the artifact's index."""
    changes: dict[str, Any] = {}
    for option in fields_of(kind):
        old, path = getattr(spec, option.name), f"{key}{option.name}"
        values = old if isinstance(old, tuple) else (old,)
        if option.table is not None and old is not None:
            paths = (f"{path}[{at}]." if path == "artifact" else f"{path}." for at in range(len(values)))
            tables = zip(values, paths, strict=True)
            values = tuple(_map_table(table, option.table, path, spell) for table, path in tables)
        elif option.spelling.names:
            values = tuple(_map_text(option, path, text, spell) for text in values)
        new = values if isinstance(old, tuple) else values[0]
        changes |= {} if new == old else {option.name: new}
    return replace(spec, **changes) if changes else spec


def _map_text(option: Option, key: str, text: str, spell: Callable[[Name], str]) -> str:
    """Return a text with its name replaced; words such as "auto" are unchanged."""
    kind, head, named_text = option.spelling.names, "", text
    assert kind is not None, "the caller looks first"
    if kind == "model" and option.repeated:  # NAME=MODEL
        head, equals, named_text = text.partition("=")
        head += equals
    is_word = (kind == "cache" and text in (AUTO, OFF)) or (kind == "metric" and not is_user_metric(text))
    if is_word or not named_text:
        return text
    return head + spell(Name(key, "model" if kind == "metric" else kind, named_text))


def recipe_files(recipe: Recipe) -> Iterator[Path]:
    """Yield the absolute paths of the files that a recipe's stages read; some appear twice.

    Links in a path are preserved, except before a `..`. Not included: files that a function opens outside its
    folder (declare them with `depends`), installed packages, interpreters, and models by name (`timm:`,
    `hf:NAME`), which each machine has in its cache.
    """
    yield settled(recipe.path.resolve())
    for name in names_of(recipe):
        yield from map(settled, _name_files(name, recipe))


def settled(path: Path) -> Path:
    """Return an absolute path without `..`; links before a `..` are resolved, as the system does."""
    path = path.absolute()
    parts = path.parts
    if ".." not in parts:
        return path
    end = len(parts) - parts[::-1].index("..")
    return _resolved(parts[:end]).joinpath(*parts[end:])


@functools.lru_cache(maxsize=1024)
def _resolved(parts: tuple[str, ...]) -> Path:
    return Path(*parts).resolve()


def _name_files(name: Name, recipe: Recipe) -> Iterator[Path]:
    """Yield the files of one name; `model.weights` is part of `model.source`."""
    folder, path = recipe.folder, recipe.folder / name.text
    if name.key == "model.source":
        yield from model_files(recipe_source(recipe))
    elif name.kind == "model":
        yield from model_files(parse_source(name.text, base=folder))
    elif name.kind == "preprocessing":
        yield from preprocessing_files(name.text, base=folder)
    elif name.kind == "data":
        yield from data_files(name.text, folder)
    elif name.kind == "ranges":
        yield from _with_companions(path)
    elif name.kind in ("file", "library"):
        yield require_file(path, what="plugin" if name.kind == "library" else "depends: file")
    elif name.kind == "cache" and path.is_file():
        yield path


def model_files(source: Source) -> Iterator[Path]:
    """Yield the files of a MODEL: those of its digest, and those that must be in the same folder."""
    if source.kind == "module":
        return  # each machine has its installed packages
    yield from source_files(source)
    if source.kind == "file":
        yield source.file
        for marker in sorted(source.file.parent.glob("*/__init__.py")):  # packages that it may import
            if not marker.parent.name.startswith("."):
                yield from sorted(marker.parent.rglob("*.py"))
    elif source.kind == "onnx":
        yield from _with_companions(source.file)
        yield from _external_data(source.file)
    elif source.kind == "hf" and source.path:
        yield from (path for path in source.path.iterdir() if path.is_file() and path.name[0] != ".")
    for path in source_files(source):
        if manifest_path(path).is_file():
            yield from _with_companions(path)


def _with_companions(path: Path) -> Iterator[Path]:
    yield path
    yield from filter(Path.is_file, (*side_files(path), manifest_path(path)))


def _external_data(path: Path) -> Iterator[Path]:
    """Yield the external data files of an ONNX file, beside its path before links are resolved."""
    from ...core.artifact import trusting_content
    from ...model.graph.onnx_file import read_weightless

    with trusting_content(path):
        files = list(read_weightless(path).beside)
    beside = (path.parent / file.relative_to(path.resolve().parent) for file in files)
    yield from filter(Path.is_file, beside)
