"""Worker's side of the protocol of `worker`: answer requests over standard streams until the caller ends."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import QCompileError
from ..files.storage import storage_error

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def serve(session: Callable[[Callable[..., None]], Answer]) -> None:
    """Answer requests on the standard streams until end of input; libraries print to standard error.

    `session` takes a function that reports progress, and returns the function that answers a request.
    """
    die_with_caller()
    for name in ("SIGTERM", "SIGHUP"):  # Slurm signals all processes, but the caller ends this one
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is signal.SIG_DFL:
            # A function, because child processes would inherit SIG_IGN.
            signal.signal(getattr(signal, name), lambda *_: None)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error does

    def write(reply: dict[str, Any]) -> None:
        answers.write(json.dumps(reply) + "\n")
        answers.flush()

    answer = session(lambda *progress: write({"progress": progress}))
    for line in sys.stdin:
        try:
            reply = {"ok": True, **answer(json.loads(line))}
        except Exception as error:  # the caller reports all errors of a runtime
            reply = failure(error)
        write(reply)


def failure(error: Exception) -> dict[str, Any]:
    """Return the answer for an error."""
    shown = (storage_error(error) if isinstance(error, OSError) else None) or error
    message, hint = (shown.message, shown.hint) if isinstance(shown, QCompileError) else (str(shown), "")
    return {"ok": False, "type": type(shown).__name__, "message": message, "hint": hint}


def die_with_caller() -> None:
    """Make the kernel kill this process when the caller dies, even if this process hangs (Linux)."""
    if sys.platform != "linux":
        return
    import ctypes

    caller = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG, prctl(2)
    if os.getppid() != caller:  # the caller died before the request
        os._exit(1)


def end_first_without_memory() -> None:
    """Make the kernel end this process before its caller when memory runs out (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
