"""Files go from machine to machine: once, whole, and with little memory, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("distributed", reason="the extra cluster is not installed")

from distributed import Client, Scheduler, Worker
from distributed.protocol import to_serialize

from qcompile.cluster.files.content import ContentStore
from qcompile.cluster.files.transfer import CHUNK_BYTES, fetch, handlers, pull, push
from qcompile.cluster.messages import FileRef
from qcompile.errors import ArtifactError, ClusterError, StorageError
from qcompile.files import digest_files

LARGE_BYTES = 160 << 20
Test = Callable[["Machines"], Coroutine[Any, Any, None]]


@dataclass
class Machines:
    """A scheduler, two workers with stores and a client, on the event loop of the test."""

    folder: Path
    scheduler: Scheduler
    client: Client
    workers: list[Worker] = field(default_factory=list)
    stores: list[ContentStore] = field(default_factory=list)

    def rpc(self, worker: int) -> Any:
        return self.client.rpc(self.workers[worker].address)

    def file(self, data: bytes, name: str = "") -> tuple[str, Path]:
        """Write a file of the client; return its digest and path."""
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        path = self.folder / (name or digest[7:27])
        path.write_bytes(data)
        return digest, path


@contextlib.asynccontextmanager
async def machines(folder: Path) -> AsyncIterator[Machines]:
    async with contextlib.AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(
            Scheduler(host="127.0.0.1", port=0, dashboard=False)  # type: ignore[no-untyped-call]
        )
        client = await stack.enter_async_context(Client(scheduler.address, asynchronous=True))
        found = Machines(folder, scheduler, client)
        for number in range(2):
            store = ContentStore(folder / f"worker{number}")
            stack.callback(store.close)
            worker = Worker(
                scheduler.address, nthreads=1, dashboard=False, local_directory=str(folder / "dask")
            )
            worker.handlers.update(handlers(store))
            found.workers.append(await stack.enter_async_context(worker))
            found.stores.append(store)
        yield found


def with_machines(test: Test) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        async def inside() -> None:
            async with machines(tmp_path) as given:
                await test(given)

        asyncio.run(asyncio.wait_for(inside(), 120))

    # Pytest reads the name and the arguments of what it calls.
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def refs(files: dict[str, Path]) -> list[FileRef]:
    return [FileRef(path.name, digest, path.stat().st_size) for digest, path in files.items()]


SIZES = (0, 1, 5, 1000, 100_000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 7)


@with_machines
async def test_files_go_round_and_each_once(given: Machines) -> None:
    """Client to worker, worker to worker, worker to client; several ask for the same at a time."""
    files = dict(given.file(os.urandom(size)) for size in SIZES)
    total = sum(path.stat().st_size for path in files.values())
    told: list[tuple[int, int | None]] = []

    def progress(_: str, done: int = 0, of: int | None = None, /) -> None:
        told.append((done, of))

    sent = await asyncio.gather(*(push(given.rpc(0), files, progress=progress) for _ in range(3)))
    assert sum(one.bytes_out for one in sent) == total
    assert told[-1] == (total, total)
    first, second = given.stores
    assert (first.moved.files_in, first.moved.files_again, first.moved.bytes_in) == (len(SIZES), 0, total)
    worker, holder = given.workers[1], given.workers[0].address
    absent = await asyncio.gather(
        *(fetch(worker, second, refs(files)[number:], [holder]) for number in range(3))
    )
    assert absent == [[], [], []]
    assert (second.moved.files_in, second.moved.files_again, second.moved.bytes_in) == (len(SIZES), 0, total)
    assert first.moved.bytes_out == total
    targets = {
        digest: (given.folder / "here" / path.name, path.stat().st_size) for digest, path in files.items()
    }
    came = await pull(given.rpc(1), targets)
    assert (came.files_in, came.bytes_in) == (len(SIZES), total)
    for path in files.values():
        assert (given.folder / "here" / path.name).read_bytes() == path.read_bytes()
    assert len(list((given.folder / "here").iterdir())) == len(SIZES)
    assert await given.rpc(0).qcompile_moved() == {
        "bytes_in": total, "bytes_out": total, "files_in": len(SIZES), "files_again": 0,
    }  # fmt: skip
    assert (await push(given.rpc(1), files)).bytes_out == 0  # it has them all


@with_machines
async def test_a_thousand_small_files_take_few_messages(given: Machines) -> None:
    files = dict(given.file(f"file {number}".encode()) for number in range(1500))
    worker, asked = given.workers[0], []
    write = worker.handlers["qcompile_write"]

    async def counted(**message: Any) -> Any:
        asked.append(len(message["parts"]))
        return await write(**message)

    worker.handlers["qcompile_write"] = counted
    await push(given.rpc(0), files)
    assert sum(asked) == 1500
    assert len(asked) == 2


@with_machines
async def test_what_nobody_has_is_told(given: Machines) -> None:
    files = dict(given.file(data) for data in (b"here", b"elsewhere"))
    here, elsewhere = files
    await push(given.rpc(0), {here: files[here]})
    worker, holders = given.workers[1], [given.workers[0].address, given.workers[1].address]
    assert await fetch(worker, given.stores[1], refs(files), holders) == [elsewhere]
    assert await fetch(worker, given.stores[1], refs(files), []) == [elsewhere]
    targets = {
        digest: (given.folder / "here" / path.name, path.stat().st_size) for digest, path in files.items()
    }
    with pytest.raises(ClusterError, match="has 1 of 2 files no more") as told:
        await pull(given.rpc(0), targets)
    assert told.value.data["missing"] == [elsewhere]


@with_machines
async def test_a_damaged_file_is_removed_where_it_lies_and_fetched_elsewhere(given: Machines) -> None:
    data = os.urandom(CHUNK_BYTES + 100)
    digest, path = given.file(data)
    small, beside = given.file(b"small")
    files = {digest: path, small: beside}
    for number in (0, 1):
        await push(given.rpc(number), files)
    damaged = given.stores[0].path(digest)
    assert damaged is not None
    times = damaged.stat()
    os.chmod(damaged, 0o600)
    with damaged.open("r+b") as file:
        file.seek(CHUNK_BYTES + 5)
        file.write(b"!")
    os.utime(damaged, ns=(times.st_atime_ns, times.st_mtime_ns))
    targets = {one: (given.folder / "here" / at.name, at.stat().st_size) for one, at in files.items()}
    with pytest.raises(ArtifactError, match="digest"):
        await pull(given.rpc(0), targets)
    assert given.stores[0].path(digest) is None
    assert not (given.folder / "here" / path.name).exists()
    holders = [given.workers[1].address]
    assert await fetch(given.workers[0], given.stores[0], refs(files), holders) == []
    assert given.stores[0].missing([digest], verify=True) == []


@with_machines
async def test_a_file_that_changed_since_it_was_digested_is_refused(given: Machines) -> None:
    digest, path = given.file(b"before")
    path.write_bytes(b"after!")
    with pytest.raises(ArtifactError, match=f"{path}: was changed"):
        await push(given.rpc(0), {digest: path})
    path.write_bytes(b"")
    with pytest.raises(ArtifactError, match=f"{path}: was changed"):
        await push(given.rpc(0), {digest: path})
    assert given.stores[0].path(digest) is None


@with_machines
async def test_messages_that_ask_for_anything_else_are_refused(given: Machines) -> None:
    """A peer names no paths, and no more bytes than a message holds; nothing is pickled in return."""
    (given.folder / "worker0" / "secret").write_bytes(b"secret")
    digest, path = given.file(bytes(100))
    await push(given.rpc(0), {digest: path})
    rpc = given.rpc(0)
    for name in ("../secret", "/etc/passwd", str(given.folder / "worker0" / "secret"), "sha256:../../secret"):
        for answer in (
            await rpc.qcompile_read(parts=[(name, 0, 6)]),
            await rpc.qcompile_missing(digests=[name]),
            await rpc.qcompile_write(parts=[(name, 6, 0, 6)], data=to_serialize(b"secret")),
        ):
            assert answer["error"]["error"] == "InvalidOption", name
    for parts in ([(digest, 0, CHUNK_BYTES + 1)], [(digest, -1, 1)], [(digest, 0)], [(digest, 0, "1")], 3):
        assert (await rpc.qcompile_read(parts=parts))["error"], parts
    assert (await rpc.qcompile_read(parts=[(digest, 50, 51)]))["error"]
    assert (await rpc.qcompile_write(parts=[(digest, 5, 0, 6)], data=to_serialize(b"123456")))["error"]
    assert (await rpc.qcompile_write(parts=[(digest, 100, 0, 6)], data=to_serialize(b"1")))["error"]
    assert (await rpc.qcompile_write(anything=1))["error"]
    assert given.stores[0].missing([digest], verify=True) == []


@with_machines
async def test_a_full_disk_of_a_worker_is_told_as_such(given: Machines) -> None:
    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    digest, path = given.file(b"data")
    pwrite, os.pwrite = os.pwrite, full  # type: ignore[assignment]
    try:
        with pytest.raises(StorageError, match="No space left"):
            await push(given.rpc(0), {digest: path})
    finally:
        os.pwrite = pwrite
    assert (await push(given.rpc(0), {digest: path})).bytes_out == 4


@with_machines
async def test_a_worker_without_the_plugin_is_told_as_such(given: Machines) -> None:
    digest, path = given.file(b"data")
    with pytest.raises(ClusterError, match="qcompile worker"):
        await push(given.client.rpc(given.scheduler.address), {digest: path})


HOLDER = """
import asyncio, sys
from pathlib import Path
from distributed import Worker
from qcompile.cluster.files.content import ContentStore
from qcompile.cluster.files.transfer import handlers

