"""Files that a client and its workers exchange, in chunks, and their messages, `Request` and `Answer`.

    qcompile-3f9c…      the index: names, digests and sizes as JSON; 3f9c… is its digest
    qcompile-3f9c…-0    the bytes of the files, concatenated and cut every 64 MiB
    qcompile-3f9c…-1

A recipe with its input files is one bundle; the output files of a stage are another. Chunks are values of
Dask's workers, which transfer them, or files of a store that all machines reach (fsspec). The scheduler only
transfers `Request` and `Answer`, a few kilobytes of JSON each.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from ...core.artifact import cached_digest
from ...core.files import manifest_path, side_files
from ...errors import ArtifactError, EngineUnavailable, InvalidOption, StorageError, first_line
from ..recipe.names import recipe_files
from ..recipe.recipe import Recipe
from ..recipe.write import portable_text

CHUNK_BYTES = 64 << 20


class FileRef(msgspec.Struct, frozen=True):
    """A file: its path in the bundle's folder with "/" between parts, and "sha256:..." of its bytes."""

    name: str
    digest: str
    size_bytes: int


class Bundle(msgspec.Struct, frozen=True):
    """Files that belong together, in the order of their bytes.

    `recipe` is the name of the recipe file, empty for the files of a stage. `base` is the client's folder of
    the files; files of stages may contain this path.
    """

    files: tuple[FileRef, ...]
    recipe: str = ""
    base: str = ""

    def index(self) -> bytes:
        """Return the JSON that precedes the chunks."""
        return msgspec.json.encode(self)

    def digest(self) -> str:
        """Return the digest that names the bundle."""
        return hashlib.sha256(self.index()).hexdigest()

    def keys(self) -> list[str]:
        """Return the key of the index and of each chunk."""
        size_bytes, key = sum(file.size_bytes for file in self.files), f"qcompile-{self.digest()}"
        return [key, *(f"{key}-{number}" for number in range(-(-size_bytes // CHUNK_BYTES)))]


@dataclass(frozen=True)
class LocalBundle:
    """A bundle on this machine: `sources` are the paths of its files in order, or the text of a recipe."""

    bundle: Bundle
    sources: Sequence[Path | bytes]

    def items(self) -> Iterator[tuple[str, bytes]]:
        """Yield every key with its bytes, one chunk at a time."""
        index, *keys = self.bundle.keys()
        yield index, self.bundle.index()
        yield from zip(keys, _chunks(self.sources), strict=False)


def bundle_of_recipe(recipe: Recipe) -> LocalBundle:
    """Return the bundle of a recipe and its input files.

    Names are relative to the common parent folder, so that relative paths in the recipe remain valid.
    """
    file = recipe.path.resolve()
    paths = sorted({*recipe_files(recipe)} - {file})
    base = os.path.commonpath([file.parent, *(path.parent for path in paths)])
    text = portable_text(recipe)
    name = Path(os.path.relpath(file, base)).as_posix()
    refs = [FileRef(name, f"sha256:{hashlib.sha256(text).hexdigest()}", len(text))]
    refs += [_ref(os.path.relpath(path, base), path) for path in paths]
    return LocalBundle(Bundle(tuple(refs), name, base), [text, *paths])


def bundle_of_file(path: Path) -> LocalBundle:
    """Return the bundle of a file, its external weights and its manifest."""
    paths = [path, *side_files(path), *filter(Path.is_file, [manifest_path(path)])]
    return LocalBundle(Bundle(tuple(_ref(path.name, path) for path in paths)), paths)


def bundle_of_stage(folder: Path, main: str, digests: Mapping[str, str]) -> LocalBundle:
    """Return the bundle of a stage's output files, the main file first."""
    paths = [folder / name for name in sorted(digests, key=lambda name: (name != main, name))]
    refs = tuple(FileRef(path.name, digests[path.name], path.stat().st_size) for path in paths)
    return LocalBundle(Bundle(refs), paths)


def read_index(index: bytes, digest: str) -> Bundle:
    """Return the bundle of an index; raise `ArtifactError` for a wrong digest or an unsafe file name."""
    if hashlib.sha256(index).hexdigest() != digest:
        raise ArtifactError(f"bundle {digest[:12]}: arrived damaged; its index has another digest")
    bundle = msgspec.json.decode(index, type=Bundle)
    for file in bundle.files:
        parts = file.name.split("/")
        inside = all(part not in ("", ".", "..") for part in parts) and not set(file.name) & {"\\", "\0"}
        if not inside or PurePosixPath(file.name).is_absolute():
            raise ArtifactError(f"bundle {digest[:12]}: names {file.name[:80]!r}; a name inside is required")
    return bundle


def write_files(bundle: Bundle, chunks: Iterator[bytes], folder: Path, *, mode: int = 0o644) -> None:
    """Write the files of a bundle; raise `ArtifactError` for a wrong digest."""
    chunk = memoryview(b"")
    for ref in bundle.files:
        path, sha256, missing_bytes = folder / ref.name, hashlib.sha256(), ref.size_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            while missing_bytes and (chunk := chunk or memoryview(next(chunks, b""))):
                block, chunk = chunk[:missing_bytes], chunk[missing_bytes:]
                file.write(block)
                sha256.update(block)
                missing_bytes -= len(block)
        if f"sha256:{sha256.hexdigest()}" != ref.digest:
            raise ArtifactError(f"{ref.name}: has another digest than in its bundle; was it changed?")
        path.chmod(mode)


def _ref(name: str, path: Path) -> FileRef:
    return FileRef(Path(name).as_posix(), cached_digest([path]), path.stat().st_size)


def _chunks(sources: Iterable[Path | bytes]) -> Iterator[bytes]:
    chunk = bytearray()
    for source in sources:
        with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
            while block := file.read(CHUNK_BYTES - len(chunk)):
                chunk += block
                if len(chunk) == CHUNK_BYTES:
                    yield bytes(chunk)
                    chunk.clear()
    if chunk:
        yield bytes(chunk)


Outcome = Literal["done", "known", "none", "missing", "failed"]
"""Outcome of a request.

| done    | the stage is finished: `Answer.bundle` lists its files, and their chunks are available       |
| known   | the client already has the stage: `Answer.name` is in `Request.known`                        |
| none    | no work, e.g. a graph that remains in floating point; for `look` also: not finished          |
| missing | chunks of the bundles `Answer.missing` are unavailable: the client uploads them and repeats  |
| failed  | the stage failed: `Answer.error`, with `OUTPUT` and `RECIPE` for the worker's folders        |
"""

OUTPUT, RECIPE = "<output>", "<recipe>"
"""Placeholders for the worker's folders in error texts; the client replaces them by its paths."""


class StageKilled(Exception):
    """The process of a stage ended or was killed; Dask retries the task."""


class Request(msgspec.Struct, frozen=True):
    """A stage that a worker carries out or looks up.

    Attributes:
        client: Dask's id of the client, which owns the chunks and receives the progress.
        stage: A `pipeline.stages.stage.Stage` as JSON, with digests in place of files.
        recipe: Digest of the bundle of the recipe and its input files.
        inputs: Digest of each input file to the digest of the bundle whose first file it is.
        store: URL of the store that carries the chunks; empty for Dask.
        known: The client's finished stages of this stage name, with key digests ("build-int8-3f9c…").
        find_only: Only look the stage up; `again`: carry the stage out even if it is finished.
        alone: Run nothing else on the worker's machine meanwhile, as for a measurement.
    """

    client: str
    stage: dict[str, Any]
    name: str
    recipe: str
    inputs: dict[str, str] = {}
    store: str = ""
    known: tuple[str, ...] = ()
    find_only: bool = False
    again: bool = False
    alone: bool = False


class Answer(msgspec.Struct, frozen=True):
    """A worker's answer to a `Request`.

    `name` is the finished stage with the digest of its key, `bundle` its output files, the main file first,
    `cost` the `seconds` and `peak_bytes` of its process, `missing` the digests of unavailable bundles, and
    `error` the `QCompileError.as_json()` of "failed".
    """

    outcome: Outcome
    name: str = ""
    key: dict[str, Any] = {}
    bundle: Bundle | None = None
    was_done: bool = False
    cost: dict[str, Any] = {}
    worker: str = ""
    address: str = ""
    missing: tuple[str, ...] = ()
    error: dict[str, Any] = {}


class MissingChunk(Exception):
    """A chunk is unavailable: its worker was lost, or it was never uploaded."""


class ClientCarrier:
    """Chunks as Dask values, for a client, which uploads them to the worker at one address.

    `futures` receives the futures of uploaded chunks: a worker drops a chunk when its future is released.
    """

    def __init__(self, client: Any, futures: MutableMapping[str, Any], worker: str = "") -> None:
        self._client, self._futures, self._worker = client, futures, worker

    def get(self, key: str) -> bytes:
        return bytes(self._client.sync(from_workers, key, self._client.scheduler, self._client.rpc))

    def put(self, key: str, chunk: bytes) -> None:
        try:
            scattered = self._client.scatter({key: chunk}, workers=[self._worker], direct=True, timeout=10)
        except (OSError, TimeoutError, ValueError, KeyError) as error:
            raise MissingChunk(key) from error
        self._futures[key] = scattered[key]


class StoreCarrier:
    """Chunks as files under a URL of fsspec (shared folder, s3://BUCKET/PREFIX, ...), for later runs, too."""

    def __init__(self, url: str) -> None:
        import fsspec

        try:
            self._files, root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise EngineUnavailable(f"`store` {url}: {first_line(error)}", engine="cluster") from error
        except ValueError as error:
            raise InvalidOption(f"`store` {url!r}: {first_line(error)}", option="store") from error
        self._url, self._root = url, str(root).rstrip("/")
        with self._errors():
            self._files.makedirs(self._root, exist_ok=True)

    def get(self, key: str) -> bytes:
        with self._errors():
            try:
                return bytes(self._files.cat_file(f"{self._root}/{key}"))
            except FileNotFoundError as error:
                raise MissingChunk(key) from error

    def put(self, key: str, chunk: bytes) -> None:
        """Write a chunk atomically, unless the store has it."""
        path, temporary = f"{self._root}/{key}", f"{self._root}/{key}.{uuid.uuid4().hex}"
        with self._errors():
            if not self._files.exists(path):
                self._files.pipe_file(temporary, chunk)
                self._files.mv(temporary, path)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"`store` {self._url}: {first_line(error)}") from error


async def from_workers(key: str, scheduler: Any, rpc: Any) -> Any:
    """Return a chunk from a worker that has it; Dask's `gather` would fall back to the scheduler."""
    from distributed.utils_comm import gather_from_workers

    who_has = await scheduler.who_has(keys=[key])
    chunks = (await gather_from_workers(who_has, rpc=rpc))[0] if who_has.get(key) else {}
    if key not in chunks:
        raise MissingChunk(key)
    return chunks[key]
