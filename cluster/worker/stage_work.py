"""One request carried out in a child, with the files and the store of its worker.

    STORE/content/3f/3f9c…             every file, by its digest
         /recipes/8a1b…/recipe.toml    an unpacked parcel: the recipe and the files around it, as links
         /published/8a1b…/             what its stages publish; its calibrations leave checkpoints there
         /given/77c0…/model.onnx       a file of an earlier stage with what belongs to it, as links
         /stages/build-int8-3f9c…      finished stages, of all recipes

A stage that two children are asked for at a time is carried out by one of them; the other one waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from ...bench.worker import peak_memory_bytes
from ...errors import InvalidOption, OutOfMemory, QCompileError, StorageError
from ...files import held_folder, open_lock, read_json
from ...machine_memory import out_of_memory
from ...model.moved import moved
from ...model.pt2_archive import trusting
from ...pipeline.executor import carry_out
from ...pipeline.recipe import read_recipe
from ...pipeline.stages import Made, Stage
from ...pipeline.steps import Step, stage_of
from ...pipeline.store import FOLDER, Store, Stored
from ...progress import Progress, silent
from ..files.content import ContentStore
from ..files.parcel import lay_out, mend
from ..messages import FileRef, Given, Request, Result, StepText
from .places import Place, name_as_client, naming

STAGES, RECIPES, GIVEN, PUBLISHED = "stages", "recipes", "given", "published"
_RECORD = "stage.json"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_contents: dict[Path, ContentStore] = {}


@dataclass(frozen=True)
class Job:
    """A request, and where it is carried out.

    Attributes:
        request: What is asked.
        store: Folder of the worker.
        worker: Its name.
        address: Its address.
        find_only: Whether nothing is carried out: it is only looked whether it is done.
    """

    request: Request
    store: Path
    worker: str
    address: str
    find_only: bool = False


def carry_out_job(job: Job, progress: Progress) -> Result | None:
    """Carry out a request whose files are all here; None where it is only looked for, and is not done.

    Raises:
        QCompileError: If the step fails.
    """
    request, content = job.request, _content(job.store)
    place = _unpacked(content, request.parcel, job.store)
    # What the client's user trusts was decided there; here everything named lies within the parcel.
    recipe = read_recipe(place.recipe, told=silent)
    # As one would start it: code of a recipe may open what lies beside it.
    os.chdir(place.recipe.parent)
    step = as_step(request, content, job.store)
    if step.kind == "bench":
        _show(request, content, place.output)
    with trusting(recipe.model.trust), naming(place), moved(place.base, place.files):
        stage = stage_of(recipe, step, place.output)
        if stage is None:
            return Result("none", worker=job.worker, address=job.address)
        return _kept_or_made(job, content, place, stage, recipe.output, progress)


def _kept_or_made(
    job: Job, content: ContentStore, place: Place, stage: Stage, published: str, progress: Progress
) -> Result | None:
    request, nothing = job.request, Result("none", worker=job.worker, address=job.address)
    store = Store(place.output, folder=job.store / STAGES, published=stage.published)
    store.folder.mkdir(parents=True, exist_ok=True)
    key = {**stage.key, "file": stage.file}
    name = store.name(stage.name, key)
    if not request.again:
        if name in request.known:
            return msgspec.structs.replace(nothing, outcome="known", name=name, key=key, was_done=True)
        if name in request.elsewhere and store.find(stage.name, key) is None:
            return msgspec.structs.replace(nothing, outcome="elsewhere", name=name, key=key, was_done=True)
    if job.find_only and (request.again or store.find(stage.name, key) is None):
        return None
    took: dict[str, float | None] = {"seconds": 0.0, "peak_bytes": None}

    def work(folder: Path) -> None:
        _forget_peak()
        began = time.monotonic()
        carry_out(stage, folder, place.output, progress)
        if request.step.kind == "bench":
            name_as_client(folder / stage.file, place, published)
        took.update(seconds=round(time.monotonic() - began, 3), peak_bytes=peak_memory_bytes())

    with _one_at_a_time(store, name):
        stored = store.run(stage.name, key, work, again=request.again, took=took)
    return _result(job, content, stage, name, key, stored)


def _result(
    job: Job, content: ContentStore, stage: Stage, name: str, key: Mapping[str, Any], stored: Stored
) -> Result:
    """What the worker answers; it holds the files from now on."""
    record = read_json(stored.folder / _RECORD)
    names = sorted(stored.files, key=lambda one: (one != stage.file, one))
    files = []
    for one in names:
        path, digest = stored.folder / one, stored.files[one]
        content.adopt(path, digest)
        files.append(FileRef(one, digest, path.stat().st_size))
    return Result(
        "done",
        name=name,
        key=dict(key),
        files=tuple(files),
        was_done=stored.was_done,
        seconds=float(record.get("seconds") or 0.0),
        peak_bytes=record.get("peak_bytes"),
        worker=job.worker,
        address=job.address,
    )


def failed(job: Job, error: QCompileError) -> Result:
    """Return what the worker answers where a step fails: its disk may be full, which another one's is not."""
    told = error if isinstance(error, OutOfMemory) else out_of_memory(error, job.request.step.kind) or error
    if _is_full(error):
        reason = f"worker {job.worker}: {error.message}"
        return Result("full", reason=reason, worker=job.worker, address=job.address)
    return Result("failed", error=told.as_json(), worker=job.worker, address=job.address)


