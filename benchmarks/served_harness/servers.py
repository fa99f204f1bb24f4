"""Start real servers of the Open Inference Protocol on free ports of this machine, each from its package.

| server   | package         | loads                                                                        |
|----------|-----------------|------------------------------------------------------------------------------|
| triton   | nvidia-pytriton | the repository that `qcompile package triton` wrote, by `triton_backend.py`   |
| mlserver | mlserver        | the ONNX file, by `mlserver_runtime.py`                                      |
| kserve   | kserve          | the ONNX file, by `kserve_server.py`                                         |

Their requirements contradict those of qcompile, so each has an environment of its own:

    python3 -m venv build/servers/triton && build/servers/triton/bin/pip install nvidia-pytriton onnxruntime
    python3 -m venv build/servers/mlserver && build/servers/mlserver/bin/pip install mlserver onnxruntime
    python3 -m venv build/servers/kserve && build/servers/kserve/bin/pip install kserve onnxruntime
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import qcompile

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[1] / "build/servers"
SERVERS = ("triton", "mlserver", "kserve")
NAME = "digits"
STARTED_S = 120.0


@dataclass(frozen=True)
class RunningServer:
    """A server that is ready.

    Attributes:
        name: One of `SERVERS`.
        http, grpc: Its ports.
    """

    name: str
    http: int
    grpc: int

    @property
    def addresses(self) -> dict[str, str]:
        """Transport to the address of the model."""
        kind = "triton" if self.name == "triton" else "kserve"
        return {
            "HTTP": f"{kind}:http://127.0.0.1:{self.http}/v2/models/{NAME}",
            "gRPC": f"{kind}:grpc://127.0.0.1:{self.grpc}/{NAME}",
        }


def python_of(name: str) -> Path | None:
    """Return the interpreter of a server's environment; None where there is none."""
    path = ENVIRONMENTS / name / "bin/python"
    return path if path.exists() else None


@contextlib.contextmanager
def running(name: str, model: Path) -> Iterator[RunningServer]:
    """Start a server with an ONNX file, and end it.

    Raises:
        RuntimeError: If it does not become ready, with its last lines.
    """
    python = python_of(name)
    if python is None:
        raise RuntimeError(f"{name}: build/servers/{name} is missing; {__file__} says how it is made")
    with tempfile.TemporaryDirectory(prefix="served-") as temporary:
        folder, http, grpc = Path(temporary), free_port(), free_port()
        words, environment = command(name, python, model.resolve(), folder, http, grpc)
        log = folder / "log.txt"
        with log.open("wb") as output:
            process = subprocess.Popen(
                words, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, stdout=output,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        try:
            wait_until_ready(process, http, log)
            yield RunningServer(name, http, grpc)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


def command(
    name: str, python: Path, model: Path, folder: Path, http: int, grpc: int
) -> tuple[list[str], dict[str, str]]:
    """Return the words that start a server, and what its environment needs."""
    if name == "triton":
        return triton_command(python, model, folder, http, grpc)
    if name == "kserve":
        return [str(python), str(HERE / "kserve_server.py"), str(model), str(http), str(grpc)], {}
    settings = {
        "debug": False, "host": "127.0.0.1", "http_port": http, "grpc_port": grpc,
        "metrics_port": free_port(), "parallel_workers": 0,
    }  # fmt: skip
    runtime = {
        "name": NAME, "implementation": "mlserver_runtime.OnnxModel", "parameters": {"uri": str(model)}
    }  # fmt: skip
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps(runtime))
    shutil.copy(HERE / "mlserver_runtime.py", folder)
    return [str(python.parent / "mlserver"), "start", "."], {}


def triton_command(
    python: Path, model: Path, folder: Path, http: int, grpc: int
) -> tuple[list[str], dict[str, str]]:
    """Return the command of Triton with a repository that qcompile packaged."""
    qcompile.package_triton(model, folder / "model_repository", name=NAME)
    packages = next(python.parents[1].glob("lib/python3*/site-packages"))
    server = packages / "pytriton/tritonserver"
    stub = server / "python_backend_stubs" / packages.parent.name.removeprefix("python")
    shutil.copytree(server / "backends/python", folder / "backends/python")
    shutil.copy(stub / "triton_python_backend_stub", folder / "backends/python")
    (folder / "backends/onnxruntime").mkdir()
    shutil.copy(HERE / "triton_backend.py", folder / "backends/onnxruntime/model.py")
    words = [
        str(server / "bin/tritonserver"), "--model-repository=model_repository",
        f"--backend-directory={folder / 'backends'}", "--http-address=127.0.0.1", f"--http-port={http}",
        "--grpc-address=127.0.0.1", f"--grpc-port={grpc}", "--allow-metrics=false",
    ]  # fmt: skip
    environment = {
        "LD_LIBRARY_PATH": str(packages / "nvidia_pytriton.libs"),
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(packages),
    }
    return words, environment


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the model takes requests.

    Raises:
        RuntimeError: If the server ends, or takes too long.
    """
    url, end = f"http://127.0.0.1:{port}/v2/models/{NAME}/ready", time.monotonic() + STARTED_S
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    said = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise RuntimeError(f"the server did not become ready (exit code {process.poll()}):\n{said}")


if __name__ == "__main__":
    with running(sys.argv[1], Path(sys.argv[2])) as server:
        print(*server.addresses.values(), sep="\n", flush=True)
        signal.pause()
