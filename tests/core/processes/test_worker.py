"""Workers die, hang and fail alone, and say why; one watch over every child and its whole tree."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from onnx import helper

import qcompile
from qcompile.bench.diff.layers.compare import layer_diff
from qcompile.bench.measure.artifacts import parse_interpreters
from qcompile.core.processes.arrays import load_array, load_arrays, save_arrays
from qcompile.core.processes.child import Child, MemoryExceeded, TimeExceeded, module_command
from qcompile.core.processes.worker import Worker, read_answer
from qcompile.errors import (
    DataError,
    InvalidOption,
    MissingFile,
    ModelError,
    QCompileError,
    WorkerError,
)
from qcompile.model.sources.tensorflow import tensorflow_versions


def load(worker: Worker, artifact: str | Path, **options: Any) -> dict[str, Any]:
    return worker.ask("load", artifact=str(artifact), **{"threads": 1, "io": None, **options})


def test_a_worker_loads_times_and_infers(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    feeds, outputs = tmp_path / "feeds.npz", tmp_path / "outputs.npz"
    np.savez(feeds, x=np.ones((2, 16), np.float32))
    with Worker("mlp", module="qcompile.bench.worker", threads=1) as worker:
        loaded = load(worker, tiny_file("mlp"))
        assert loaded["load_ns"] > 0
        assert loaded["io"]["inputs"][0]["name"] == "x"
        worker.ask("feed", path=str(feeds))
        durations = worker.ask("time", iterations=5, discard=2)["ns"]
        assert len(durations) == 5
        assert min(durations) > 0
        worker.ask("infer", path=str(feeds), output=str(outputs))
        assert load_arrays(outputs)["y"].shape == (2, 8)
        assert 10e6 < worker.ask("memory")["peak_bytes"] < 1e9


def test_memory_is_the_workers_own_and_not_inherited() -> None:
    ballast = np.ones(400_000_000, np.uint8)
    with Worker("small", module="qcompile.bench.worker", threads=1) as worker:
        assert worker.ask("memory")["peak_bytes"] < 300e6
    assert ballast[0] == 1


def test_an_error_keeps_its_type_and_the_worker_lives_on(
    tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    np.savez(tmp_path / "bad.npz", x=np.ones((2, 15), np.float32))
    np.savez(tmp_path / "good.npz", x=np.ones((2, 16), np.float32))
    with Worker("mlp", module="qcompile.bench.worker", threads=1) as worker:
        with pytest.raises(MissingFile, match="does not exist"):
            load(worker, tmp_path / "no.onnx")
        load(worker, tiny_file("mlp"))
        with pytest.raises(DataError, match="2x15"):
            worker.ask("feed", path=str(tmp_path / "bad.npz"))
        worker.ask("feed", path=str(tmp_path / "good.npz"))
        assert worker.ask("time", iterations=1)["ns"]


def crashing_model(tmp_path: Path, body: str) -> str:
    """A model that only misbehaves inside the worker."""
    path = tmp_path / "crash.py"
    path.write_text(
        "import os, resource, subprocess, sys, threading, time, signal, torch\n"
        "def spin():\n    while True: pass\n"
        "def build():\n"
        f"    print('about to misbehave', file=sys.stderr, flush=True)\n    {body}\n"
        "    return torch.nn.Identity(), (torch.ones(1),)\n"
    )
    return f"{path}:build"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); bytearray(1 << 32)", "MemoryError"),
    ],
)
def test_what_dies_is_reported_with_its_last_output(tmp_path: Path, body: str, words: str) -> None:
    with (
        Worker("victim", module="qcompile.bench.worker", threads=1) as worker,
        pytest.raises(QCompileError, match=words) as caught,
    ):
        load(worker, crashing_model(tmp_path, body))
    assert isinstance(caught.value, WorkerError) == (words != "MemoryError")
    assert "about to misbehave" in str(caught.value.data["output"])


def test_a_hanging_worker_is_given_up(tmp_path: Path) -> None:
    model = crashing_model(tmp_path, "time.sleep(600)")
    for timeout_s, ask_s, words in ((1.0, 600.0, "no answer to 'load' for 1 s"), (600.0, 2.0, "for 2 s")):
        with Worker("sleeper", module="qcompile.bench.worker", threads=1, timeout_s=timeout_s) as worker:
            with pytest.raises(WorkerError, match=words):
                load(worker, model, timeout_s=ask_s)
            wait_until_gone(worker.pid)


def test_what_a_worker_started_ends_with_it(tmp_path: Path) -> None:
    body = "print(subprocess.Popen(['sleep', '600']).pid, file=sys.stderr, flush=True); os._exit(1)"
    with (
        Worker("parent", module="qcompile.bench.worker", threads=1) as worker,
        pytest.raises(WorkerError, match="exit code 1") as caught,
    ):
        load(worker, crashing_model(tmp_path, body))
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
    with Worker("residual", module="qcompile.bench.worker", threads=2) as worker:
        load(worker, tiny_file("residual"), threads=2)
        worker.ask("feed", path=str(tmp_path / "feeds.npz"))
        assert worker.ask("time", iterations=200)["at_rest"] is True
        assert idle_cpu_s(worker, 1.0) <= 0.03  # one that spins uses 1 s, or its share of a busy machine


def test_a_worker_that_never_rests_says_so_and_can_be_frozen(tmp_path: Path) -> None:
    noise = "print('{\"ok\": false}'); os.system('echo noise')"  # does not disturb the answers
    model = crashing_model(tmp_path, f"{noise}; threading.Thread(target=spin, daemon=True).start()")
    with Worker("restless", module="qcompile.bench.worker", threads=1) as worker:
        name = load(worker, model)["io"]["inputs"][0]["name"]
        np.savez(tmp_path / "feeds.npz", **{name: np.ones(1, np.float32)})
        worker.ask("feed", path=str(tmp_path / "feeds.npz"))
        assert worker.ask("time", iterations=3)["at_rest"] is False
        assert idle_cpu_s(worker, 0.5) > 0.05  # the test can see it
        worker.freeze()
        assert idle_cpu_s(worker, 0.5) <= 0.02
        assert len(worker.ask("time", iterations=3)["ns"]) == 3  # being asked wakes it
        worker.freeze()  # and a frozen one can be ended


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("hangs", [False, True])
def test_a_worker_ends_when_its_caller_is_killed(tmp_path: Path, hangs: bool) -> None:
    """One that hangs cannot read that its input ended, and it is stopped on top."""
    model = crashing_model(tmp_path, "time.sleep(600)")
    script = tmp_path / "caller.py"
    script.write_text(
        "import os, signal, threading, time\n"
        "from qcompile.core.processes.worker import Worker\n"
        "worker = Worker('orphan', module='qcompile.bench.worker', threads=1)\n"
        "worker.ask('memory')\n"
        f"if {hangs}:\n"
        f"    ask = dict(artifact={model!r}, threads=1, io=None)\n"
        "    threading.Thread(target=worker.ask, args=('load',), kwargs=ask, daemon=True).start()\n"
        "    time.sleep(0.5)\n"
        "    worker.freeze()\n"
        "print(worker.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    wait_until_gone(int(done.stdout))


def script(path: Path, *lines: str) -> str:
    """A shell script that runs this Python."""
    path.write_text("#!/bin/sh\n" + "\n".join(lines) + "\n")
    path.chmod(0o755)
    return str(path)


def test_a_worker_runs_these_files_where_qcompile_is_not_installed(tmp_path: Path) -> None:
    command = module_command("qcompile.core.progress")
    command.insert(1, "-S")  # without installed packages, and without an installed qcompile
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(command[-2]) == Path(qcompile.__file__).parent.resolve()


def test_another_interpreter_runs_these_files_and_needs_no_installation(tmp_path: Path) -> None:
    python = script(tmp_path / "python", f'cd / && {sys.executable} -I "$@"')  # no exec, no PYTHONPATH
    with Worker("there", module="qcompile.bench.worker", threads=1, python=python) as worker:
        answer = worker.hello()
        assert answer["python"] == sys.version.split()[0]
        assert answer["started_ms"] > 0
        assert worker.ask("memory")["peak_bytes"] > 1e6


def test_what_is_no_interpreter_is_refused_with_what_it_said(tmp_path: Path) -> None:
    silent = script(tmp_path / "silent", "echo no python here >&2; exit 3")
    with pytest.raises(InvalidOption, match="no python here"):
        parse_interpreters([f"openvino={silent}"]).why_not_run("openvino")
    text = tmp_path / "text"
    text.write_text("not a program")
    text.chmod(0o755)
    with pytest.raises(InvalidOption, match="cannot be run"):
        Worker("text", module="qcompile.bench.worker", threads=1, python=str(text))


@pytest.mark.parametrize(
    ("texts", "error", "words"),
    [
        *(([text], InvalidOption, "ENGINE=INTERPRETER") for text in ("openvino", "=python", "openvino=")),
        ([f"openvin={sys.executable}"], InvalidOption, "did you mean 'openvino'"),
        (["openvino=/no/python"], MissingFile, "/no/python"),
        ([f"openvino={sys.executable}"] * 2, InvalidOption, "twice"),
    ],
)
def test_wrong_spellings_engines_and_executables_are_refused(
    texts: list[str], error: type[QCompileError], words: str
) -> None:
    with pytest.raises(error, match=words):
        parse_interpreters(texts)


ERROR = {"ok": False, "type": "BuildError", "message": "it failed", "hint": ""}


@pytest.mark.parametrize("answer", [{"ok": True}, {"ok": True, "ns": [1]}, {"progress": [3]}, ERROR])
def test_an_answer_is_read(answer: dict[str, object]) -> None:
    assert read_answer(json.dumps(answer).encode() + b"\n") == answer


@pytest.mark.parametrize(
    "line",
    [
        b"", b"\xff", b"7", b"[]", b"null", b"{}", b'{"ok": 1}', b'{"ok": "yes"}', b'{"ok": false}',
        b"[" * 100_000, b'{"progress": "half"}', json.dumps({**ERROR, "message": 5}).encode(), b"9" * 5000,
    ],
)  # fmt: skip
def test_anything_else_is_none(line: bytes) -> None:
    assert read_answer(line) is None


def test_a_wait_of_any_length_can_be_asked_for() -> None:
    with Worker("tiny", module="qcompile.bench.worker", threads=1, timeout_s=1e300) as worker:
        assert worker.hello()["ok"] is True


NAMES = ["file", "allow_pickle", "x", "x.npy", ":x:", ":", "a/b", "../up", "/root", "self", "kwds", "名", ""]


def test_names_that_numpy_keeps_for_itself_and_paths_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    arrays = {name: np.full(3, number, np.float32) for number, name in enumerate(NAMES)}
    save_arrays(folder / "all.npz", arrays)
    found = load_arrays(folder / "all.npz")
    assert list(found) == NAMES
    for name, array in arrays.items():
        assert (found[name] == array).all()
        assert (load_array(folder / "all.npz", name) == array).all()
    assert [path.name for path in tmp_path.rglob("*")] == ["inside", "all.npz"]


def test_files_that_numpy_wrote_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones(2), y=np.zeros(2))
    assert list(load_arrays(tmp_path / "x.npz")) == ["x", "y"]
    assert load_array(tmp_path / "x.npz", "x").sum() == 2


def test_texts_that_are_objects_become_numpys_texts(tmp_path: Path) -> None:
    texts = np.array(["a", "漢字", ""], dtype=object)
    save_arrays(tmp_path / "t.npz", {"texts": texts})
    loaded = load_arrays(tmp_path / "t.npz")["texts"]
    assert loaded.dtype.kind == "U"
    assert loaded.tolist() == texts.tolist()


def test_objects_are_never_pickled(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pickle"):
        save_arrays(tmp_path / "x.npz", {"x": np.array([object()])})


def test_nothing_but_the_arrays_is_written_with_a_numpy_before_2_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Found on numpy 1.26, whose `savez(file, *args, **kwds)` took `allow_pickle` for an array."""
    written: list[str] = []
    monkeypatch.setattr(np, "savez", lambda _, **kwds: written.extend(kwds))
    save_arrays(tmp_path / "x.npz", {"x": np.ones(2), "y": np.ones(3)})
    assert written == [":x:", ":y:"]


