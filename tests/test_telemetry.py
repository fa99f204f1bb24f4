"""Nothing of ours reports to anybody: no connection but loopback, no file under a fresh home."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# ONNX Runtime 1.31.1 resolves its host 8.6 s after its import, OpenVINO 2026.4 at once. All wait together.
ALIVE_S = 10.0

PROGRAM = """
import os, sys, time
import qcompile
from qcompile.processes.worker import Worker

model, seconds = sys.argv[1], float(sys.argv[2])
began = time.monotonic()
with Worker("one", threads=1) as worker:
    worker.ask("load", artifact=model, threads=1, io=None)
    with qcompile.load(model):
        import openvino
        openvino.Core().compile_model(model, "CPU")
        time.sleep(max(began + seconds - time.monotonic(), 0))
"""

_PLACE = re.compile(r'sa_family=(\w+)(?:.*?(?:inet_addr\(|inet_pton\(AF_INET6, )"([^"]*)")?')


def why_no_strace() -> str:
    """Why system calls cannot be watched here; empty where they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    done = subprocess.run(["strace", "-f", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "strace is not permitted here"


def run(model: Path, home: Path, seconds: float, *before: str) -> None:
    home.mkdir()
    # Variables that would change what a runtime reports, or where: as a user has them, without.
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "ORT_DISABLE_TELEMETRY")}
    environment = kept | {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    command = [*before, sys.executable, "-c", PROGRAM, str(model), str(seconds)]
    subprocess.run(command, env=environment, check=True)


def test_no_file_is_left_in_a_fresh_home(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    run(tiny_file("residual"), tmp_path / "home", 0)
    assert [str(path) for path in (tmp_path / "home").rglob("*")] == []


def test_a_users_own_setting_does_not_switch_it_on() -> None:
    ask = "import os, qcompile; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "0"}
    done = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, check=True)
    assert done.stdout.strip() == b"1"


@pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace())
def test_processes_that_live_for_seconds_connect_to_nobody(
    tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    calls = tmp_path / "calls.txt"
    trace = ["strace", "-f", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o", str(calls)]
    run(tiny_file("residual"), tmp_path / "home", ALIVE_S, *trace)
    places = {found.groups() for found in map(_PLACE.search, calls.read_text().splitlines()) if found}
    away = {
        (family, address)
        for family, address in places
        if family in ("AF_INET", "AF_INET6") and not (address or "").startswith(("127.", "::1"))
    }
    assert not away
