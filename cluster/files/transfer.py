"""The way of files from machine to machine: by digest, in chunks, each once, never through the scheduler.

client ──push──▶ worker ◀──fetch── worker        client ◀──pull── worker

Small files share a message of 4 MiB; large ones are cut into as many. Four messages are under way at a time,
so that memory does not grow with the files. What takes the bytes verifies every file before it has a name.
The connections are Dask's own: addresses, TLS and limits are those of the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import errors
from ...errors import ArtifactError, ClusterError, QCompileError, StorageError
from ...files import require_file
from ...files.temporary import held_folder
from ...progress import Progress, silent
from ..messages import FileRef
from .arriving import Writer
from .content import ContentStore, Moved
from .serving import ARRIVING, CHUNK_BYTES, HANDLERS, handlers, take_parts, uncopied, write_parts

__all__ = ["CHUNK_BYTES", "HANDLERS", "fetch", "handlers", "pull", "push"]

_AT_ONCE = 4
"""Messages under way."""
_FILES_AT_ONCE = 1000
"""That one message holds parts of."""
_ASKED_AT_ONCE = 10_000
_ANSWER_S = 120.0
"""After which a silent machine counts as lost."""
_GREETED_S = 15.0
"""After which a holder that says nothing is left for the next one: Dask tries to connect for longer."""
_RAISED = {one.__name__: one for one in (ArtifactError, StorageError, errors.InvalidOption)}
_pushing: dict[tuple[int, str, str], asyncio.Future[None]] = {}

Spans = Iterable[Sequence[int]]
"""Begin and end of bytes."""
Part = tuple[str, int, int, int]
"""Digest, size of the file, offset, length."""


async def push(rpc: Any, files: Mapping[str, Path], *, progress: Progress = silent) -> Moved:
    """Bring files to a worker; those that it has are not sent, nor those that another push is sending.

    Args:
        rpc: `client.rpc(address)`.
        files: Digest to path.
        progress: Told of bytes.

    Returns:
        What was sent.

    Raises:
        StorageError: If the worker's disk is full.
        ArtifactError: If a file was changed since it was digested.
        ClusterError: If the worker is lost.
    """
    loop, sent, left = id(asyncio.get_running_loop()), Moved(), list(files)
    while spans := await _absent(rpc, left):
        left = list(spans)
        keys = {digest: (loop, rpc.address, digest) for digest in left}
        awaited = [_pushing[key] for key in keys.values() if key in _pushing]
        mine = {digest: files[digest] for digest, key in keys.items() if key not in _pushing}
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        _pushing.update(dict.fromkeys((keys[digest] for digest in mine), over))
        try:
            if mine:
                await _send(rpc, mine, spans, sent, progress)
        except ArtifactError as error:
            path = mine.get(str(error.data.get("digest")), "a file")
            hint = "leave it as it is while it is used, and run it again"
            raise ArtifactError(f"{path}: was changed after it was read", hint=hint, file=path) from error
        finally:
            for digest in mine:
                del _pushing[keys[digest]]
            over.set_result(None)
        if not awaited:
            break
        await asyncio.wait(awaited)
    return sent


async def pull(rpc: Any, files: Mapping[str, tuple[Path, int]], *, progress: Progress = silent) -> Moved:
    """Bring files of a worker here.

    Args:
        rpc: `client.rpc(address)`.
        files: Digest to the path that it is given here, and its size in bytes.
        progress: Told of bytes.

    Returns:
        What came.

    Raises:
        ClusterError: If the worker is lost, or has not all of them (data: `missing`).
        ArtifactError: If what came has another digest: the file is damaged there, and was removed there.
        StorageError: If the disk is full.
    """
    came = Moved()
    with contextlib.ExitStack() as stack:
        writers = _writers(files, stack)

        def take(parts: Sequence[Part], data: memoryview) -> None:
            write_parts(lambda digest, _: writers[digest], parts, data)
            came.files_in = sum(one.is_whole for one in writers.values())

        sizes = {digest: size_bytes for digest, (_, size_bytes) in files.items()}
        absent = await _receive(rpc, sizes, take, came, progress)
    if absent:
        problem = f"has {len(absent)} of {len(files)} files no more"
        raise ClusterError(f"worker {rpc.address}: {problem}", address=rpc.address, missing=absent)
    return came


async def fetch(
    worker: Any,
    content: ContentStore,
    refs: Iterable[FileRef],
    holders: Iterable[str],
    *,
    progress: Progress = silent,
) -> list[str]:
    """Bring files of other workers to this one. It runs on the worker's event loop.

    A file that another task of this worker is bringing is waited for. A holder that is lost, or has a
    damaged file, is followed by the next one; chunks that came are kept.

    Args:
        worker: The Dask worker.
        content: Its files.
        refs: The files; those that are here are not asked for.
        holders: Addresses of workers that may have them.
        progress: Told of bytes.

    Returns:
        The digests that nobody has.

    Raises:
        StorageError: If the disk is full.
    """
    arriving = ARRIVING.setdefault(content, {})
    sizes = {ref.digest: ref.size_bytes for ref in refs}
    others = [address for address in dict.fromkeys(holders) if address != worker.address]
    random.shuffle(others)  # not all ask the first one
    while True:
        left = await asyncio.to_thread(content.missing, sizes)
        awaited = [arriving[digest] for digest in left if digest in arriving]
        mine = {digest: sizes[digest] for digest in left if digest not in arriving}
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        arriving.update(dict.fromkeys(mine, over))
        try:
            for address in others if mine else ():
                await _fetch_from(worker.rpc(address), content, mine, progress)
                absent = await asyncio.to_thread(content.missing, mine)
                if not absent:
                    break
        finally:
            for digest in mine:
                del arriving[digest]
            over.set_result(None)
        if not awaited:
            return await asyncio.to_thread(content.missing, mine)
        await asyncio.wait(awaited)


async def _fetch_from(rpc: Any, content: ContentStore, sizes: Mapping[str, int], progress: Progress) -> None:
    """Bring what one holder has; what it has not, or damaged, is left to the next one."""
    came = Moved()

    def take(parts: Sequence[Part], data: memoryview) -> None:
        take_parts(content, parts, data)

    try:
        await _ask(rpc, "qcompile_moved", timeout_s=_GREETED_S)
        left = await asyncio.to_thread(content.missing, sizes)
        await _receive(rpc, {digest: sizes[digest] for digest in left}, take, came, progress, content=content)
    except (ClusterError, ArtifactError):
        return


async def _receive(
    rpc: Any,
    sizes: Mapping[str, int],
    take: Callable[[Sequence[Part], memoryview], None],
    came: Moved,
    progress: Progress,
    *,
    content: ContentStore | None = None,
) -> list[str]:
    """Read files chunk by chunk; the digests that the other side has not.

    A damaged file is told to the other side, which removes it; the others go on.
    """
    absent: dict[str, None] = {}
    damaged: dict[str, ArtifactError] = {}
    total = sum(sizes.values())

    async def one(parts: Sequence[Part]) -> None:
        parts = [part for part in parts if part[0] not in absent and part[0] not in damaged]
        if not parts:
            return
        asked = [(digest, offset, length) for digest, _, offset, length in parts]
        answer = await _ask(rpc, "qcompile_read", parts=asked)
        absent.update(dict.fromkeys(answer["missing"]))
        parts = [part for part in parts if part[0] not in absent]
        data = memoryview(answer["data"])
        if len(data) != sum(length for *_, length in parts):
            raise ClusterError(f"worker {rpc.address}: gave {len(data)} bytes that were not asked for")
        came.bytes_in += len(data)
        try:
            await asyncio.to_thread(take, parts, data)
        except ArtifactError as error:
            damaged[str(error.data["digest"])] = error
            await _ask(rpc, "qcompile_missing", digests=[error.data["digest"]], verify=True)
        progress("bring files", came.bytes_in, total)

    spans = content.begun(sizes) if content else {}
    await _each(_bundles(sizes, spans), one)
    if damaged:
        raise next(iter(damaged.values()))
    return list(absent)


async def _send(
    rpc: Any, files: Mapping[str, Path], spans: Mapping[str, Spans], sent: Moved, progress: Progress
) -> None:
    sizes = await asyncio.to_thread(_sizes, files)
    total = sum(sizes.values())

    async def one(parts: Sequence[Part]) -> None:
        data = await asyncio.to_thread(_read_parts, files, parts)
        await _ask(rpc, "qcompile_write", parts=parts, data=uncopied(data))
        sent.bytes_out += len(data)
        progress("send files", sent.bytes_out, total)

    await _each(_bundles(sizes, spans), one)


def _bundles(sizes: Mapping[str, int], spans: Mapping[str, Spans]) -> Iterator[list[Part]]:
    """The messages: parts of files, 4 MiB together; of a file that was begun only what is missing."""
    bundle: list[Part] = []
    room = CHUNK_BYTES
    for digest, size_bytes in sizes.items():
        for begin, end in spans.get(digest) or [(0, size_bytes)]:
            offset = begin
            while True:
                length = min(room, end - offset)
                bundle.append((digest, size_bytes, offset, length))
                offset, room = offset + length, room - length
                if not room or len(bundle) == _FILES_AT_ONCE:
                    yield bundle
                    bundle, room = [], CHUNK_BYTES
                if offset >= end:
                    break
    if bundle:
        yield bundle


async def _each(bundles: Iterator[list[Part]], one: Callable[[Sequence[Part]], Awaitable[None]]) -> None:
    """Carry messages, a few at a time; the first error ends all."""

    async def carry() -> None:
        for bundle in bundles:
            await one(bundle)

    tasks = [asyncio.ensure_future(carry()) for _ in range(_AT_ONCE)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _absent(rpc: Any, digests: Sequence[str]) -> dict[str, Spans]:
    """The files that a worker has not, and the spans that are missing of those that were begun."""
    absent: dict[str, Spans] = {}
    for begin in range(0, len(digests), _ASKED_AT_ONCE):
        answer = await _ask(rpc, "qcompile_missing", digests=digests[begin : begin + _ASKED_AT_ONCE])
        absent.update({digest: answer["spans"].get(digest, ()) for digest in answer["missing"]})
    return absent


async def _ask(rpc: Any, handler: str, *, timeout_s: float = _ANSWER_S, **message: Any) -> Any:
    """Send a message and return its answer.

    Raises:
        ClusterError: If the other side is lost, or is no worker of ours.
        QCompileError: What it answers as an error.
    """
    try:
        answer = await asyncio.wait_for(getattr(rpc, handler)(**message), timeout_s)
    except (OSError, asyncio.TimeoutError) as error:  # Dask's own are kinds of OSError
        raise ClusterError(
            f"worker {rpc.address}: is lost ({error or type(error).__name__})", address=rpc.address
        ) from error
    if not isinstance(answer, dict):
        raise ClusterError(
            f"worker {rpc.address}: does not know files; one of `qcompile worker` is required",
            hint="start it with `qcompile worker`, or let the client register its plugin",
            address=rpc.address,
        )
    if said := answer.get("error"):
        raise _error(said, rpc.address)
    return answer


def _error(said: Mapping[str, Any], address: str) -> QCompileError:
    kind = _RAISED.get(str(said["error"]), ClusterError)
    data = {**said["data"], "address": address}
    return kind(f"worker {address}: {said['message']}", hint=str(said["hint"]), **data)


def _read_parts(files: Mapping[str, Path], parts: Sequence[Part]) -> bytes:
    chunks = []
    for digest, _, offset, length in parts:
        with files[digest].open("rb", buffering=0) as file:
            chunk = os.pread(file.fileno(), length, offset)
        if len(chunk) != length:
            raise ArtifactError(f"{files[digest]}: became shorter while it was sent", file=files[digest])
        chunks.append(chunk)
    return b"".join(chunks)


def _sizes(files: Mapping[str, Path]) -> dict[str, int]:
    return {digest: require_file(path).stat().st_size for digest, path in files.items()}


def _writers(files: Mapping[str, tuple[Path, int]], stack: contextlib.ExitStack) -> dict[str, Writer]:
    """What takes files that get a name here, not in a content store; the stack removes what is not whole."""
    folders: dict[Path, Path] = {}
    lock = threading.Lock()

    def temporary(parent: Path) -> Path:
        with lock:
            if parent not in folders:
                parent.mkdir(parents=True, exist_ok=True)
                folders[parent] = stack.enter_context(held_folder(parent))
            return folders[parent]

    def named(written: Path, final: Path) -> None:
        os.chmod(written, 0o644)
        os.replace(written, final)

    writers = {}
    for digest, (path, size_bytes) in files.items():
        writers[digest] = Writer(
            digest,
            size_bytes,
            final=path,
            temporary=functools.partial(temporary, path.parent),
            name=functools.partial(named, final=path),
        )
        stack.callback(writers[digest].discard)
    return writers
