"""Ctrl-C during a build, of TensorRT-RTX itself and of a stand-in: the build ends, nothing is written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import qcompile
from qcompile.engines.tensorrt.builder.builder import interrupt_deferred

MakePath = Callable[..., Path]

pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")

SUPPORT = Path(__file__).parents[3] / "support"
PARENT = Path(qcompile.__file__).parents[1]


@pytest.fixture(autouse=True)
def handles_ctrl_c() -> Iterator[None]:
    """As in a terminal: a shell starts its background jobs with SIGINT ignored, and that is inherited."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_cancels_the_build_and_leaves_nothing(tiny_file: MakePath, tmp_path: Path) -> None:
    model, steps = tiny_file("residual"), list[int]()

    def interrupted(text: str, done: int = 0, *_: object) -> None:
        if text == "build" and done:
            steps.append(done)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        qcompile.build(
            model, tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"], progress=interrupted
        )
    assert len(steps) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["residual.onnx"]


PRESSED_IN_A_STEP = """
import signal, sys
from pathlib import Path
import qcompile

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this process was started with
steps = []

def pressed(text, done=0, *_):
    if text == "build" and done:
        steps.append(done)
        if len(steps) == 1:  # a second one ends the process, and TensorRT may take another step first
            signal.raise_signal(signal.SIGINT)

model, output = map(Path, sys.argv[1:])
try:
    qcompile.build(model, output, target="tensorrt-rtx", gpus=["sm86"], progress=pressed)
except KeyboardInterrupt:
    assert steps
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    print("cancelled")
"""

PRESSED_WITHOUT_STEPS = """
import signal, sys
from pathlib import Path
import pytest
from simulated_machine import install

signal.signal(signal.SIGINT, signal.default_int_handler)
model, folder = map(Path, sys.argv[1:])
here = install(pytest.MonkeyPatch(), folder, "8.5.3")
build = here.module.Builder.build_serialized_network

def interrupted(self, network, config):
    signal.raise_signal(signal.SIGINT)
    return build(self, network, config)

here.module.Builder.build_serialized_network = interrupted
try:
    here.build(model)
except KeyboardInterrupt:
    assert here.nothing_built
    print("cancelled")
"""


def printed(program: str, *arguments: Path) -> str:
    """What a program prints in a process of its own: a signal that goes wrong ends that, not the tests."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (SUPPORT, PARENT)))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ctrl_c_of_a_terminal_is_not_lost_in_tensorrts_logger(tiny_file: MakePath, tmp_path: Path) -> None:
    """The signal is handled by whatever Python runs next: mostly `log`, whose exceptions TensorRT drops."""
    model = tiny_file("residual")
    assert "cancelled" in printed(PRESSED_IN_A_STEP, model, tmp_path / "m.engine")
    assert [path.name for path in tmp_path.iterdir()] == ["residual.onnx"]


def test_ctrl_c_ends_a_build_without_progress_monitor_after_it(tiny_file: MakePath, tmp_path: Path) -> None:
    assert "cancelled" in printed(PRESSED_WITHOUT_STEPS, tiny_file("residual"), tmp_path)


def test_a_ctrl_c_that_was_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupt_deferred():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_thread_that_gets_no_signals_defers_none() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[bool] = []

    def work() -> None:
        with interrupt_deferred() as raise_if_pressed:
            raise_if_pressed()
            seen.append(signal.getsignal(signal.SIGINT) is before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]
