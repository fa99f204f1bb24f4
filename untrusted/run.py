"""Carry out a verb in a process of its own, watch it, and say what became of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..bench.workers.process import worker_command
from ..errors import EngineUnavailable, WorkerError
from ..files import remove_stale, temporary_folder
from ..files.temporary import PLACES
from .child import watched_by_this
from .limits import Limits
from .tree import Tree, available

_EVERY_S = 0.05
_TREE_EVERY = 10
_GRACE_S = 15.0
_OWN_CODES = (0, 1, 2, 129, 130, 143)
"""Exit codes with which a verb ends by itself."""
_HARM = "the file may be damaged, or made to do harm; no unfinished file was left"


@dataclass(frozen=True)
class Finished:
    """A verb that came to its end.

    Attributes:
        code: Its exit code: 0 done, 1 failed or mismatch, 2 usage, 130 interrupted.
        output: What it wrote to standard output, where that was captured.
    """

    code: int
    output: str = ""


def why_unavailable() -> str:
    """Return why a verb cannot be watched on this system; empty where it can."""
    if not sys.platform.startswith("linux"):
        return f"Linux is required, this is {sys.platform}"
    return "" if available() else "/proc does not tell the memory of processes"


def run_untrusted(
    arguments: Sequence[str], limits: Limits | None = None, *, capture: bool = True
) -> Finished:
    """Carry out a verb as the command line does, in a process of its own, with limits.

    The processes that it starts count too. Temporary files of all of them are removed at the end, however
    they end. The process may read and write all that this one may: limits are no sandbox.

    Args:
        arguments: As typed after `qcompile`, such as `["simplify", "model.onnx", "-o", "simple.onnx"]`.
        limits: 8 GB and half an hour by default.
        capture: Whether standard output is returned, and shown only where the verb comes to its end.

    Returns:
        How it ended. An error of the verb itself is its exit code, and was written to standard error.

    Raises:
        WorkerError: If it crashed, or was ended because it exceeded a limit.
        EngineUnavailable: If the system cannot watch processes.
    """
    limits = limits or Limits()
    if reason := why_unavailable():
        raise EngineUnavailable(f"`untrusted` cannot work here: {reason}", reason=reason)
    verb = arguments[0] if arguments else "qcompile"
    with temporary_folder("untrusted") as folder, tempfile.TemporaryFile() as output:
        places = folder / "places"
        temporary = folder / "files"
        temporary.mkdir()
        process = subprocess.Popen(
            worker_command("qcompile.__main__", *arguments),
            stdout=output if capture else None,
            env=os.environ | watched_by_this(limits) | {"TMPDIR": str(temporary), PLACES: str(places)},
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
        )
        tree = Tree(process.pid)
        try:
            problem = _watch(process, tree, limits)
        except BaseException as stop:
            _pass_on(process, stop)
            if process.returncode in _OWN_CODES:
                return Finished(process.returncode, _text(output))  # it has said so itself
            raise
        finally:
            tree.kill()
            process.wait()
            _sweep(places)
        if problem:
            raise WorkerError(f"{verb}: {problem[0]}", hint=problem[1], output="")
        return Finished(process.returncode, _text(output))


def _watch(process: subprocess.Popen[bytes], tree: Tree, limits: Limits) -> tuple[str, str] | None:
    """Wait for the end; returns what went wrong, and the way out."""
    began, looks = time.monotonic(), 0
    too_long = (
        f"ended: it took more than {limits.time_s:g} s",
        "raise `time_limit_s` where you know why it needs longer",
    )
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(_EVERY_S)
            return too_long if code == -signal.SIGXCPU else _crash(code)
        if looks % _TREE_EVERY == 0:
            tree.refresh()
        looks += 1
        held_gb = tree.bytes() / 1e9
        if held_gb > limits.memory_gb:
            return (
                f"ended: its processes held {held_gb:.3g} GB of memory; at most {limits.memory_gb:g} GB are "
                "allowed",
                "raise `memory_limit_gb` where you know why it needs more",
            )
        if time.monotonic() - began > limits.time_s:
            return too_long


def _crash(code: int) -> tuple[str, str] | None:
    if code in _OWN_CODES:
        return None
    if code >= 0:
        return f"its process ended with exit code {code}", _HARM
    name = signal.Signals(-code).name
    if code == -signal.SIGKILL:
        return f"its process was killed ({name}): the system has no memory left, or somebody did it", _HARM
    return f"its process crashed ({name}) in native code that read the files", _HARM


def _pass_on(process: subprocess.Popen[bytes], stop: BaseException) -> None:
    """Have the process end as this one does, and give it time to write what it has."""
    number = signal.SIGINT if type(stop) is KeyboardInterrupt else signal.SIGTERM
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # pressed twice: at once
        process.wait(_GRACE_S)


def _sweep(places: Path) -> None:
    """Remove what the processes left in the folders where they made temporary files."""
    with contextlib.suppress(OSError):
        for place in set(places.read_text(encoding="utf-8", errors="surrogateescape").split("\0")):
            if place:
                remove_stale(Path(place))


def _text(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode(errors="replace")
