"""A real Dask scheduler and workers, each in a process of its own, that can be killed and restarted.

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
import shutil
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
HAS_OPENSSL = shutil.which("openssl") is not None


class Member:
    """A process of a cluster; what it prints is added to its log."""

    def __init__(self, name: str, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        with self.log.open("ab") as said:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, cwd=folder,
                env=dict(environment), start_new_session=True,
            )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def children(self) -> list[psutil.Process]:
        """Return the processes that it started, and those that they started."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """End it as the system does when memory is short; it cannot say goodbye."""
        self.process.kill()
        self.process.wait(30)


class Cluster:
    """A scheduler and `qcompile worker`s on the loopback interface.

    Args:
        folder: For logs, and the workers' stores.
        security: Options of TLS that Dask's scheduler and `qcompile worker` take alike.
        environment: More environment variables of all processes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        security: Mapping[str, Path] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.security = folder, dict(security or {})
        self.mark, self._more = uuid.uuid4().hex, dict(environment or {})
        self.port, self.address = 0, ""
        self.scheduler: Member | None = None
        self.workers: dict[str, Member] = {}
        (folder / "tmp").mkdir(parents=True, exist_ok=True)

    def start_scheduler(self) -> None:
        """Start it, again on the same port where it ran before, and wait until it listens."""
        file = self.folder / "scheduler.json"
        file.unlink(missing_ok=True)
        protocol = "tls" if self.security else "tcp"
        words = [
            sys.executable, "-m", "dask", "scheduler", "--host", f"{protocol}://127.0.0.1:{self.port}",
            "--scheduler-file", str(file), "--no-dashboard", "--dashboard-address", "127.0.0.1:0",
            *self._tls({"ca": "ca-file", "cert": "cert", "key": "key"}),
        ]  # fmt: skip
        self.scheduler = Member("scheduler", words, self.folder, self.environment())
        self.address = self._await(self.scheduler, lambda: _address(file))
        self.port = int(self.address.rpartition(":")[2])

    def start_worker(
        self, name: str, *, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        """Start a worker; `wait` until it has joined. A later one of the same name has the same store."""
        words = [sys.executable, "-m", "qcompile", "worker", self.address, "--name", name]
        words += ["--store", str(self.store(name)), *self._tls({"ca": "ca", "cert": "cert", "key": "key"})]
        self.workers[name] = Member(name, [*words, *arguments], self.folder, self.environment(environment))

    def store(self, name: str) -> Path:
        """Return the folder that a worker of this name keeps its files in."""
        return self.folder / f"{name}-store"

    def wait(self, *names: str) -> None:
        """Wait until these workers, or all that were started and live, have joined."""
        awaited = set(names) or {name for name, one in self.workers.items() if one.alive}
        with self.client() as client:
            for name in sorted(awaited):
                self._await(self.workers[name], lambda name=name: name in _joined(client))

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

    def close(self) -> None:
        """End all processes at once, also those whose parent is gone."""
        for _ in range(5):  # one may be starting another just now
            found = [
                process
                for process in psutil.process_iter()
                if process.pid != os.getpid() and self.mark in _environment_of(process).get(_MARK, "")
            ]
            if not found:
                break
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(found, timeout=10)
        for member in (self.scheduler, *self.workers.values()):
            if member is not None:
                member.kill()

    def logs(self, characters: int = 6000) -> str:
        """Return the ends of all logs."""
        ends = [
            f"----- {path.name}\n{path.read_text(encoding='utf-8', errors='replace')[-characters:]}"
            for path in sorted(self.folder.glob("*.log"))
        ]
        return "\n".join(ends)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables of a process that belongs to this cluster, such as a client."""
        own = {_MARK: self.mark, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        own |= {"TMPDIR": str(self.folder / "tmp"), "DASK_TEMPORARY_DIRECTORY": str(self.folder / "dask")}
        own["DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT"] = "5s"  # of 30: so long a dead worker is called
        return {**os.environ, **own, **self._more, **(more or {})}

    def _tls(self, flags: Mapping[str, str]) -> list[str]:
        return [word for name, path in self.security.items() for word in (f"--tls-{flags[name]}", str(path))]

    def _await(self, member: Member, look: Callable[[], Any]) -> Any:
        """Return the first true value of `look`, called until the process ends or takes too long."""
        until = time.monotonic() + START_S
        while time.monotonic() < until and member.alive:
            if value := look():
                return value
            time.sleep(0.05)
        raise RuntimeError(f"{member.name} did not start within {START_S:.0f} s\n{self.logs()}")


@contextlib.contextmanager
def running_cluster(folder: Path, *, workers: int = 2, **options: Any) -> Iterator[Cluster]:
    """A scheduler and workers named w1, w2, ... that have joined; see `Cluster` for the options."""
    cluster = Cluster(folder, **options)
    try:
        cluster.start_scheduler()
        for number in range(1, workers + 1):
            cluster.start_worker(f"w{number}")
        if workers:
            cluster.wait()
        yield cluster
    except BaseException:
        print(cluster.logs())
        raise
    finally:
        cluster.close()


def another_version(folder: Path, package: str, version: str) -> dict[str, str]:
    """Return variables under which a package says that it has another version; its code is the same.

    The folder gets the metadata, which come first on the path.
    """
    place = folder / f"{package}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))}


def make_certificates(folder: Path) -> dict[str, Path]:
    """Make an authority, and a certificate for 127.0.0.1 that it signed, with the command line of OpenSSL.

    Returns:
        "ca", "cert" and "key" to their files, as `Cluster` and the options `--tls-ca`, ... take them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ca, ca_key, asked = folder / "ca.pem", folder / "ca-key.pem", folder / "cert.csr"
    cert, key, extensions = folder / "cert.pem", folder / "key.pem", folder / "cert.ext"
    extensions.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    new = ("req", "-newkey", "rsa:2048", "-nodes", "-subj")
    for words in (
        (*new, "/CN=authority of a test", "-x509", "-days", "2", "-keyout", ca_key, "-out", ca),
        (*new, "/CN=a host", "-keyout", key, "-out", asked),
        ("x509", "-req", "-in", asked, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2",
         "-extfile", extensions, "-out", cert),
    ):  # fmt: skip
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)
    key.chmod(0o600)
    return {"ca": ca, "cert": cert, "key": key}


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
