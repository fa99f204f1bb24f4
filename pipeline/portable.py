"""A recipe as text that means the same where its files lie in another folder: no path in it is absolute.

Its file is taken as it is where that is so already; a recipe that was changed since it was read, or that
names absolute paths, is written anew. No stage's key holds the spelling of a path, so keys stay the same.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ..data.spelling import FILE_KEYS
from ..errors import QCompileError
from ..model.source import NAMED
from ..progress import silent
from ..spec.tensorrt import AUTO, OFF
from ..spec.words import is_own_metric
from .recipe import Recipe, parse_recipe
from .recipe_files import settled
from .recipe_text import recipe_text

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

    bench = recipe.bench
    if bench is not None:
        pairs = (text.partition("=") for text in bench.models)
        bench = replace(
            bench,
            metric=model(bench.metric) if is_own_metric(bench.metric) else bench.metric,
            models=tuple(f"{name}{equals}{model(text)}" for name, equals, text in pairs),
        )
    section = recipe.model
    return replace(
        recipe,
        model=replace(
            section,
            source=model(section.source),
            weights=path(section.weights),
            preprocessing=model(section.preprocessing),
            depends=tuple(map(path, section.depends)),
        ),
        data=replace(
            recipe.data,
            calibration=_data(recipe.data.calibration, path),
            evaluation=_data(recipe.data.evaluation, path),
            depends=tuple(map(path, recipe.data.depends)),
        ),
        calibrate=replace(recipe.calibrate, ranges=path(recipe.calibrate.ranges)),
        artifact=tuple(_artifact(one, path) for one in recipe.artifact),
        bench=bench,
    )


def relative(text: str, folder: Path) -> str:
    """Return an absolute path, or one that begins at the home, as seen from a folder; others as they are."""
    if not text.startswith(("/", "~")):
        return text
    found = os.path.relpath(settled(Path(text).expanduser()), folder)
    return found if found.startswith("..") else f"./{found}"


def _artifact(one: Any, path: Moved) -> Any:
    options = one.tensorrt
    cache = options.timing_cache
    moved = replace(
        options,
        plugins=tuple(map(path, options.plugins)),
        timing_cache=cache if cache in (AUTO, OFF) else path(cache),
    )
    return replace(one, tensorrt=moved)


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
