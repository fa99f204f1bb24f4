"""Ctrl-C in the middle of a real bench: nothing is left behind, and what was measured is kept."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jsonschema
import psutil
import pytest

from qcompile.bench.results.results import SCHEMA, load_results

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

# A launch takes its share of this, and it would go on for longer than the test.
ENDLESS = ("--max-time", "75", "--precision-target", "0.000001", "--threads", "1")


@contextmanager
def qcompile(*words: object) -> Iterator[subprocess.Popen[str]]:
    """A command that tells its steps on standard error."""
    with subprocess.Popen(
        [sys.executable, "-m", "qcompile", *map(str, words), "-v"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A shell starts its background jobs with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # only where the test has failed


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    deadline = time.monotonic() + 600
    for line in process.stderr:
        if line.startswith(text):
            return
        assert time.monotonic() < deadline, line
    pytest.fail(f"it ended before {text!r}")


def workers_of(process: subprocess.Popen[str], count: int) -> list[psutil.Process]:
    deadline = time.monotonic() + 300
    while len(children := psutil.Process(process.pid).children(recursive=True)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return list(children)


def require_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(("moment", "alive"), [("launch 3, round 1", 2), ("load mlp.onnx again (3)", 1)])
def test_ctrl_c_leaves_no_process_and_keeps_what_was_measured(
    tiny_file: Callable[..., Path], tmp_path: Path, moment: str, alive: int
) -> None:
    model, output = tiny_file("mlp"), tmp_path / "r.json"
    with qcompile("bench", model, model, "--baseline", model, *ENDLESS, "-o", output) as process:
        wait_for(process, moment)
        workers = workers_of(process, alive)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    require_gone(workers)
    assert "interrupted; the measurements so far are in" in err
    assert "mlp.onnx (2)" in out
    results = load_results(output)
    assert results.interrupted
    other = results.rows[1]
    assert other.latency is not None
    assert other.speedup.rounds >= 8
    assert other.speedup.launches >= 2
    assert sum(map(len, other.launches_ms)) >= 8
    jsonschema.validate(json.loads(output.read_text()), json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ended_while_loading_it_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ndef build():\n    time.sleep(600)\n")
    model, output = f"{slow}:build", tmp_path / "r.json"
    with qcompile("bench", model, "--baseline", model, "-i", "x:1", "-o", output) as process:
        wait_for(process, "load slow.py:build")
        workers = workers_of(process, 1)
        process.send_signal(number)
        process.communicate(timeout=300)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    require_gone(workers)
    assert not output.exists()


def test_a_recipe_that_is_interrupted_keeps_its_measurements_beside_the_results(
    tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'version = 1\nname = "net"\n[model]\nsource = "{tiny_file("mlp")}"\n'
        '[[artifact]]\nname = "cpu"\ntarget = "onnxruntime"\n'
        "[bench]\nthreads = 1\nmax_time_s = 300\nprecision_target = 1e-6\n"
    )
    with qcompile("run", recipe) as process:
        wait_for(process, "bench: launch 2, round 4")
        workers = workers_of(process, 2)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    assert process.returncode == 130
    require_gone(workers)
    results = load_results(tmp_path / "out/results.interrupted.json")
    assert results.settings["recipe"] == recipe.read_text()
    assert results.row("cpu").speedup is not None
    assert not (tmp_path / "out/results.json").exists()
