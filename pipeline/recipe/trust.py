"""What a recipe names: models, data, code, files and places, marked in the spec and walked here alone.

`portable` spells each anew, so that no path is absolute; `recipe_files` finds its files, which go along where
stages are carried out elsewhere. An option without a mark (`option(..., names=...)`) holds words: a shape, a
precision, a name. What runs as code, or is written to, lies in the recipe's folder, or is trusted.

Who takes a recipe from elsewhere takes its folder: the code in it is part of the recipe. Anything else on the
machine was not meant by the one who runs it, so a recipe that names it is refused unless the user says
otherwise with `trust`. A recipe cannot say so itself.

A function of an installed package (`http.server:test`) lies outside as well. Links are resolved first.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ...core.files import manifest_path, require_file, side_files
from ...core.plain_text import toml_table
from ...data.kinds import data_files
from ...data.spelling import FILE_KEYS, FUNCTION, parse_spelling
from ...errors import QCompileError
from ...model.sources.load import preprocessing_files
from ...model.sources.source import NAMED, TRUSTED_KINDS, Source, parse_source, source_files
from ...spec.option import Named, Option, fields_of
from ...spec.recipes import RecipeFile
from ...spec.tensorrt import AUTO, OFF
from ...spec.words import is_own_metric
from .recipe import Recipe, parse_recipe, recipe_source, wrong_key


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
        before, path = getattr(spec, option.name), f"{key}{option.name}"
        values = before if isinstance(before, tuple) else (before,)
        if option.table is not None and before is not None:
            paths = (f"{path}[{at}]." if path == "artifact" else f"{path}." for at in range(len(values)))
            tables = zip(values, paths, strict=True)
            values = tuple(_mapped(table, option.table, path, spell) for table, path in tables)
        elif option.spelling.names:
            values = tuple(_spelled(option, path, text, spell) for text in values)
        after = values if isinstance(before, tuple) else values[0]
        changed |= {} if after == before else {option.name: after}
    return replace(spec, **changed) if changed else spec


def _spelled(option: Option, key: str, text: str, spell: Callable[[Name], str]) -> str:
    """A text spelled anew; words that name nothing stay."""
    kind, head, named_text = option.spelling.names, "", text
    assert kind is not None, "the caller looks first"
    if kind == "model" and option.repeated:  # NAME=MODEL
        head, equals, named_text = text.partition("=")
        head += equals
    is_word = (kind == "cache" and text in (AUTO, OFF)) or (kind == "metric" and not is_own_metric(text))
    if is_word or not named_text:
        return text
    return head + spell(Name(key, "model" if kind == "metric" else kind, named_text))


_RUNS_CODE_IF_TRUSTED = (*TRUSTED_KINDS, "keras", "savedmodel")
_CODE = "code"


Place = tuple[Name, str, Path | None]
"""A name, what it is, and where it lies: nowhere for a function of a module outside of the folder."""


def trusted(recipe: Recipe, *, trust: bool, output: Path | None, typed: Collection[str] = ()) -> Recipe:
    """Return the recipe, with all that its user grants it.

    `trust` grants code outside its folder, and `.pt2`, TorchScript and TensorFlow files; `output` is the
    folder that the user gave in place of the recipe's; `typed` are spellings that he typed himself.
    """
    if trust:
        return replace(recipe, model=replace(recipe.model, trust=True))
    files = [text.partition("?")[0].rpartition(":")[0] for text in typed]
    typed_files = {Path(file).resolve() for file in files if file}
    for name, what, path in _places(recipe, output=output):
        is_typed = name.text in typed if path is None else what == _CODE and path.resolve() in typed_files
        if not is_typed and not _inside(path, recipe.folder):
            where = f": {path}" if path else ", in an installed package"
            required = "a folder within it, or `output`," if name.key == "output" else "a file within it"
            problem = f"names {what} outside of the recipe's folder ({name.text}{where})"
            hint = "read what it names; if you trust it, give `trust`"
            raise wrong_key(recipe.path, name.key, f"{problem}; {required} is required", hint)
    return recipe


def _places(recipe: Recipe, *, output: Path | None) -> Iterator[Place]:
    """What a recipe names that would run, or be written to, unless the user gave the output."""
    for name in names_of(recipe):
        path = recipe.folder / name.text
        if name.kind == "model":
            yield from _model(name, recipe)
        elif name.kind == "data" and parse_spelling(name.text).kind == FUNCTION:
            yield from _model(replace(name, text=parse_spelling(name.text).path), recipe)
        elif name.kind == "interpreter":
            python = _located(name.text, recipe.folder).partition("=")[2]
            yield name, "an interpreter", Path(shutil.which(python) or python).absolute()
        elif name.kind == "library":
            yield name, "a native library", path
        elif name.kind == "cache" or (name.kind == "output" and output is None):
            yield name, "a place to write to", path


def needs_trust(recipe: Recipe) -> bool:
    """Return whether a run of the recipe must be told to trust it."""
    return not all(_inside(path, recipe.folder) for _, _, path in _places(recipe, output=None))


def interpreters(texts: Collection[str], folder: Path) -> tuple[str, ...]:
    """Return `ENGINE=INTERPRETER` with a path, not a bare name, as the recipe's folder has it."""
    return tuple(_located(text, folder) for text in texts)