async def main():
    content = ContentStore(Path(sys.argv[2]))
    async with Worker(sys.argv[1], nthreads=1, dashboard=False, local_directory=sys.argv[2]) as worker:
        worker.handlers.update(handlers(content))
        print(worker.address, flush=True)
        await asyncio.sleep(300)

asyncio.run(main())
"""


@contextlib.contextmanager
def process_of_a_worker(scheduler: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A worker in a process of its own, that can be killed; the first line that it prints is its address."""
    with (folder / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, scheduler, str(folder / "other")],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.communicate(timeout=60)


def peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    pytest.skip("the system does not tell the largest memory of a process")


@with_machines
async def test_a_large_file_takes_little_memory_and_survives_its_holder(given: Machines) -> None:
    """160 MB go to a worker of another process, which is killed while a third one reads them."""
    path = given.folder / "large"
    with path.open("wb") as file:  # mostly holes: the disk of the client is spared
        file.truncate(LARGE_BYTES)
        file.write(b"begin")
    digest = digest_files([path])
    size = FileRef("large", digest, LARGE_BYTES)
    started = functools.partial(process_of_a_worker, given.scheduler.address, given.folder)
    with started() as process:
        assert process.stdout is not None
        address = (await asyncio.to_thread(process.stdout.readline)).strip()
        before, here = peak_bytes(process.pid), psutil.Process().memory_info().rss
        largest = [here]

        def progress(*_: object) -> None:
            largest[0] = max(largest[0], psutil.Process().memory_info().rss)

        await push(given.client.rpc(address), {digest: path}, progress=progress)
        assert peak_bytes(process.pid) - before < LARGE_BYTES // 3
        assert largest[0] - here < LARGE_BYTES // 3
        moved = await given.client.rpc(address).qcompile_moved()
        assert (moved["bytes_in"], moved["files_in"]) == (LARGE_BYTES, 1)

        def kill_in_the_middle(_: str, done: int = 0, *__: object) -> None:
            if done > LARGE_BYTES // 4:
                process.kill()

        store, worker = given.stores[1], given.workers[1]
        assert await fetch(worker, store, [size], [address], progress=kill_in_the_middle) == [digest]
    assert store.path(digest) is None
    came = store.moved.bytes_in
    assert LARGE_BYTES // 4 < came < LARGE_BYTES
    # The client brings what is missing; what came before stays.
    sent = await push(given.rpc(1), {digest: path})
    assert sent.bytes_out == LARGE_BYTES - came
    assert store.missing([digest], verify=True) == []


@with_machines
async def test_a_lost_holder_is_followed_by_the_next(given: Machines) -> None:
    digest, path = given.file(os.urandom(100))
    await push(given.rpc(0), {digest: path})
    gone = "tcp://127.0.0.1:9"  # nobody listens
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("qcompile.cluster.files.transfer._GREETED_S", 0.5)
        patched.setattr("random.shuffle", lambda _: None)
        holders = [gone, given.workers[0].address]
        assert await fetch(given.workers[1], given.stores[1], refs({digest: path}), holders) == []
        assert await fetch(given.workers[1], given.stores[1], refs({digest: path}), [gone]) == []
