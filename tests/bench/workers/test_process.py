"""Workers die, hang and fail alone, and say why."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from qcompile.bench.workers.arrays import load_arrays
from qcompile.bench.workers.process import Worker
from qcompile.errors import DataError, MissingFile, QCompileError, WorkerError


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
        assert load_arrays(outputs)["y"].shape == (2, 8)
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
    with Worker("sleeper", threads=1) as worker:
        with pytest.raises(WorkerError):
            worker.ask("load", timeout_s=0.5, artifact=model, threads=1, io=None)
        wait_until_gone(worker.pid)


def test_a_model_out_of_memory_is_reported_and_not_the_end_of_the_caller(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); bytearray(1 << 32)"
    with Worker("large", threads=1) as worker, pytest.raises(QCompileError, match="MemoryError") as caught:
        worker.ask("load", artifact=crashing_model(tmp_path, limit), threads=1, io=None)
    assert "about to misbehave" in str(caught.value.data["output"])


def test_one_answer_may_be_waited_for_less_long_than_others(tmp_path: Path) -> None:
    with Worker("sleeper", threads=1) as worker, pytest.raises(WorkerError, match="for 1 s"):
        worker.ask("load", timeout_s=1.0, artifact=crashing_model(tmp_path, "time.sleep(600)"), threads=1)


def test_what_a_worker_started_ends_with_it(tmp_path: Path) -> None:
    body = "print(__import__('subprocess').Popen(['sleep', '600']).pid, file=sys.stderr); os._exit(1)"
    with Worker("parent", threads=1) as worker, pytest.raises(WorkerError, match="exit code 1") as caught:
        worker.ask("load", artifact=crashing_model(tmp_path, body), threads=1, io=None)
    wait_until_gone(int(str(caught.value.data["output"]).split()[-1]))


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.05)


def idle_cpu_s(worker: Worker, seconds: float) -> float:
    """Processor time that a worker which is asked nothing uses in so many seconds."""
    process = psutil.Process(worker.pid)
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system)


def test_a_worker_that_has_answered_uses_no_processor(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    """ONNX Runtime's threads spin for some 50 ms behind a call: the answer comes after that."""
    np.savez(tmp_path / "feeds.npz", x=np.ones((64, 4, 8, 8), np.float32))
    with Worker("residual", threads=2) as worker:
        worker.ask("load", artifact=str(tiny_file("residual")), threads=2, io=None)
        worker.ask("feed", path=str(tmp_path / "feeds.npz"))
        assert worker.ask("time", iterations=200)["at_rest"] is True
        assert idle_cpu_s(worker, 1.0) <= 0.03  # one that spins uses 1 s, or its share of a busy machine


def test_a_worker_that_never_rests_says_so_and_can_be_frozen(tmp_path: Path) -> None:
    path = tmp_path / "restless.py"
    path.write_text(
        "import threading, torch\n"
        "def spin():\n    while True: pass\n"
        "def build():\n"
        "    threading.Thread(target=spin, daemon=True).start()\n"
        "    return torch.nn.Identity(), (torch.ones(1),)\n"
    )
    with Worker("restless", threads=1) as worker:
        name = worker.ask("load", artifact=f"{path}:build", threads=1, io=None)["io"]["inputs"][0]["name"]
        np.savez(tmp_path / "feeds.npz", **{name: np.ones(1, np.float32)})
        worker.ask("feed", path=str(tmp_path / "feeds.npz"))
        assert worker.ask("time", iterations=3)["at_rest"] is False
        assert idle_cpu_s(worker, 0.5) > 0.05  # the test can see it
        worker.freeze()
        assert idle_cpu_s(worker, 0.5) <= 0.02
        assert len(worker.ask("time", iterations=3)["ns"]) == 3  # being asked wakes it
        worker.freeze()  # and a frozen one can be ended


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
        "from qcompile.bench.workers.process import Worker\n"
        "worker = Worker('orphan', threads=1)\n"
        "worker.ask('memory')\n"
        "print(worker.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    wait_until_gone(int(done.stdout))


def test_a_worker_that_hangs_ends_too_when_its_caller_is_killed(tmp_path: Path) -> None:
    """It cannot read that its input ended, and it is stopped on top."""
    model = crashing_model(tmp_path, "time.sleep(600)")
    script = tmp_path / "caller.py"
    script.write_text(
        "import os, signal, threading, time\n"
        "from qcompile.bench.workers.process import Worker\n"
        "worker = Worker('orphan', threads=1)\n"
        "worker.ask('memory')\n"
        f"ask = dict(artifact={model!r}, threads=1, io=None)\n"
        "threading.Thread(target=worker.ask, args=('load',), kwargs=ask, daemon=True).start()\n"
        "time.sleep(0.5)\n"
        "worker.freeze()\n"
        "print(worker.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    wait_until_gone(int(done.stdout))
