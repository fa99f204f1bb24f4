"""A real Dask scheduler and workers, each in a process of its own, that can be killed, frozen and restarted.

    with running_cluster(tmp_path, workers=4) as cluster:
        cluster.workers["w1"].kill()

Each process writes to a log of its own in the folder, and has its temporary files there. Whatever happens,
all of them end, and what they started; where the block fails, the ends of the logs are printed, so that
pytest shows them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

START_S = 120.0
"""The most that a process may take to start; machines are busy."""
_MARK = "QCOMPILE_TEST_CLUSTER"
"""Environment variable that marks every process of a cluster, and every process that those start."""


class Member:
    """A process of a cluster.

    Args:
        name: For its log and messages.
        words: Its command.
        log: What it prints is added to this file.
        environment: All of its environment variables.
    """

    def __init__(self, name: str, words: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name, self.log = name, log
        with log.open("ab") as said:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, cwd=log.parent,
                env=dict(environment), start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def said(self) -> str:
        """Return all that it has printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def children(self) -> list[psutil.Process]:
        """Return the processes that it started, and those that they started."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """End it as the system does when memory is short; it cannot say goodbye."""
        self.process.kill()
        self.process.wait(30)

    def freeze(self) -> None:
        """Stop it where it stands."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self, timeout_s: float = 30.0) -> int:
        """Ask it to end, and return its exit code; it is killed where it does not."""
        self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


