"""The recipe: a TOML file that says which model becomes which artifacts, and how they are measured.

`spec/` declares its keys. A wrong one is named with its path before any work is done.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engines.gpu import parse_devices
from ..errors import InvalidOption, RecipeError
from ..files import read_bytes
from ..spec.artifacts import ArtifactSection
from ..spec.decode import Refused, Told, decode, deprecated, shared
from ..spec.measure import Budget
from ..spec.recipes import RECIPE_VERSION, RecipeFile
from ..spec.words import BASELINE
from .published import check_names
from .recipe_batches import find_contradiction

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST_BYTES = 1 << 20
_MOST_DOTS = 5000

__all__ = ["BASELINE", "ArtifactSection", "Recipe", "read_recipe"]


@dataclass(frozen=True, kw_only=True)
class Recipe(RecipeFile):
    """A whole recipe.

    Attributes:
        path: The file it was read from, or would be written to: its folder is what paths are relative to.
    """

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


def read_recipe(path: str | Path, *, told: Told = deprecated) -> Recipe:
    """Read and validate a recipe.

    Args:
        path: TOML file.
        told: Of every key or value by its former name.

    Raises:
        MissingFile: If it is not there.
        RecipeError: Naming the key, what was found and what is required.
    """
    path = Path(path)
    return parse_recipe(read_bytes(path, what="recipe"), path, told=told)


def parse_recipe(content: bytes, path: Path, *, told: Told = deprecated) -> Recipe:
    """Return the recipe that a file holds.

    Raises:
        RecipeError: As `read_recipe`.
    """
    if len(content) > _MOST_BYTES:
        raise RecipeError(f"{path}: has {len(content)} bytes; at most {_MOST_BYTES} are required", file=path)
    if any(line.count(b".") > _MOST_DOTS for line in content.splitlines()):  # of a key: tomllib takes minutes
        raise RecipeError(f"{path}: not TOML: nested too deeply", file=path)
    try:
        values = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, a date that is none
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RecipeError(f"{path}: not TOML: {problem}", file=path) from error
    return make_recipe(values, path, told=lambda text: told(f"{path}: {text}"))


def make_recipe(values: dict[str, Any], path: Path, *, told: Told = deprecated) -> Recipe:
    """Return the recipe of these values, which `path` holds or will hold.

    Raises:
        RecipeError: As `read_recipe`.
    """
    try:
        recipe = Recipe(**vars(_decoded(values, told)), path=path)
        check_names(recipe)
        if recipe.sweep is None:
            require_scales(recipe)
        return recipe
    except Refused as error:
        message = f"{path}: key '{error.key}' {error.sentence}"
        raise RecipeError(message, hint=error.hint, file=path, key=error.key) from error


def refuse_matrix(recipe: Recipe) -> None:
    """Refuse a recipe that stands for many.

    Raises:
        RecipeError: If it has `[sweep]`.
    """
    if recipe.sweep is not None:
        raise RecipeError(
            f"{recipe.path}: key 'sweep' makes many recipes of one; one without it is required here",
            hint=f"qcompile sweep {recipe.path}",
            file=recipe.path,
            key="sweep",
        )


def require_scales(recipe: Recipe) -> None:
    """Without ranges, an ONNX file must hold the scales of static INT8 and FP8 itself, as Q/DQ.

    Raises:
        Refused: If it does not.
    """
    needing = [one.name for one in recipe.artifact if one.needs_ranges]
    if not needing or recipe.has_ranges:
        return
    from ..model.graph import graph_precision
    from ..model.weightless import read_weightless

    model = recipe.folder / recipe.model.source
    if model.is_file() and graph_precision(read_weightless(model).model) not in ("int8", "fp8"):
        problem = f"is missing; {needing[0]!r} is static INT8, and {model.name} holds no Q/DQ"
        raise Refused("data.calibration", problem)


def _decoded(values: dict[str, Any], told: Told) -> RecipeFile:
    version = values.get("version")
    if version is not None and version != RECIPE_VERSION:  # what else a newer one holds is not known here
        raise Refused("version", f"{RECIPE_VERSION} is required", value=version)
    recipe = decode(RecipeFile, values, told=told)
    if recipe.bench:
        try:
            parse_devices(recipe.bench.devices)
        except InvalidOption as error:
            problem = error.message.removeprefix("`devices` ")
            raise Refused("bench.devices", f"holds {problem}", hint=error.hint) from error
    contradiction = find_contradiction(recipe.model, recipe.artifact, recipe.bench)
    if contradiction and recipe.sweep is None:  # of a matrix, the cells say it
        key, problem, hint = contradiction
        raise Refused(key, problem, hint=hint)
    return recipe
