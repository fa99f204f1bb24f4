"""The side of a child process: answer requests over standard streams, and end with the caller."""

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
    """Answer requests on the standard streams until they end; what libraries print goes to standard error.

    `session` takes a function that reports progress, and returns what answers one request.
    """
    die_with_caller()
    for name in ("SIGTERM", "SIGHUP"):  # Slurm sends them to all processes, and the caller ends this one
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is signal.SIG_DFL:
            # A function, not SIG_IGN, which processes that are started here would inherit.
            signal.signal(getattr(signal, name), lambda *_: None)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error, of any encoding

    def write(reply: dict[str, Any]) -> None:
        answers.write(json.dumps(reply) + "\n")
        answers.flush()

    answer = session(lambda *progress: write({"progress": progress}))
    for line in sys.stdin:
        try:
            reply = {"ok": True, **answer(json.loads(line))}
        except Exception as error:  # whatever a runtime raises is the caller's to report
            reply = failure(error)
        write(reply)


def failure(error: Exception) -> dict[str, Any]:
    """Return the answer that stands for an error."""
    shown = (storage_error(error) if isinstance(error, OSError) else None) or error
    message, hint = (shown.message, shown.hint) if isinstance(shown, QCompileError) else (str(shown), "")
    return {"ok": False, "type": type(shown).__name__, "message": message, "hint": hint}


def die_with_caller() -> None:
    """Be killed when the caller dies, even if it is killed itself and this process hangs (Linux)."""
    if sys.platform != "linux":
        return
    import ctypes

    caller = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG, prctl(2)
    if os.getppid() != caller:  # it died before
        os._exit(1)


def end_first_without_memory() -> None:
    """Have the system end this process, not its caller, where memory runs out (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
