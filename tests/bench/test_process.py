"""Workers die, hang and fail alone, and say why."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from qcompile.bench.process import Worker
from qcompile.errors import DataError, MissingFile, WorkerError


def test_a_worker_loads_times_and_infers(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    feeds, outputs = tmp_path / "feeds.npz", tmp_path / "outputs.npz"
    np.savez(feeds, x=np.ones((2, 16), np.float32))
    with Worker("mlp", threads=1) as worker:
        loaded = worker.ask("load", artifact=str(tiny_file("mlp")), threads=1, io=None)
        assert loaded["load_ns"] > 0
        assert loaded["io"]["inputs"][0]["name"] == "x"
        worker.ask("feed", path=str(feeds))
        durations = worker.ask("time", iterations=5, discard=2)["ns"]
        assert len(durations) == 5
        assert min(durations) > 0
        worker.ask("infer", path=str(feeds), output=str(outputs))
        with np.load(outputs) as found:
            assert found["y"].shape == (2, 8)
        peak = worker.ask("memory")["peak_bytes"]
        assert 10e6 < peak < 1e9


def test_memory_is_the_workers_own_and_not_inherited() -> None:
    ballast = np.ones(400_000_000, np.uint8)
    with Worker("small", threads=1) as worker:
        assert worker.ask("memory")["peak_bytes"] < 300e6
    assert ballast[0] == 1


def test_an_error_of_the_artifact_keeps_its_type(tmp_path: Path) -> None:
    with Worker("gone", threads=1) as worker, pytest.raises(MissingFile, match="does not exist"):
        worker.ask("load", artifact=str(tmp_path / "no.onnx"), threads=1, io=None)


def test_wrong_feeds_are_an_error_and_the_worker_lives_on(
    tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    np.savez(tmp_path / "bad.npz", x=np.ones((2, 15), np.float32))
    np.savez(tmp_path / "good.npz", x=np.ones((2, 16), np.float32))
    with Worker("mlp", threads=1) as worker:
        worker.ask("load", artifact=str(tiny_file("mlp")), threads=1, io=None)
        with pytest.raises(DataError, match="2x15"):
            worker.ask("feed", path=str(tmp_path / "bad.npz"))
        worker.ask("feed", path=str(tmp_path / "good.npz"))
        assert worker.ask("time", iterations=1)["ns"]


def crashing_model(tmp_path: Path, body: str) -> str:
    """A model that only misbehaves inside the worker."""
    path = tmp_path / "crash.py"
    path.write_text(
        "import os, sys, time, signal\n"
        "def build():\n"
        f"    print('about to misbehave', file=sys.stderr, flush=True)\n    {body}\n"
    )
    return f"{path}:build"


def test_a_killed_worker_is_reported_with_its_last_output(tmp_path: Path) -> None:
    model = crashing_model(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    with Worker("victim", threads=1) as worker, pytest.raises(WorkerError) as caught:
        worker.ask("load", artifact=model, threads=1, io=None)
    assert "SIGKILL" in str(caught.value)
    assert "about to misbehave" in str(caught.value)


def test_a_hanging_worker_is_given_up(tmp_path: Path) -> None:
    model = crashing_model(tmp_path, "time.sleep(600)")
    start = time.monotonic()
    with (
        Worker("sleeper", threads=1, timeout_s=3.0) as worker,
        pytest.raises(WorkerError, match="gave no answer to 'load' for 3 s"),
    ):
        worker.ask("load", artifact=model, threads=1, io=None)
    assert time.monotonic() - start < 30


def test_what_a_model_prints_does_not_disturb_the_answers(tmp_path: Path) -> None:
    path = tmp_path / "noisy.py"
    path.write_text(
        "import os, torch\n"
        "def build():\n"
        "    print('{\"ok\": false}')\n    os.system('echo noise')\n    return torch.nn.Identity()\n"
    )
    with Worker("noisy", threads=1) as worker:
        assert worker.ask("load", artifact=f"{path}:build", threads=1, io=None)["ok"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_worker_ends_when_its_caller_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "caller.py"
    script.write_text(
        "import os, signal\n"
        "from qcompile.bench.process import Worker\n"
        "worker = Worker('orphan', threads=1)\n"
        "worker.ask('memory')\n"
        "print(worker._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    import subprocess

    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the worker outlived its caller"
        time.sleep(0.05)
    assert os.getpid() != pid
