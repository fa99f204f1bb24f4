"""The files that the stages of a recipe read: what has to go along where they are carried out elsewhere.

| key                                        | its files                                                  |
|--------------------------------------------|------------------------------------------------------------|
|                                            | the recipe                                                 |
| `model.source`, `.weights`, `bench.models` | the model, its weights beside it, its manifest; of a       |
|                                            | function, what its digest is of, and packages beside it    |
| `model.depends`, `data.depends`            | each                                                       |
| `model.preprocessing`                      | a `.json`; the folder of `hf:FOLDER`                       |
| `data.calibration`, `data.evaluation`      | samples, labels, masks, annotations, preprocessing;        |
|                                            | of a function, what its digest is of                       |
| `calibrate.ranges`                         | the file, its manifest and signature                       |
| `artifact.tensorrt.plugins`                | each                                                       |
| `artifact.tensorrt.timing_cache`           | the file, if it is there                                   |
| `bench.metric`                             | of a function, what its digest is of                       |

What is not found: a file that a function opens and that does not lie beside it (name it with `depends`), an
installed package, a model by name (`timm:`, `torchvision:`, `hf:NAME`: of each machine's own cache), and
interpreters (`model.python`, `bench.python`): their paths are those of the machine that runs the stage.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from ..data.kinds import data_files
from ..files import manifest_path, require_file, side_files
from ..model.preprocessing_names import preprocessing_files
from ..model.source import Source, parse_source, source_files
from ..spec.tensorrt import AUTO, OFF
from ..spec.words import is_own_metric
from .recipe import Recipe
from .stages import recipe_source


def recipe_files(recipe: Recipe) -> Iterator[Path]:
    """Yield the absolute paths of the files that a recipe's stages read; some come twice.

    Links on the way are kept as they are spelled, but for one in front of a `..`.

    Raises:
        MissingFile, InvalidOption: If a key leads nowhere.
    """
    for path in _found(recipe):
        yield settled(path)


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


def _found(recipe: Recipe) -> Iterator[Path]:
    folder, model = recipe.folder, recipe.model
    yield recipe.path.resolve()
    yield from model_files(recipe_source(recipe))
    for name in (*model.depends, *recipe.data.depends):
        yield require_file(folder / name, what="depends: file")
    yield from preprocessing_files(model.preprocessing, base=folder)
    for spec in (recipe.data.calibration, recipe.data.evaluation):
        if spec:
            yield from data_files(spec, folder)
    if recipe.calibrate.ranges:
        yield from _with_companions(folder / recipe.calibrate.ranges)
    for one in recipe.artifact:
        for name in one.tensorrt.plugins:
            yield require_file(folder / name, what="plugin")
        cache = folder / one.tensorrt.timing_cache
        if one.tensorrt.timing_cache not in (AUTO, OFF) and cache.is_file():
            yield cache
    if recipe.bench:
        if is_own_metric(recipe.bench.metric):
            yield from model_files(parse_source(recipe.bench.metric, base=folder))
        for text in recipe.bench.models:
            yield from model_files(parse_source(text.split("=", 1)[1], base=folder))


def model_files(source: Source) -> Iterator[Path]:
    """Yield the files of a MODEL: those that its digest is of, and those that must lie beside it."""
    if source.kind == "module":
        return  # of an installed package: each machine has its own
    yield from source_files(source)
    if source.kind == "file":
        yield source.file
        yield from _packages_beside(source.file.parent)
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


def _packages_beside(folder: Path) -> Iterator[Path]:
    """The sources of packages in a folder, which a function beside them may import."""
    for marker in sorted(folder.glob("*/__init__.py")):
        if not marker.parent.name.startswith("."):
            yield from sorted(marker.parent.rglob("*.py"))
