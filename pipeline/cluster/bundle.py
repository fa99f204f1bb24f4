"""What a client and workers send: files in chunks, and what they say to each other.

    qcompile-3f9c…      the index: names, digests and sizes as JSON; 3f9c… is its digest
    qcompile-3f9c…-0    the bytes of the files, one after another, cut every 64 MiB
    qcompile-3f9c…-1

A recipe with all files that it reads is one bundle, and so is what a stage writes. Chunks are values of
Dask's workers, which move them, or files of a store that all machines reach (fsspec). The scheduler moves
`Request` and `Answer` alone, a few kilobytes of JSON each.
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

from ...core.artifact import known_digest
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

    `recipe` is the name of the one that is the recipe, empty for the files of a stage; `base` is the folder
    that they lie in on the client, which files of stages may name.
    """

    files: tuple[FileRef, ...]
    recipe: str = ""
    base: str = ""

    def index(self) -> bytes:
        """Return the text that is carried in front of the chunks."""
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
    """A bundle whose files lie on this machine: `sources` are their paths in order, or a recipe's text."""

    bundle: Bundle
    sources: Sequence[Path | bytes]

    def items(self) -> Iterator[tuple[str, bytes]]:
        """Yield every key and what it stands for, one chunk at a time."""
        index, *keys = self.bundle.keys()
        yield index, self.bundle.index()
        yield from zip(keys, _chunks(self.sources), strict=False)


def bundle_of_recipe(recipe: Recipe) -> LocalBundle:
    """Return the bundle of a recipe and of all files that it reads.

    Names are relative to the folder that all of them lie in, so that relative paths lead where they led.
    """
    file = recipe.path.resolve()
    paths = sorted({*recipe_files(recipe)} - {file})
    base = os.path.commonpath([file.parent, *(path.parent for path in paths)])
    text = portable_text(recipe)
    name = Path(os.path.relpath(file, base)).as_posix()
    refs = [FileRef(name, f"sha256:{hashlib.sha256(text).hexdigest()}", len(text))]
    refs += [_ref(os.path.relpath(path, base), path) for path in paths]
    return LocalBundle(Bundle(tuple(refs), name, base), [text, *paths])


def bundle_beside(path: Path) -> LocalBundle:
    """Return the bundle of a file of an earlier stage, of its weights and its manifest."""
    paths = [path, *side_files(path), *filter(Path.is_file, [manifest_path(path)])]
    return LocalBundle(Bundle(tuple(_ref(path.name, path) for path in paths)), paths)


def bundle_of_stage(folder: Path, main: str, digests: Mapping[str, str]) -> LocalBundle:
    """Return the bundle of what a stage wrote, the main file first."""
    paths = [folder / name for name in sorted(digests, key=lambda name: (name != main, name))]
    refs = tuple(FileRef(path.name, digests[path.name], path.stat().st_size) for path in paths)
    return LocalBundle(Bundle(refs), paths)


def read_index(index: bytes, digest: str) -> Bundle:
    """Return the bundle of an index."""
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
    """Write the files of a bundle, each verified by its digest."""
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
            raise ArtifactError(f"{ref.name}: has another digest than its bundle says; was it changed?")
        path.chmod(mode)


def _ref(name: str, path: Path) -> FileRef:
    return FileRef(Path(name).as_posix(), known_digest([path]), path.stat().st_size)


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
"""How a request ends.

| done    | the stage is done; `Answer.bundle` lists what it wrote, and its chunks can be had           |
| known   | the client holds it already: `Answer.name` is one of `Request.known`                        |
| none    | there is nothing to do, as for a graph that stays in float; or it is not done (`look`)         |
| missing | nobody has the chunks of `Answer.missing`: the client uploads them, and asks again          |
| failed  | the stage failed: `Answer.error`, where `OUTPUT` and `RECIPE` stand for the worker's folders |
"""

OUTPUT, RECIPE = "<output>", "<recipe>"
"""What stands in an error's words for the worker's folders: the client puts its own there."""


class StageKilled(Exception):
    """The process that carried out a stage ended by itself or by force: Dask retries the task."""


class Request(msgspec.Struct, frozen=True):
    """What a worker is asked to do.

    Attributes:
        client: Dask's id of the client: chunks are kept for it, progress is told to it.
        stage: A `pipeline.stage.Stage` as JSON, whose files are named by their digests.
        recipe: Digest of the bundle of the recipe and of all files that it reads.
        inputs: Digest of a file of the stage to that of the bundle that it is the first file of.
        store: URL of a store that carries the chunks; empty for Dask.
        known: Names of the finished stages of this name that the client holds ("build-int8-3f9c…").
        look: Only say whether it is done; `again`: carry it out even if it is done.
        alone: Nothing else may run on the worker's machine meanwhile, as for a measurement.
    """

    client: str
    stage: dict[str, Any]
    name: str
    recipe: str
    inputs: dict[str, str] = {}
    store: str = ""
    known: tuple[str, ...] = ()
    look: bool = False
    again: bool = False
    alone: bool = False


class Answer(msgspec.Struct, frozen=True):
    """What a worker answers; `outcome` says how the request ended.

    `name` is that of the finished stage with the digest of its key, `bundle` what the stage wrote, the main
    file first, `took` the `seconds` and `peak_bytes` of the process that did it, `missing` the digests of the
    bundles that nobody has whole, and `error` that of "failed", `QCompileError.as_json()`.
    """

    outcome: Outcome
    name: str = ""
    key: dict[str, Any] = {}
    bundle: Bundle | None = None
    was_done: bool = False
    took: dict[str, Any] = {}
    worker: str = ""
    address: str = ""
    missing: tuple[str, ...] = ()
    error: dict[str, Any] = {}


class MissingChunk(Exception):
    """Nobody has a chunk: its worker was lost, or it was never uploaded."""


class ClientCarrier:
    """Chunks as Dask values, seen from a client, which puts them on the worker of this address.

    `futures` takes what keeps the chunks that are put: workers forget a chunk with its future.
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
    """Chunks as files below a URL of fsspec, named by their keys; they stay there for later runs.

    The URL is a folder that all machines mount, s3://BUCKET/PREFIX, ...
    """

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
        """Keep a chunk; a reader sees all of it or nothing."""
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
    """Return a chunk of a worker that has it. Dask's `gather` asks the scheduler where that fails."""
    from distributed.utils_comm import gather_from_workers

    who_has = await scheduler.who_has(keys=[key])
    chunks = (await gather_from_workers(who_has, rpc=rpc))[0] if who_has.get(key) else {}
    if key not in chunks:
        raise MissingChunk(key)
    return chunks[key]