class Cluster:
    """A scheduler and workers on the loopback interface, or where they are told to listen.

    Args:
        folder: For logs, and the workers' stores.
        plain: Dask's own workers in place of qcompile's.
        host: Address to listen at; the port is any free one.
        security: Options of TLS that Dask's commands and `qcompile worker` take alike.
        environment: More environment variables of all processes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        plain: bool = False,
        host: str = "127.0.0.1",
        security: Mapping[str, Path] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.plain, self.host, self.security = folder, plain, host, dict(security or {})
        self.mark = uuid.uuid4().hex
        self._more = dict(environment or {})
        self.port = 0
        self.address = ""
        self.scheduler: Member | None = None
        self.workers: dict[str, Member] = {}
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)

    def start_scheduler(self, *, prefix: Sequence[str] = ()) -> None:
        """Start it, again on the same port where it ran before, and wait until it listens."""
        file = self.folder / "scheduler.json"
        file.unlink(missing_ok=True)
        protocol = "tls" if self.security else "tcp"
        words = [
            *prefix, sys.executable, "-m", "dask", "scheduler", "--host", f"{protocol}://{self.host}:{self.port}",
            "--scheduler-file", str(file), "--no-dashboard", "--dashboard-address", f"{self.host}:0",
            *self._tls("ca-file", "cert", "key"),
        ]  # fmt: skip
        self.scheduler = Member("scheduler", words, self.folder / "scheduler.log", self._environment())
        self.address = self._await(self.scheduler, lambda: _address(file))
        self.port = int(self.address.rpartition(":")[2])

    def start_worker(
        self,
        name: str,
        *,
        slots: int = 1,
        store: Path | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        host: str = "",
    ) -> Member:
        """Start a worker; `wait` until it has joined.

        Args:
            name: Of the worker; a later one of the same name has the same store and log.
            slots: Stages at a time.
            store: In place of a folder of its own.
            arguments: More words of its command.
            environment: More environment variables.
            prefix: Words before its command, such as those that limit it.
            host: Address to listen at, of Dask's own worker.
        """
        store = store or self.store(name)
        if self.plain:
            words = ["dask", "worker", self.address, "--name", name, "--nthreads", str(slots), "--no-nanny"]
            words += ["--no-dashboard", "--local-directory", str(store), *self._tls("ca-file", "cert", "key")]
            words += ["--host", host or self.host]
        else:
            words = ["qcompile", "worker", self.address, "--name", name, "--slots", str(slots)]
            words += ["--store", str(store), *self._tls("ca", "cert", "key")]
        words = [*prefix, sys.executable, "-m", *words, *arguments]
        member = Member(name, words, self.folder / f"{name}.log", self._environment(environment))
        self.workers[name] = member
        return member

    def store(self, name: str) -> Path:
        """Return the folder that a worker of this name keeps its files in."""
        return self.folder / f"{name}-store"

    def wait(self, *names: str) -> None:
        """Wait until these workers, or all that were started and live, have joined.

        Raises:
            RuntimeError: If one ends, or takes too long.
        """
        awaited = set(names) or {name for name, one in self.workers.items() if one.alive}
        with self.client() as client:
            for name in sorted(awaited):
                self._await(self.workers[name], lambda name=name: name in _joined(client))

    def wait_for_log(self, name: str, text: str, times: int = 1) -> None:
        """Wait until a member has printed a text so many times."""
        member = self.scheduler if name == "scheduler" else self.workers[name]
        assert member is not None
        self._await(member, lambda: member.said().count(text) >= times)

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        """A Dask client of the scheduler."""
        from distributed import Client
        from distributed.security import Security

        tls: dict[str, object] = {"require_encryption": bool(self.security)}
        for option, name in (("tls_ca_file", "ca"), ("tls_client_cert", "cert"), ("tls_client_key", "key")):
            tls |= {option: str(self.security[name])} if self.security else {}
        with Client(self.address, security=Security(**tls), timeout=START_S, set_as_default=False) as client:
            yield client

    def left(self) -> list[psutil.Process]:
        """Return every process of this cluster that lives, also those whose parent is gone."""
        return [
            process
            for process in psutil.process_iter()
            if process.pid != os.getpid() and self.mark in _environment_of(process).get(_MARK, "")
        ]

    def close(self) -> None:
        """End all processes at once."""
        for _ in range(5):  # one may be starting another just now
            found = self.left()
            if not found:
                break
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(found, timeout=10)
        for member in (self.scheduler, *self.workers.values()):
            if member is not None:
                member.process.kill()
                member.process.wait(30)

    def logs(self, characters: int = 6000) -> str:
        """Return the ends of all logs."""
        ends = [
            f"----- {path.name}\n{path.read_text(encoding='utf-8', errors='replace')[-characters:]}"
            for path in sorted(self.folder.glob("*.log"))
        ]
        return "\n".join(ends)

    def environment(self) -> dict[str, str]:
        """Return the variables of a process that belongs to this cluster, such as a client."""
        return self._environment()

    def _environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        own = {_MARK: self.mark, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        own |= {"TMPDIR": str(self.temporary), "DASK_TEMPORARY_DIRECTORY": str(self.folder / "dask")}
        own["DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT"] = "5s"  # of 30: so long a dead worker is called
        return {**os.environ, **own, **self._more, **(more or {})}

    def _tls(self, ca: str, cert: str, key: str) -> list[str]:
        flags = {"ca": ca, "cert": cert, "key": key}
        return [word for name, path in self.security.items() for word in (f"--tls-{flags[name]}", str(path))]

    def _await(self, member: Member, look: Callable[[], Any]) -> Any:
        """Return the first true value of `look`, called until the process ends or takes too long."""
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if value := look():
                return value
            if not member.alive:
                raise RuntimeError(f"{member.name} ended with {member.process.returncode}\n{member.said()}")
            time.sleep(0.05)
        raise RuntimeError(f"{member.name} did not start within {START_S:.0f} s\n{member.said()}")


@contextlib.contextmanager
def running_cluster(folder: Path, *, workers: int = 2, slots: int = 1, **options: Any) -> Iterator[Cluster]:
    """A scheduler and workers named w1, w2, ... that have joined; see `Cluster` for the options."""
    cluster = Cluster(folder, **options)
    try:
        cluster.start_scheduler()
        for number in range(1, workers + 1):
            cluster.start_worker(f"w{number}", slots=slots)
        if workers:
            cluster.wait()
        yield cluster
    except BaseException:
        print(cluster.logs())
        raise
    finally:
        cluster.close()


def end_on_sigterm() -> None:
    """Have a signal that ends this process run its `finally` blocks, which end its clusters."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def _address(file: Path) -> str:
    """The address in a scheduler's file; empty until it is written."""
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["address"])
    except (OSError, ValueError):
        return ""


def _joined(client: Any) -> set[str]:
    """Names of the workers that the scheduler knows."""
    return {str(one["name"]) for one in client.scheduler_info(n_workers=-1)["workers"].values()}


def _environment_of(process: psutil.Process) -> Mapping[str, str]:
    """Its environment variables; none where it has ended or is another user's."""
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}
