"""Limit the code that a recipe runs and the folders that it writes to: its folder, unless the user trusts it.

Code in the recipe's folder is part of the recipe. Code, interpreters and libraries elsewhere run only if the
user grants `trust` for the run; a recipe cannot grant it. A function of an installed package
(`http.server:test`) is outside the folder. Links are resolved first.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from ...data.spelling import FUNCTION, parse_spelling
from ...errors import QCompileError
from ...model.sources.source import NAMED, TRUSTED_KINDS, parse_source
from .names import Name, names_of
from .recipe import Recipe, wrong_key

_RUNS_CODE_IF_TRUSTED = (*TRUSTED_KINDS, "keras", "savedmodel")
_CODE = "code"


NamedPlace = tuple[Name, str, Path | None]
"""A name, its description, and its path; None for a function of a module outside the folder."""


def check_trust(
    recipe: Recipe,
    *,
    trust: bool,
    output: Path | None,
    typed: Collection[str] = (),
    granted: Collection[str] = (),
) -> Recipe:
    """Return the recipe with the granted trust; raise RecipeError for untrusted names outside its folder.

    `trust` allows code outside the folder, and `.pt2`, TorchScript and TensorFlow files. `output` is the
    user's folder in place of the recipe's. Arguments that the user typed (`typed`), and places that the user
    allowed when `auto` wrote the recipe (`granted`, as `places_outside` returns them), are allowed.
    """
    if trust:
        return replace(recipe, model=replace(recipe.model, trust=True))
    files = [text.partition("?")[0].rpartition(":")[0] for text in typed]
    typed_files = {Path(file).resolve() for file in files if file}
    for name, what, path in _places(recipe, output=output):
        is_typed = name.text in typed if path is None else what == _CODE and path.resolve() in typed_files
        if not is_typed and _place_text(name, path) not in granted and not _is_inside(path, recipe.folder):
            where = f": {path}" if path else ", in an installed package"
            required = "a folder within it, or `output`," if name.key == "output" else "a file within it"
            problem = f"names {what} outside of the recipe's folder ({name.text}{where})"
            hint = "read what it names; if you trust it, give `trust`"
            raise wrong_key(recipe.path, name.key, f"{problem}; {required} is required", hint)
    return recipe


def _places(recipe: Recipe, *, output: Path | None) -> Iterator[NamedPlace]:
    """Yield the code that a recipe runs, and its places to write to except an `output` that the user gave."""
    for name in names_of(recipe):
        path = recipe.folder / name.text
        if name.kind == "model":
            yield from _model_code(name, recipe)
        elif name.kind == "data" and parse_spelling(name.text).kind == FUNCTION:
            yield from _model_code(replace(name, text=parse_spelling(name.text).path), recipe)
        elif name.kind == "interpreter":
            python = _with_path(name.text, recipe.folder).partition("=")[2]
            yield name, "an interpreter", Path(shutil.which(python) or python).absolute()
        elif name.kind == "library":
            yield name, "a native library", path
        elif name.kind == "cache" or (name.kind == "output" and output is None):
            yield name, "a place to write to", path


def places_outside(recipe: Recipe) -> list[str]:
    """Return the paths and modules outside the recipe's folder for which a run requires `trust`."""
    places = [(name, path) for name, _, path in _places(recipe, output=None)]
    return [_place_text(name, path) for name, path in places if not _is_inside(path, recipe.folder)]


def _place_text(name: Name, path: Path | None) -> str:
    return str(path.resolve()) if path else name.text


def interpreters(texts: Collection[str], folder: Path) -> tuple[str, ...]:
    """Return `ENGINE=INTERPRETER` with paths relative to `folder` made absolute; bare names are unchanged."""
    return tuple(_with_path(text, folder) for text in texts)


def _with_path(text: str, folder: Path) -> str:
    name, equals, python = text.partition("=")
    return f"{name}={folder / Path(python).expanduser()}" if equals and "/" in python else text


def _model_code(name: Name, recipe: Recipe) -> Iterator[NamedPlace]:
    if ":" in name.text and name.text.partition(":")[0] in NAMED:
        return  # code of an installed package; a Hugging Face folder is read without its code
    try:
        source = parse_source(name.text, base=recipe.folder)
    except QCompileError:  # nothing runs: the run itself reports this error
        return
    if source.kind == "file":
        yield name, _CODE, source.file
    elif source.kind == "module":
        yield name, _CODE, _module_path(source.module, recipe.folder)
    elif source.kind in _RUNS_CODE_IF_TRUSTED and recipe.model.trust:
        yield name, "a file that may hold code", source.file


def _module_path(module: str, folder: Path) -> Path | None:
    """Return the path of a module's top package, without an import; None if it is outside the folder."""
    spec = None
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(module.split(".")[0])
    if spec is None:
        return None
    # The origin of a built-in or frozen module is a word, not a path.
    origin = [spec.origin] if spec.has_location and spec.origin else []
    paths = [Path(place) for place in (*(spec.submodule_search_locations or ()), *origin)]
    return paths[0] if paths and all(_is_inside(path, folder) for path in paths) else None


def _is_inside(path: Path | None, folder: Path) -> bool:
    return path is not None and path.resolve().is_relative_to(folder.resolve())
