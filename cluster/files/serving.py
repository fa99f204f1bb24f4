"""What a worker does with files for others: Dask RPC handlers that know files by their digests alone.

| handler            | is told                                | answers                             |
|--------------------|----------------------------------------|-------------------------------------|
| `qcompile_missing` | digests                                | those that are not here; of begun   |
|                    |                                        | ones the spans that are missing     |
| `qcompile_write`   | [digest, size, offset, length]…, bytes | nothing                             |
| `qcompile_read`    | [digest, offset, length]…              | their bytes, which are not here     |
| `qcompile_moved`   |                                        | bytes and files that came and went  |

No message names a path. What goes wrong is answered as `error`, not raised: an exception would be pickled.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any
from weakref import WeakKeyDictionary

from ...errors import ArtifactError, InvalidOption, QCompileError
from .arriving import Writer
from .content import ContentStore

CHUNK_BYTES = 4 << 20
"""Of the bytes of one message."""
_MOST_FILES = 100_000
"""That one message may name."""
_AWAITED_S = 60.0
"""Of a file that another worker is giving; then it may come twice."""
Answer = dict[str, Any]
Handler = Callable[..., Awaitable[Answer]]

ARRIVING: WeakKeyDictionary[ContentStore, dict[str, asyncio.Future[None]]] = WeakKeyDictionary()
"""The files that a worker is fetching from others now."""


async def missing(content: ContentStore, *, digests: Sequence[str], verify: bool = False) -> Answer:
    """Tell which files are not here; one that is being fetched is waited for."""
    _require_few(digests)
    arriving = ARRIVING.get(content, {})
    awaited = {arriving[digest] for digest in digests if digest in arriving}
    if awaited and not verify:
        await asyncio.wait(awaited, timeout=_AWAITED_S)
    absent = await asyncio.to_thread(content.missing, digests, verify=verify)
    return {"missing": absent, "spans": content.begun(absent)}


async def write(content: ContentStore, *, parts: Sequence[Sequence[Any]], data: Any) -> Answer:
    """Take bytes of files that come one after the other in `data`."""
    _require_few(parts)
    await asyncio.to_thread(take_parts, content, parts, memoryview(data))
    return {}


async def read(content: ContentStore, *, parts: Sequence[Sequence[Any]]) -> Answer:
    """Give bytes of files, one after the other; those of absent files are left out."""
    _require_few(parts)
    data, absent = await asyncio.to_thread(_read, content, parts)
    content.moved.bytes_out += len(data)
    return {"data": uncopied(data), "missing": absent}


def uncopied(data: bytes) -> Any:
    """Return bytes as a message of Dask carries them in a frame of their own."""
    from distributed.protocol.serialize import Serialize

    wrap: Any = Serialize
    return wrap(data)


async def moved(content: ContentStore) -> Answer:
    """Tell what came and went."""
    return asdict(content.moved)


HANDLERS: dict[str, Callable[..., Awaitable[Answer]]] = {
    "qcompile_missing": missing,
    "qcompile_write": write,
    "qcompile_read": read,
    "qcompile_moved": moved,
}


def handlers(content: ContentStore) -> dict[str, Handler]:
    """Return the handlers of a worker, by name, for `worker.handlers`."""
    return {name: _bound(name, handler, content) for name, handler in HANDLERS.items()}


def take_parts(content: ContentStore, parts: Sequence[Sequence[Any]], data: memoryview) -> None:
    """Write bytes of several files, as `write_parts`, and count them."""
    content.moved.bytes_in += len(data)
    write_parts(content.writer, parts, data)


def write_parts(
    writer: Callable[[str, int], Writer], parts: Sequence[Sequence[Any]], data: memoryview
) -> None:
    """Write bytes of several files, which come one after the other.

    Args:
        writer: Returns what takes a file, given its digest and size.
        parts: Digest, size, offset and length of each.
        data: The bytes of all.

    Raises:
        InvalidOption: If a part is none, or there are more or fewer bytes than the parts say.
        ArtifactError: If a file has another digest (data: `digest`); the others were written.
        StorageError: If the disk is full.
    """
    wanted = [_numbers(part, 4) for part in parts]
    if sum(part[3] for part in wanted) != len(data):
        raise InvalidOption(f"{len(data)} bytes came; {sum(part[3] for part in wanted)} are required")
    at, damaged = 0, None
    for digest, size_bytes, offset, length in wanted:
        try:
            writer(digest, size_bytes).write(offset, data[at : at + length])
        except ArtifactError as error:
            damaged = damaged or error
        at += length
    if damaged is not None:
        raise damaged


def _read(content: ContentStore, parts: Sequence[Sequence[Any]]) -> tuple[bytes, list[str]]:
    chunks, absent = [], []
    wanted = [_numbers(part, 3) for part in parts]
    if sum(length for _, _, length in wanted) > CHUNK_BYTES:
        raise InvalidOption(f"more than {CHUNK_BYTES} bytes were asked for at once; fewer are required")
    for digest, offset, length in wanted:
        path = content.path(digest)
        if path is None:
            absent.append(digest)
            continue
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        try:
            chunk = os.pread(file, length, offset)
        finally:
            os.close(file)
        if len(chunk) != length:
            raise InvalidOption(f"{digest}: has no {length} bytes at {offset}", digest=digest)
        chunks.append(chunk)
    return b"".join(chunks), absent


def _numbers(part: Sequence[Any], count: int) -> Any:
    """A digest, and numbers of bytes; whether it is a digest is for the store to say."""
    if len(part) != count or not all(type(one) is int and one >= 0 for one in part[1:]):
        raise InvalidOption(f"part {str(part)[:80]}: a digest and {count - 1} numbers are required")
    return part


def _require_few(texts: Sequence[Any]) -> None:
    if len(texts) > _MOST_FILES:
        raise InvalidOption(f"{len(texts)} files in one message; at most {_MOST_FILES} are required")


def _bound(name: str, handler: Handler, content: ContentStore) -> Handler:
    async def answer(**message: Any) -> Answer:
        try:
            return await handler(content, **message)
        except QCompileError as error:
            return {"error": error.as_json()}
        except (OSError, TypeError, ValueError) as error:  # of the disk, or of a message of another shape
            return {"error": {"error": "ClusterError", "message": f"{name}: {error}", "hint": "", "data": {}}}

    answer.__name__ = name
    return answer
