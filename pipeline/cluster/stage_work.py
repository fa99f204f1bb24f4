"""`python -m qcompile.pipeline.cluster.stage_work`: carry out requests of a worker over standard streams.

The output of a stage goes to standard error. On Linux, this process ends with its worker.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...core.files import locked_folder, open_lock, read_json
from ...core.files.storage import storage_error
from ...core.files.temporary import rename_paths
from ...core.memory import out_of_memory
from ...core.processes.serve import end_first_without_memory, serve
from ...core.progress import Progress
from ...errors import QCompileError
from ...model.graph.source_paths import map_folder
from ...model.sources.archives import trust_files
from ..recipe.recipe import Recipe, read_recipe
from ..stages.graph import carry_out, is_published, key_of, kind_of
from ..stages.stage import Stage, StageFile
from ..stages.store import FOLDER, Store
from .bundle import OUTPUT, RECIPE, Answer, Bundle, Request, bundle_of_stage
from .resources import resources_here

BUNDLES, STAGES, PUBLISHED = "bundles", "stages", "published"
INDEX, FILES = "index.json", "files"


def carry_out_request(request: Request, folder: Path, progress: Progress, *, find_only: bool) -> Answer:
    """Carry out or look up a request; return a failure as an answer."""
    try:
        return _carry_out(request, folder, progress, find_only)
    except QCompileError as error:
        failure = out_of_memory(error, request.name) or error
    except OSError as error:
        stored = storage_error(error)
        if stored is None:
            raise
        failure = stored
    return Answer("failed", error=failure.as_json())


def _carry_out(request: Request, folder: Path, progress: Progress, find_only: bool) -> Answer:
    bundle = msgspec.json.decode((folder / BUNDLES / request.recipe / INDEX).read_bytes(), type=Bundle)
    files, output = folder / BUNDLES / request.recipe / FILES, folder / PUBLISHED / request.recipe
    path = files / bundle.recipe
    (output / FOLDER).mkdir(parents=True, exist_ok=True)
    os.utime(output)
    # The client has checked the user's trust, and all paths of the recipe are inside the bundle.
    recipe = read_recipe(path)
    # As on the client: code of a recipe may open files beside it by relative paths.
    os.chdir(path.parent)
    stage = _stage(request, folder)
    if kind_of(stage).measures:
        for artifact in stage.inputs():  # results mention the public names
            for written in artifact.path.parent.iterdir():
                with locked_folder(output) as temporary:
                    os.link(written, temporary / written.name)
                    os.replace(temporary / written.name, output / written.name)
    with (
        trust_files(recipe.model.trust),
        _named_as_on_client(recipe, files, output),
        map_folder(bundle.base, files),
    ):
        key = key_of(recipe, stage)
        if key is None:
            return Answer("none")
        store = Store(output, folder=folder / STAGES)
        name = store.name(stage.name, key)
        if name in request.known and not request.again:
            return Answer("known", name=name, key=key, was_done=True)
        if find_only and (request.again or store.find(stage.name, key) is None):
            return Answer("none")

        def work(temporary: Path) -> None:
            carry_out(recipe, stage, temporary, output, progress)
            if kind_of(stage).measures:
                _name_as_on_client(temporary / key["file"], recipe, files, output)

        with open_lock(store.folder / f".{name}.lock") as file:  # against other processes of this worker
            with contextlib.suppress(ImportError):  # Windows
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            stored = store.run(
                stage.name, key, work, again=request.again, publish=is_published(stage),
                is_complete=lambda folder: kind_of(stage).is_complete(folder / key["file"]),
            )  # fmt: skip
    record = read_json(stored.folder / "stage.json")
    return Answer(
        "done",
        name=name,
        key=key,
        bundle=bundle_of_stage(stored.folder, key["file"], stored.files).bundle,
        was_done=stored.was_done,
        cost={figure: record.get(figure) for figure in ("seconds", "peak_bytes")},
    )


def _stage(request: Request, folder: Path) -> Stage:
    """Return the stage of a request, with the paths of its files on this machine."""

    def artifact(digest: str) -> StageFile:
        place = folder / BUNDLES / request.inputs[digest]
        bundle = msgspec.json.decode((place / INDEX).read_bytes(), type=Bundle)
        return StageFile(place / FILES / bundle.files[0].name, digest)

    values: dict[str, Any] = dict(request.stage)
    for role in ("files", "parts", "built"):
        values[role] = {key: artifact(digest) for key, digest in values[role].items()}
    return Stage(**values | {"unavailable": tuple(values["unavailable"])})


@contextlib.contextmanager
def _named_as_on_client(recipe: Recipe, files: Path, output: Path) -> Iterator[None]:
    """Replace this worker's folders in errors by `OUTPUT` and `RECIPE`; the client inserts its folders."""
    folder = recipe.path.parent
    beside = str(Path(RECIPE, os.path.relpath(files, folder)))
    names: Mapping[str, str] = {str(output): OUTPUT, str(folder): RECIPE, str(files): beside}

    def on_client(text: str) -> str:
        for path, name in names.items():
            text = text.replace(path, name)
        return text

    try:
        yield
    except QCompileError as error:
        rename_paths(error, on_client)
        raise


def _name_as_on_client(results: Path, recipe: Recipe, files: Path, output: Path) -> None:
    """Replace this worker's paths in a results file by paths relative to the recipe's folder."""
    folder = recipe.path.parent
    spellings = [
        (str(output), recipe.output),
        (os.path.relpath(output), recipe.output),
        (str(folder), ""),
        (str(files), os.path.relpath(files, folder)),
    ]
    text = results.read_text(encoding="utf-8")
    for spelling in spellings:
        before, after = (json.dumps(path, ensure_ascii=False)[1:-1] for path in spelling)
        text = text.replace(f"{before}/", f"{after}/" if after else "")
    results.write_text(text, encoding="utf-8")


def answer(tell: Progress, request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request of a worker: `look`, `find` or `carry_out`; see `core.processes.worker`."""
    try:
        if request["do"] == "look":
            return {"answer": resources_here()}
        stage_request, find_only = msgspec.convert(request["request"], Request), request["do"] == "find"
        result = carry_out_request(stage_request, Path(request["folder"]), tell, find_only=find_only)
        return {"answer": msgspec.to_builtins(result)}
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None  # Dask may retry the task in another process


if __name__ == "__main__":
    end_first_without_memory()
    serve(lambda tell: functools.partial(answer, tell))
