"""A recipe as text that means the same where its files lie in another folder: no path in it is absolute.

Its file is taken as it is where that is so already; a recipe that was changed since it was read, or that
names absolute paths, is written anew. No stage's key holds the spelling of a path, so keys stay the same.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ..data.kinds import data_files
from ..data.spelling import FILE_KEYS
from ..errors import QCompileError
from ..files import manifest_path, require_file, side_files
from ..model.load import preprocessing_files
from ..model.source import NAMED, Source, parse_source, source_files
from ..progress import silent
from ..spec.option import Named, fields_of
from ..spec.recipes import RecipeFile
from .propose.init import toml
from .recipe import Recipe, parse_recipe, recipe_source
from .trust import Name, map_names, names_of

Moved = Callable[[str], str]
"""Gives a path as it is spelled in the recipe another spelling."""


def portable_text(recipe: Recipe) -> bytes:
    """Return the text of a recipe without absolute paths; it has the recipe's name in the recipe's folder.

    Interpreters (`model.python`, `bench.python`) and `output` stay as they are.
    """
    moved = portable(recipe)
    with contextlib.suppress(OSError, QCompileError):
        content = recipe.path.read_bytes()
        if parse_recipe(content, recipe.path, told=silent) == moved:
            return content
    return recipe_text(moved).encode()


def portable(recipe: Recipe) -> Recipe:
    """Return the recipe with every absolute path relative to its folder."""

    def path(text: str) -> str:
        return relative(text, recipe.folder)

    def model(text: str) -> str:
        return _model(text, path)

    spelled: Mapping[Named, Callable[[str], str]] = {
        "model": model,
        "preprocessing": model,
        "data": lambda text: _data(text, path),
        "output": str,
        "interpreter": str,
    }
    return map_names(recipe, lambda name: spelled.get(name.kind, path)(name.text))


def relative(text: str, folder: Path) -> str:
    """Return an absolute path, or one that begins at the home, as seen from a folder; others as they are."""
    if not text.startswith(("/", "~")):
        return text
    found = os.path.relpath(settled(Path(text).expanduser()), folder)
    return found if found.startswith("..") else f"./{found}"


def _model(text: str, path: Moved) -> str:
    """A MODEL: its path, and the file of `weights=`."""
    head, mark, query = text.partition("?")
    kind, colon, name = head.partition(":")
    head = f"{kind}:{path(name)}" if colon and kind in NAMED else path(head)
    parts = [_weights(part, path) for part in query.split("&")]
    return f"{head}{mark}{'&'.join(parts)}"


def _weights(part: str, path: Moved) -> str:
    key, equals, value = part.partition("=")
    if key != "weights":
        return part
    moved = path(unquote(value, errors="surrogateescape"))
    return part if moved == unquote(value, errors="surrogateescape") else f"{key}{equals}{quote(moved)}"


def _data(text: str, path: Moved) -> str:
    """DATA: its path, and those of its keys. What is escaped in it stays escaped."""
    head, mark, query = text.partition("?")
    match = re.fullmatch(r"(\w+:)(.*)", head, re.DOTALL)
    head = f"{match[1]}{path(match[2])}" if match else path(head)
    parts = []
    for part in query.split("&"):
        key, equals, value = part.partition("=")
        if key in FILE_KEYS:
            value = path(value)
        elif key == "preprocessing":
            value = _model(value, path)
        parts.append(f"{key}{equals}{value}")
    return f"{head}{mark}{'&'.join(parts)}"


def recipe_files(recipe: Recipe) -> Iterator[Path]:
    """Yield the absolute paths of the files that a recipe's stages read; some come twice.

    Links on the way are kept as they are spelled, but for one in front of a `..`. What is not found: a file
    that a function opens and that does not lie beside it (name it with `depends`), an installed package, a
    model by name (`timm:`, `hf:NAME`: of each machine's own cache), and interpreters.
    """
    yield settled(recipe.path.resolve())
    for name in names_of(recipe):
        yield from map(settled, _files_of(name, recipe))


def settled(path: Path) -> Path:
    """Return an absolute path without `..`; links in front of one are resolved, as the system does."""
    path = path.absolute()
    parts = path.parts
    if ".." not in parts:
        return path
    end = len(parts) - parts[::-1].index("..")
    return _resolved(parts[:end]).joinpath(*parts[end:])


@functools.lru_cache(maxsize=1024)
def _resolved(parts: tuple[str, ...]) -> Path:
    return Path(*parts).resolve()


def _files_of(name: Name, recipe: Recipe) -> Iterator[Path]:
    """The files of one name; those of `model.weights` are the model's."""
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
    """Yield the files of a MODEL: those that its digest is of, and those that must lie beside it."""
    if source.kind == "module":
        return  # of an installed package: each machine has its own
    yield from source_files(source)
    if source.kind == "file":
        yield source.file
        for marker in sorted(source.file.parent.glob("*/__init__.py")):  # packages that it may import
            if not marker.parent.name.startswith("."):
                yield from sorted(marker.parent.rglob("*.py"))
    elif source.kind == "onnx":
        yield from _with_companions(source.file)
        yield from _external(source.file)
    elif source.kind == "hf" and source.path:
        yield from (path for path in source.path.iterdir() if path.is_file() and path.name[0] != ".")
    for path in source_files(source):
        if manifest_path(path).is_file():
            yield from _with_companions(path)


def _with_companions(path: Path) -> Iterator[Path]:
    for one in (path, *side_files(path), manifest_path(path)):
        if one == path or one.is_file():
            yield one


def _external(path: Path) -> Iterator[Path]:
    """The external data of an ONNX file, as it lies beside the spelled path."""
    from ..artifact import accepting
    from ..model.onnx_file import external_files
    from ..model.weightless import read_weightless

    with accepting(path):
        found = external_files(path, read_weightless(path).model)
    for one in found:
        beside = path.parent / one.relative_to(path.resolve().parent)
        if beside.is_file():
            yield beside


def recipe_text(recipe: Recipe) -> str:
    """Return the TOML of a recipe; what has its default is left out."""
    return "\n".join([*_values(recipe, RecipeFile), *_tables(recipe, RecipeFile, "")]) + "\n"


def _tables(values: Any, kind: type, within: str) -> Iterator[str]:
    for one in fields_of(kind):
        value = getattr(values, one.name)
        if one.table is None or value is None:
            continue
        for table in value if one.repeated else (value,):
            name, lines = f"{within}{one.name}", [*_values(table, one.table)]
            if lines or (not within and (one.optional or one.repeated)):
                yield from ("", f"[[{name}]]" if one.repeated else f"[{name}]", *lines)
            yield from _tables(table, one.table, f"{name}.")


def _values(values: Any, kind: type) -> Iterator[str]:
    for one in fields_of(kind):
        value = getattr(values, one.name)
        if one.table is None and value is not None and (one.required or value != one.default):
            yield f"{one.name} = {toml(value)}"
