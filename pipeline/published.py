"""The names of what a recipe's stages publish, and the recipes in which two of them are one.

    NAME.onnx  NAME.simplified.onnx  NAME.ranges       of the model
    ARTIFACT.graph.onnx  ARTIFACT.onnx | .engine | .pt                     of each artifact
    results.json  report.html                                              with endings of their own

Each ONNX file and engine has its manifest (`.json`) beside it, and a large ONNX file its weights (`.data`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from pathlib import Path

from ..engines.registry import engine
from ..errors import InvalidOption
from ..files import manifest_path
from ..spec.artifacts import ArtifactSection
from ..spec.decode import Refused
from ..spec.recipes import RecipeFile

GRAPH, SIMPLIFIED = ".graph.onnx", ".simplified.onnx"
_LONGEST = 200
"""Bytes of a name that leave room for the endings, and for the names of what is not finished."""


def published(recipe: RecipeFile) -> Iterator[tuple[str, str, str]]:
    """Yield (file name, key of the recipe that names it, what it is) of all that a run may publish."""
    for file, key, what in _main_files(recipe):
        yield file, key, what
        yield manifest_path(Path(file)).name, key, f"the manifest of {what}"
        if file.endswith(".onnx"):
            yield f"{file}.data", key, f"the weights of {what}"


def check_names(recipe: RecipeFile) -> None:
    """Refuse a recipe in which two stages publish one file; names that differ by case alone are one."""
    named = [("name", recipe.name)]
    named += [(f"artifact[{index}].name", one.name) for index, one in enumerate(recipe.artifact)]
    for key, name in named:
        if len(name.encode("utf-8", "replace")) > _LONGEST:
            raise Refused(key, f"at most {_LONGEST} bytes are required", value=name)
    taken: dict[str, tuple[str, str]] = {}
    for file, key, what in published(recipe):
        other, others = taken.setdefault(_as_file_systems_see(file), (file, what))
        if others != what:
            problem = f"another name is required: {what} would be {file}, and {others} is {other}"
            raise Refused(key, problem, value=_value(recipe, key))


def check_output(recipe: RecipeFile, folder: Path, output: Path) -> None:
    """Refuse an output folder in which a run would overwrite what it reads."""
    read = [folder / text for text in (recipe.model.source, recipe.calibrate.ranges) if text]
    for file, _, what in published(recipe):
        target = output / file
        if any(target.exists() and one.is_file() and target.samefile(one) for one in read):
            raise InvalidOption(
                f"`output` {output}: {what} would overwrite {target}, which the recipe reads",
                hint="give another `output`, or another `name`",
                option="output",
            )


def _main_files(recipe: RecipeFile) -> Iterator[tuple[str, str, str]]:
    yield f"{recipe.name}.onnx", "name", "the exported model"
    if recipe.model.simplify:
        yield f"{recipe.name}{SIMPLIFIED}", "name", "the simplified model"
    if recipe.data.calibration and not recipe.calibrate.ranges:
        yield f"{recipe.name}.ranges", "name", "the ranges"
    for index, one in enumerate(recipe.artifact):
        key = f"artifact[{index}].name"
        if _may_be_lowered(one):
            yield f"{one.name}{GRAPH}", key, f"the graph of artifact {one.name!r}"
        yield f"{one.name}{engine(one.target).suffix}", key, f"artifact {one.name!r}"


def _may_be_lowered(one: ArtifactSection) -> bool:
    """Whether a graph of its own may be made for it; float32 is built from the model itself."""
    return engine(one.target).takes == "onnx" and one.precision != "fp32"


def _as_file_systems_see(file: str) -> str:
    """Those of macOS and Windows take names that differ by case, or by how a letter is composed, for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", file).casefold())


def _value(recipe: RecipeFile, key: str) -> str:
    index = key.removeprefix("artifact[").partition("]")[0]
    return recipe.artifact[int(index)].name if index.isdecimal() else recipe.name
