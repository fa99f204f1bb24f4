"""Write recipes as TOML without default values, and with relative paths for other machines."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ...core.plain_text import toml_table
from ...data.spelling import FILE_KEYS
from ...errors import QCompileError
from ...spec.option import Named, fields_of
from ...spec.recipes import RecipeFile
from .names import map_names, settled
from .recipe import Recipe, parse_recipe


def recipe_text(recipe: Recipe) -> str:
    """Return the TOML text of a recipe, without default values."""
    lines = [*toml_table("", _set_options(recipe, RecipeFile)), *_tables(recipe, RecipeFile, "")]
    return "\n".join(lines[1:]) + "\n"


def _tables(values: Any, kind: type, within: str) -> Iterator[str]:
    for option in fields_of(kind):
        value = getattr(values, option.name)
        if option.table is None or value is None:
            continue
        for table in value if option.repeated else (value,):
            name, lines = f"{within}{option.name}", [*_set_options(table, option.table)]
            if lines or (not within and (option.optional or option.repeated)):
                yield from toml_table(f"[[{name}]]" if option.repeated else f"[{name}]", lines)
            yield from _tables(table, option.table, f"{name}.")


def _set_options(values: Any, kind: type) -> Iterator[tuple[str, object, str]]:
    for option in fields_of(kind):
        value = getattr(values, option.name)
        if option.table is None and value is not None and (option.required or value != option.default):
            yield option.name, value, ""


def portable_text(recipe: Recipe) -> bytes:
    """Return the recipe's text with relative paths; the file's content if its paths are relative already.

    Interpreters (`model.python`, `bench.python`) and `output` are unchanged.
    """
    portable_recipe = portable(recipe)
    with contextlib.suppress(OSError, QCompileError):
        content = recipe.path.read_bytes()
        if parse_recipe(content, recipe.path) == portable_recipe:
            return content
    return recipe_text(portable_recipe).encode()


def portable(recipe: Recipe) -> Recipe:
    """Return the recipe with absolute paths made relative to its folder."""
    return map_names(recipe, lambda name: _relative_name(name.kind, name.text, recipe.folder))


def relative(text: str, folder: Path) -> str:
    """Return an absolute path, or a path from the home folder, relative to `folder`; others unchanged."""
    if not text.startswith(("/", "~")):
        return text
    path = os.path.relpath(settled(Path(text).expanduser()), folder)
    return path if path.startswith("..") else f"./{path}"


def _relative_name(kind: Named, text: str, folder: Path) -> str:
    """Return a name relative to `folder`: a path, or MODEL or DATA with the paths in its options."""
    if kind in ("output", "interpreter"):
        return text
    if kind not in ("model", "preprocessing", "data"):
        return relative(text, folder)
    head, mark, query = text.partition("?")
    word = "".join(re.findall(r"\A\w+:", head))  # "hf:", "images:"
    parts = []
    for part in query.split("&"):  # escapes in DATA are preserved
        key, equals, value = part.partition("=")
        if key in FILE_KEYS:
            value = relative(value, folder)
        elif key == "preprocessing":
            value = _relative_name("preprocessing", value, folder)
        elif key == "weights":
            weights = unquote(value, errors="surrogateescape")
            relative_weights = relative(weights, folder)
            value = value if relative_weights == weights else quote(relative_weights)
        parts.append(f"{key}{equals}{value}")
    return f"{word}{relative(head.removeprefix(word), folder)}{mark}{'&'.join(parts)}"
