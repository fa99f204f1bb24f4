"""Read and validate recipes: TOML files that define a model's artifacts and their measurement.

`spec/` declares the keys. Errors name the path of a wrong key before any work starts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ...core.files import read_bytes
from ...engines.gpu import parse_devices
from ...errors import InvalidOption, RecipeError
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

_MAX_BYTES = 1 << 20
_MAX_DOTS = 5000


class Recipe(RecipeFile):
    """A whole recipe, with the file that it was read from or will be written to."""

    path: Path = Path("recipe.toml")

    @property
    def folder(self) -> Path:
        """The base folder of the recipe's relative paths."""
        return self.path.resolve().parent

    @property
    def budget(self) -> Budget:
        """The limits that an artifact must meet to be recommended."""
        return shared(Budget, self.bench) if self.bench else Budget()

    @property
    def data_depends(self) -> tuple[Path, ...]:
        """Additional files that the data's function reads."""
        return tuple(self.folder / name for name in self.data.depends)


def read_recipe(path: str | Path) -> Recipe:
    """Read and validate a recipe.

    Args:
        path: TOML file.

    Raises:
        MissingFile: If the file does not exist.
        RecipeError: If a key is wrong; names the key, its value and the requirement.
    """
    path = Path(path)
    return parse_recipe(read_bytes(path, what="recipe"), path)


def parse_recipe(content: bytes, path: Path) -> Recipe:
    """Return the recipe in `content`; errors name `path`."""
    if len(content) > _MAX_BYTES:
        raise RecipeError(f"{path}: has {len(content)} bytes; at most {_MAX_BYTES} are required", file=path)
    try:
        values = parse_toml(content)
    except ValueError as error:
        raise RecipeError(f"{path}: not TOML: {error}", file=path) from error
    return make_recipe(values, path)


def parse_toml(content: bytes) -> dict[str, Any]:
    """Return the values of a TOML text; raise ValueError for wrong TOML, UTF-8 or dates, or deep nesting."""
    try:
        if any(line.count(b".") > _MAX_DOTS for line in content.splitlines()):  # tomllib would take minutes
            raise RecursionError
        values: dict[str, Any] = tomllib.loads(content.decode("utf-8"))
        return values
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def make_recipe(values: dict[str, Any], path: Path) -> Recipe:
    """Return the validated recipe of these values; `path` is its file, which may not exist yet."""
    try:
        version = values.get("version")
        if version is not None and version != RECIPE_VERSION:  # first: newer keys would be errors as well
            raise Refused("version", f"{RECIPE_VERSION} is required", value=version)
        recipe = Recipe(**vars(decode(RecipeFile, values)), path=path)
        try:
            parse_devices(recipe.bench.devices if recipe.bench else ())
        except InvalidOption as error:
            problem = error.message.removeprefix("`devices` ")
            raise Refused("bench.devices", f"holds {problem}", hint=error.hint) from error
        if recipe.sweep is None:  # a sweep's recipes are checked one by one
            check_batches(recipe)
        check_names(recipe)
        if recipe.sweep is None:
            require_scales(recipe)
        return recipe
    except Refused as error:
        raise wrong_key(path, error.key, error.sentence, error.hint) from error


def wrong_key(path: Path, key: str, problem: str, hint: str) -> RecipeError:
    """Return the error for a wrong key of a recipe."""
    return RecipeError(f"{path}: key '{key}' {problem}", hint=hint, file=path, key=key)


def recipe_source(recipe: Recipe) -> Source:
    """Return the source model of a recipe."""
    section = recipe.model
    return parse_source(
        section.source, base=recipe.folder, weights=section.weights, download=section.download
    )


def require_scales(recipe: Recipe) -> None:
    """Raise `Refused` if static INT8 or FP8 has no scales: neither ranges nor Q/DQ in the ONNX file."""
    static = [artifact.name for artifact in recipe.artifact if artifact.needs_ranges]
    if not static or recipe.has_ranges:
        return
    from ...model.graph.graph import graph_precision
    from ...model.graph.onnx_file import read_weightless

    model = recipe.folder / recipe.model.source
    if model.is_file() and graph_precision(read_weightless(model).model) not in ("int8", "fp8"):
        problem = f"is missing; {static[0]!r} is static INT8, and {model.name} holds no Q/DQ"
        raise Refused("data.calibration", problem)