def as_step(request: Request, content: ContentStore, store: Path) -> Step:
    """Return the step with its files as they lie here.

    Raises:
        InvalidOption: If the request does not say which files belong to one of them.
        ArtifactError: If one of them is not here.
    """
    text = request.step

    def made(digest: str) -> Made:
        given = request.given.get(digest)
        if given is None or not given.files or given.files[0].digest != digest:
            raise InvalidOption(f"step {text.kind}: the request says nothing of its file {digest[:19]}…")
        return Made(_given(given, content, store) / given.files[0].name, digest)

    return replace(
        _plain_step(text),
        files={name: made(digest) for name, digest in text.files.items()},
        shards=tuple(made(digest) for digest in text.shards),
        built={name: made(digest) for name, digest in text.built.items()},
    )


def step_name(text: StepText) -> str:
    """Return the name of the step's stage, for progress."""
    return _plain_step(text).name


def _plain_step(text: StepText) -> Step:
    """The step without its files."""
    values = msgspec.structs.asdict(text)
    return Step(**{name: value for name, value in values.items() if name not in ("files", "shards", "built")})


def _given(given: Given, content: ContentStore, store: Path) -> Path:
    """The folder in which a file of an earlier stage lies with what belongs to it."""
    names = "\n".join(f"{one.name} {one.digest}" for one in given.files)
    final = store / GIVEN / hashlib.sha256(names.encode()).hexdigest()[:32]
    if not final.is_dir():
        final.parent.mkdir(parents=True, exist_ok=True)
        with held_folder(final.parent) as folder:
            for one in given.files:
                content.link(one.digest, folder / _plain(one.name))
            _rename(folder, final)
    else:
        mend(content, given.files, final)
    os.utime(final)
    return final


def _unpacked(content: ContentStore, parcel: FileRef, store: Path) -> Place:
    """Where the files of a parcel lie, and its stages publish."""
    laid = lay_out(content, parcel, store / RECIPES)
    output = store / PUBLISHED / laid.folder.name
    (output / FOLDER).mkdir(parents=True, exist_ok=True)
    os.utime(output)
    return Place(laid.recipe, laid.folder, output, laid.base)


def _rename(folder: Path, final: Path) -> None:
    """Give a folder its name; another process may have made the same one first."""
    try:
        os.replace(folder, final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not final.is_dir():
            raise


def _show(request: Request, content: ContentStore, output: Path) -> None:
    """Give what is measured the public names that it is measured by."""
    for given in request.given.values():
        for one in given.files:
            public = output / _plain(one.name)
            with held_folder(output) as folder:
                content.link(one.digest, folder / public.name)
                os.replace(folder / public.name, public)


def _plain(name: str) -> str:
    if name in ("", ".", "..") or Path(name).name != name or set(name) & {"\\", "\0"}:
        raise InvalidOption(f"file name {name!r}: a plain name is required")
    return name


@contextlib.contextmanager
def _one_at_a_time(store: Store, name: str) -> Iterator[None]:
    """Hold the making of a stage; the system frees it if this process is killed."""
    with open_lock(store.folder / f".{name}.lock") as held:
        with contextlib.suppress(ImportError):  # Windows
            import fcntl

            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _is_full(error: BaseException) -> bool:
    """Whether an error tells that a disk has no room; a stage writes to this worker's alone."""
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None:
            return False
        said = seen.message if isinstance(seen, StorageError) else ""
        if (isinstance(seen, OSError) and seen.errno in _NO_ROOM) or any(
            os.strerror(number) in said for number in _NO_ROOM
        ):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _content(store: Path) -> ContentStore:
    if store not in _contents:
        _contents[store] = ContentStore(store)
    return _contents[store]


def _forget_peak() -> None:
    """Have the system count this process's largest memory anew (Linux, proc(5)): it served stages before."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