@pytest.mark.usefixtures("short_blocks")
def test_tensors_called_file_and_allow_pickle_are_compared_and_measured(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["file", "../up"], ["sum"]),
            helper.make_node("Relu", ["sum"], ["allow_pickle"]),
        ],
        "names",
        [helper.make_tensor_value_info(name, 1, ["batch", 3]) for name in ("file", "../up")],
        [helper.make_tensor_value_info("allow_pickle", 1, ["batch", 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "names.onnx"
    onnx.save(model, path)
    assert qcompile.diff(str(path), str(path))
    assert layer_diff(str(path), str(path), samples=2)
    results = qcompile.benchmark([str(path)], baseline=str(path), threads=1, max_time_s=0.01)
    assert [row.status for row in results.rows] == ["measured"]


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
LEADER = """
import subprocess, sys, time
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(inner.pid, flush=True)
time.sleep(600)
"""


def test_a_child_that_only_ends_gives_its_exit_code_and_its_last_output() -> None:
    program = "import sys; print('first\\nlast', file=sys.stderr); sys.exit(7)"
    with tempfile.TemporaryFile() as log, Child([sys.executable, "-c", program], stderr=log) as child:
        assert child.wait() == 7
        assert child.cause() == "exit code 7"
        assert child.last_output() == "first\nlast"


def test_a_child_is_waited_for_no_longer_than_its_limits() -> None:
    with Child(SLEEPS) as child:
        with pytest.raises(TimeExceeded):
            child.wait(time_s=0.2)
        with pytest.raises(MemoryExceeded) as caught:
            child.wait(memory_gb=1e-4, time_s=30)
        assert 1e-4 < caught.value.args[0] < 1
    wait_until_gone(child.pid)


def test_what_nobody_wants_any_more_ends_the_wait_and_the_process(tmp_path: Path) -> None:
    class NotWanted(Exception):
        pass

    def check() -> None:
        raise NotWanted

    child = Child(SLEEPS)
    with child, pytest.raises(NotWanted):
        child.wait(check=check, time_s=30)
    wait_until_gone(child.pid)
    worker = Worker(
        "tiny",
        module="qcompile.bench.worker",
        threads=1,
        python=script(tmp_path / "python", "exec sleep 600"),
        timeout_s=30,
    )
    with worker, pytest.raises(NotWanted):
        worker.ask("hello", check=check)
    wait_until_gone(worker.pid)


def test_the_whole_tree_ends_also_what_leads_another_session() -> None:
    with tempfile.TemporaryFile() as output, Child([sys.executable, "-c", LEADER], stdout=output):
        deadline = time.monotonic() + 120
        text = b""
        while not text.endswith(b"\n"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
            output.seek(0)
            text = output.read()
    wait_until_gone(int(text))


def test_variables_are_added_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QC_TEST_GONE", "1")
    program = "import os; print(sorted(name for name in os.environ if name.startswith('QC_TEST')))"
    variables = {"QC_TEST_GONE": None, "QC_TEST_NEW": "1"}
    with (
        tempfile.TemporaryFile() as output,
        Child([sys.executable, "-c", program], variables=variables, stdout=output) as child,
    ):
        assert child.wait() == 0
        output.seek(0)
        assert output.read() == b"['QC_TEST_NEW']\n"


def test_another_interpreter_says_why_it_ended(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "echo no tensorflow here >&2; exit 3")
    with pytest.raises(ModelError, match="ended with exit code 3: no tensorflow here"):
        tensorflow_versions(python)
    Path(python).write_text("no program")
    with pytest.raises(InvalidOption, match="cannot be run"):
        tensorflow_versions(python)
