"""The recipe: a TOML file that says which model becomes which artifacts, and how they are measured.

`spec/` declares its keys. A wrong one is named with its path before any work is done.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ...core.files import read_bytes
from ...engines.gpu import parse_devices
from ...errors import InvalidOption, MissingFile, RecipeError
from ...model.sources.source import Source, parse_source
from ...spec.decode import Refused, decode, shared
from ...spec.measure import Budget
from ...spec.recipes import RECIPE_VERSION, RecipeFile
from .batches import check_batches
from .published import check_names

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST_BYTES = 1 << 20
_MOST_DOTS = 5000


class Recipe(RecipeFile):
    """A whole recipe, and the file that it was read from, or would be written to."""

    path: Path = Path("recipe.toml")

    @property
    def folder(self) -> Path:
        """The folder that the recipe's paths are relative to."""
        return self.path.resolve().parent

    @property
    def budget(self) -> Budget:
        """What an artifact may take to be recommended."""
        return shared(Budget, self.bench) if self.bench else Budget()

    @property
    def data_depends(self) -> tuple[Path, ...]:
        """Files elsewhere that the data's function reads."""
        return tuple(self.folder / name for name in self.data.depends)


def read_recipe(path: str | Path) -> Recipe:
    """Read and validate a recipe.

    Args:
        path: TOML file.

    Raises:
        MissingFile: If it is not there.
        RecipeError: Naming the key, what was found and what is required.
    """
    path = Path(path)
    try:
        content = read_bytes(path, what="recipe")
    except MissingFile as error:
        error.hint = error.hint or "name a recipe, or write one by `qcompile init`"
        raise
    return parse_recipe(content, path)


def parse_recipe(content: bytes, path: Path) -> Recipe:
    """Return the recipe that a file holds."""
    if len(content) > _MOST_BYTES:
        raise RecipeError(f"{path}: has {len(content)} bytes; at most {_MOST_BYTES} are required", file=path)
    try:
        values = parse_toml(content)
    except ValueError as error:
        raise RecipeError(f"{path}: not TOML: {error}", file=path) from error
    return make_recipe(values, path)


def parse_toml(content: bytes) -> dict[str, Any]:
    """Return what TOML holds, or raise ValueError: of TOML, of UTF-8, of a date, of nesting."""
    try:
        if any(line.count(b".") > _MOST_DOTS for line in content.splitlines()):  # tomllib takes minutes
            raise RecursionError
        values: dict[str, Any] = tomllib.loads(content.decode("utf-8"))
        return values
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def make_recipe(values: dict[str, Any], path: Path) -> Recipe:
    """Return the recipe of these values, which `path` holds or will hold."""
    try:
        version = values.get("version")
        if version is not None and version != RECIPE_VERSION:  # what else a newer one holds is not known here
            raise Refused("version", f"{RECIPE_VERSION} is required", value=version)
        recipe = Recipe(**vars(decode(RecipeFile, values)), path=path)
        try:
            parse_devices(recipe.bench.devices if recipe.bench else ())
        except InvalidOption as error:
            problem = error.message.removeprefix("`devices` ")
            raise Refused("bench.devices", f"holds {problem}", hint=error.hint) from error
        if recipe.sweep is None:  # of a matrix, the cells say it
            check_batches(recipe)
        check_names(recipe)
        if recipe.sweep is None:
            require_scales(recipe)
        return recipe
    except Refused as error:
        raise wrong_key(path, error.key, error.sentence, error.hint) from error


def wrong_key(path: Path, key: str, problem: str, hint: str) -> RecipeError:
    """Return the error of a key of a recipe."""
    return RecipeError(f"{path}: key '{key}' {problem}", hint=hint, file=path, key=key)


def recipe_source(recipe: Recipe) -> Source:
    """Return the model of a recipe."""
    section = recipe.model
    return parse_source(
        section.source, base=recipe.folder, weights=section.weights, download=section.download
    )


def require_scales(recipe: Recipe) -> None:
    """Without ranges, an ONNX file must hold the scales of static INT8 and FP8 itself, as Q/DQ."""
    needing = [artifact.name for artifact in recipe.artifact if artifact.needs_ranges]
    if not needing or recipe.has_ranges:
        return
    from ...model.graph.graph import graph_precision
    from ...model.graph.onnx_file import read_weightless

    model = recipe.folder / recipe.model.source
    if model.is_file() and graph_precision(read_weightless(model).model) not in ("int8", "fp8"):
        problem = f"is missing; {needing[0]!r} is static INT8, and {model.name} holds no Q/DQ"
        raise Refused("data.calibration", problem)
