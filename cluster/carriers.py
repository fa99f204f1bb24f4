"""What carries chunks between machines: Dask's workers, or a store that all machines reach (fsspec).

Dask holds a chunk as a value of one worker, spills it to disk where memory is short, and moves it from that
worker to whoever asks. Its scheduler learns where each chunk is, and never sees one.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Coroutine, Iterator, MutableMapping, Sequence
from typing import Any

from ..errors import EngineUnavailable, InvalidOption, StorageError, first_line


class MissingChunk(Exception):
    """Nobody has a chunk: its worker was lost, or it was never uploaded."""


class WorkerCarrier:
    """Chunks as Dask values, seen from a worker; they are kept for the client of this id.

    `wait` carries out a coroutine on the worker's loop.
    """

    def __init__(self, worker: Any, client: str, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._worker, self._client, self._wait = worker, client, wait

    def get(self, key: str) -> bytes:
        """Return a chunk."""
        return bytes(self._wait(self._get(key)))

    def put(self, key: str, chunk: bytes) -> None:
        """Keep a chunk on this worker."""
        self._wait(self._put(key, chunk))

    async def _get(self, key: str) -> Any:
        if key in self._worker.data:
            return self._worker.data[key]
        return await _from_workers(key, self._worker.scheduler, self._worker.rpc)

    async def _put(self, key: str, chunk: bytes) -> None:
        # What `Client.scatter` does within a task, in the name of the client that asked for the stage: the
        # scheduler lets the chunk go when that client does.
        self._worker.update_data(data={key: chunk})
        await self._worker.scheduler.update_data(
            who_has={key: [self._worker.address]}, nbytes={key: len(chunk)}, client=self._client
        )


class ClientCarrier:
    """Chunks as Dask values, seen from a client, which puts them on the worker of this address.

    `futures` takes what keeps the chunks that are put: workers forget a chunk with its future.
    """

    def __init__(self, client: Any, futures: MutableMapping[str, Any], worker: str = "") -> None:
        self._client, self._futures, self._worker = client, futures, worker

    def get(self, key: str) -> bytes:
        """Return a chunk from the worker that has it."""
        return bytes(self._client.sync(_from_workers, key, self._client.scheduler, self._client.rpc))

    def put(self, key: str, chunk: bytes) -> None:
        """Keep a chunk on the worker."""
        try:
            scattered = self._client.scatter({key: chunk}, workers=[self._worker], direct=True, timeout=10)
        except (OSError, TimeoutError, ValueError, KeyError) as error:
            raise MissingChunk(key) from error
        self._futures[key] = scattered[key]

    def hold(self, keys: Sequence[str]) -> None:
        """Keep chunks that a worker put for this client."""
        from distributed import Future

        self._futures.update({key: Future(key, self._client) for key in keys})


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
        """Return a chunk."""
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


Carrier = WorkerCarrier | ClientCarrier | StoreCarrier


async def _from_workers(key: str, scheduler: Any, rpc: Any) -> Any:
    """A chunk from a worker that has it. Dask's `gather` asks the scheduler for it where that fails."""
    from distributed.utils_comm import gather_from_workers

    who_has = await scheduler.who_has(keys=[key])
    found = (await gather_from_workers(who_has, rpc=rpc))[0] if who_has.get(key) else {}
    if key not in found:
        raise MissingChunk(key)
    return found[key]