def _located(text: str, folder: Path) -> str:
    name, equals, python = text.partition("=")
    return f"{name}={folder / Path(python).expanduser()}" if equals and "/" in python else text


def _model(name: Name, recipe: Recipe) -> Iterator[Place]:
    if ":" in name.text and name.text.partition(":")[0] in NAMED:
        return  # a package's own; a folder of Hugging Face's is read without its code
    try:
        source = parse_source(name.text, base=recipe.folder)
    except QCompileError:  # the run says what is wrong with it; what is not there does not run
        return
    if source.kind == "file":
        yield name, _CODE, source.file
    elif source.kind == "module":
        yield name, _CODE, _module_path(source.module, recipe.folder)
    elif source.kind in _RUNS_CODE_IF_TRUSTED and recipe.model.trust:
        yield name, "a file that may hold code", source.file


def _module_path(module: str, folder: Path) -> Path | None:
    """Where the top package of a module lies, which is not imported: inside the folder, or None."""
    spec = None
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(module.split(".")[0])
    if spec is None:
        return None
    # A built-in or frozen module has no place; its origin is a word.
    origin = [spec.origin] if spec.has_location and spec.origin else []
    paths = [Path(place) for place in (*(spec.submodule_search_locations or ()), *origin)]
    return paths[0] if paths and all(_inside(path, folder) for path in paths) else None


def _inside(path: Path | None, folder: Path) -> bool:
    return path is not None and path.resolve().is_relative_to(folder.resolve())


def portable_text(recipe: Recipe) -> bytes:
    """Return the text of a recipe without absolute paths; it has the recipe's name in the recipe's folder.

    Interpreters (`model.python`, `bench.python`) and `output` stay as they are.
    """
    moved = portable(recipe)
    with contextlib.suppress(OSError, QCompileError):
        content = recipe.path.read_bytes()
        if parse_recipe(content, recipe.path) == moved:
            return content
    return recipe_text(moved).encode()


def portable(recipe: Recipe) -> Recipe:
    """Return the recipe with every absolute path relative to its folder."""
    return map_names(recipe, lambda name: _moved(name.kind, name.text, recipe.folder))


def relative(text: str, folder: Path) -> str:
    """Return an absolute path, or one that begins at the home, as seen from a folder; others as they are."""
    if not text.startswith(("/", "~")):
        return text
    path = os.path.relpath(settled(Path(text).expanduser()), folder)
    return path if path.startswith("..") else f"./{path}"


def _moved(kind: Named, text: str, folder: Path) -> str:
    """What a key names, seen from a folder: a path; of MODEL and DATA also the paths of its keys."""
    if kind in ("output", "interpreter"):
        return text
    if kind not in ("model", "preprocessing", "data"):
        return relative(text, folder)
    head, mark, query = text.partition("?")
    word = "".join(re.findall(r"\A\w+:", head))  # "hf:", "images:"
    parts = []
    for part in query.split("&"):  # what is escaped in DATA stays escaped
        key, equals, value = part.partition("=")
        if key in FILE_KEYS:
            value = relative(value, folder)
        elif key == "preprocessing":
            value = _moved("preprocessing", value, folder)
        elif key == "weights":
            weights = unquote(value, errors="surrogateescape")
            moved = relative(weights, folder)
            value = value if moved == weights else quote(moved)
        parts.append(f"{key}{equals}{value}")
    return f"{word}{relative(head.removeprefix(word), folder)}{mark}{'&'.join(parts)}"


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
    yield path
    yield from filter(Path.is_file, (*side_files(path), manifest_path(path)))


def _external(path: Path) -> Iterator[Path]:
    """The external data of an ONNX file, as it lies beside the spelled path."""
    from ...core.artifact import accepting
    from ...model.graph.onnx_file import read_weightless

    with accepting(path):
        files = list(read_weightless(path).beside)
    beside = (path.parent / file.relative_to(path.resolve().parent) for file in files)
    yield from filter(Path.is_file, beside)


def recipe_text(recipe: Recipe) -> str:
    """Return the TOML of a recipe; what has its default is left out."""
    lines = [*toml_table("", _values(recipe, RecipeFile)), *_tables(recipe, RecipeFile, "")]
    return "\n".join(lines[1:]) + "\n"


def _tables(values: Any, kind: type, within: str) -> Iterator[str]:
    for option in fields_of(kind):
        value = getattr(values, option.name)
        if option.table is None or value is None:
            continue
        for table in value if option.repeated else (value,):
            name, lines = f"{within}{option.name}", [*_values(table, option.table)]
            if lines or (not within and (option.optional or option.repeated)):
                yield from toml_table(f"[[{name}]]" if option.repeated else f"[{name}]", lines)
            yield from _tables(table, option.table, f"{name}.")


def _values(values: Any, kind: type) -> Iterator[tuple[str, object, str]]:
    for option in fields_of(kind):
        value = getattr(values, option.name)
        if option.table is None and value is not None and (option.required or value != option.default):
            yield option.name, value, ""
