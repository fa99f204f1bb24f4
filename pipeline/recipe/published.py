"""The files that a run publishes, named after the recipe and its artifacts.

    NAME.onnx  NAME.simplified.onnx  NAME.ranges         of the model
    ARTIFACT.graph.onnx  ARTIFACT.onnx | .engine | .pt   of each artifact
    results.json  report.html                            of the run

Each ONNX file and engine has its manifest (`.json`) beside it, and a large ONNX file its weights (`.data`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from pathlib import Path

from ...core.files import manifest_path
from ...engines.registry import engine
from ...errors import InvalidOption
from ...spec.decode import Refused
from ...spec.recipes import RecipeFile

GRAPH, SIMPLIFIED = ".graph.onnx", ".simplified.onnx"
RESULTS, REPORT = "results.json", "report.html"
_MAX_NAME_BYTES = 200
"""Longest name in bytes, which leaves room for suffixes and for the names of unfinished files."""


def published(recipe: RecipeFile) -> Iterator[tuple[str, str, str]]:
    """Yield (file name, recipe key with the name, description) of each file that a run may publish."""
    files = [(f"{recipe.name}.onnx", "name", "the exported model")]
    if recipe.model.simplify:
        files.append((f"{recipe.name}{SIMPLIFIED}", "name", "the simplified model"))
    if recipe.data.calibration and not recipe.calibrate.ranges:
        files.append((f"{recipe.name}.ranges", "name", "the ranges"))
    for index, artifact in enumerate(recipe.artifact):
        key, name, runtime = f"artifact[{index}].name", artifact.name, engine(artifact.target)
        if runtime.takes == "onnx" and artifact.precision != "fp32":  # FP32 needs no separate graph
            files.append((f"{name}{GRAPH}", key, f"the graph of artifact {name!r}"))
        files.append((f"{name}{runtime.suffix}", key, f"artifact {name!r}"))
    for file, key, what in files:
        yield file, key, what
        yield manifest_path(Path(file)).name, key, f"the manifest of {what}"
        if file.endswith(".onnx"):
            yield f"{file}.data", key, f"the weights of {what}"


def check_names(recipe: RecipeFile) -> None:
    """Raise `Refused` if two stages publish one file; names that differ only by case count as equal."""
    names = {"name": recipe.name}
    names |= {f"artifact[{index}].name": artifact.name for index, artifact in enumerate(recipe.artifact)}
    for key, name in names.items():
        if len(name.encode("utf-8", "replace")) > _MAX_NAME_BYTES:
            raise Refused(key, f"at most {_MAX_NAME_BYTES} bytes are required", value=name)
    published_files: dict[str, tuple[str, str]] = {}
    for file, key, what in published(recipe):
        # macOS and Windows treat names as equal that differ only by case or Unicode composition.
        folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", file).casefold())
        other_file, other_what = published_files.setdefault(folded, (file, what))
        if other_what != what:
            problem = f"another name is required: {what} would be {file}, and {other_what} is {other_file}"
            raise Refused(key, problem, value=names[key])


def check_output(recipe: RecipeFile, folder: Path, output: Path) -> None:
    """Raise InvalidOption if a run would overwrite one of its inputs in the output folder."""
    read = [folder / text for text in (recipe.model.source, recipe.calibrate.ranges) if text]
    for file, _, what in published(recipe):
        target = output / file
        if target.exists() and any(path.is_file() and target.samefile(path) for path in read):
            raise InvalidOption(
                f"`output` {output}: {what} would overwrite {target}, which the recipe reads",
                hint="give another `output`, or another `name`",
                option="output",
            )
