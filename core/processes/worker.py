"""Send requests to a worker process and read its answers; `serve` is the worker's side.

Each request or answer is one line of JSON; arrays are in files (`arrays`). An answer has `"ok": true`,
or `"ok": false` and the error's `type`, `message` and `hint`. Lines `{"progress": [...]}` may precede an
answer.
"""

from __future__ import annotations

import contextlib
import json
import math
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...errors import QCompileError, WorkerError
from .child import KILL, Child, TimeExceeded, module_command

_GRACE_S = 2.0


class Worker(Child):
    """A child process that answers requests, each within `timeout_s`.

    Args:
        name: Name in error messages.
        module: Module of this package to run; it calls `serve`.
        threads: Number of threads of libraries, set before these load; 0 leaves their defaults.
    """

    def __init__(
        self,
        name: str,
        *,
        module: str,
        threads: int,
        python: str = "",
        timeout_s: float = 600.0,
        variables: Mapping[str, str | None] | None = None,
    ) -> None:
        self.name, self._timeout_s, self._start_s = name, timeout_s, time.perf_counter()
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        try:
            super().__init__(
                module_command(module, python=python),
                variables={**(variables or {}), **thread_variables(threads)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        except BaseException:
            log.close()
            raise
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def hello(self) -> dict[str, Any]:
        """Wait until the worker serves; return `started_ms` (since its start), `python` and `executable`."""
        answer = self.ask("hello")
        return answer | {"started_ms": (time.perf_counter() - self._start_s) * 1e3}

    def ask(
        self,
        do: str,
        *,
        timeout_s: float | None = None,
        on_progress: Callable[..., None] = lambda *_: None,
        check: Callable[[], None] | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Send one request and return its answer, or raise the error of the request.

        Args:
            timeout_s: Maximum wait for this answer, if shorter than the worker's maximum.
            on_progress: Called with the progress of a long request; each call restarts the wait.
            check: Called repeatedly; raises if the answer is not needed any more.
        """
        assert self.process.stdin is not None
        wait_s = min(timeout_s or math.inf, self._timeout_s)
        self.thaw()
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            self._answers.put(b"")  # the worker has died; its reader may have reported this already
        while "progress" in (answer := self._receive(do, wait_s, check)):
            on_progress(*answer["progress"])
        if answer["ok"]:
            return answer
        raise error_from_answer(answer, self.name, self.last_output())

    def _receive(self, do: str, wait_s: float, check: Callable[[], None] | None) -> dict[str, Any]:
        def next_line(seconds: float) -> bytes | None:
            with contextlib.suppress(queue.Empty):
                return self._answers.get(timeout=seconds)
            return None

        try:
            line = self.watch(next_line, time_s=wait_s, check=check)
        except TimeExceeded:
            self.kill()  # its late answer would be taken for the next request's
            raise self._error(f"gave no answer to {do!r} for {wait_s:.0f} s") from None
        if not line:
            cause = self.cause()
            raise self._error(f"died during {do!r} ({cause})", died=cause)
        answer = read_answer(line)
        if answer is None:
            self.kill()  # the next lines would be no better
            raise self._error(f"answered {do!r} with {line[:80]!r}")
        return answer

    def close(self) -> None:
        """End the process: close its input, then kill it. A second call does nothing."""
        assert self._log is not None
        assert self.process.stdin is not None
        if self._log.closed:
            return
        self.thaw()
        with contextlib.suppress(OSError):  # the process is gone already
            self.process.stdin.close()
        self._reader.join(_GRACE_S)  # ends when the process closes its output
        self.signal_session(KILL)  # if it still runs, and for its descendants
        self.process.wait()
        self._reader.join()
        self._log.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as answers:
            for line in answers:
                self._answers.put(line)
        self._answers.put(b"")

    def _error(self, problem: str, *, died: str = "") -> WorkerError:
        output = self.last_output()
        log_text = "; its output:\n    " + output.replace("\n", "\n    ") if output else ""
        return WorkerError(
            f"worker of {self.name} {problem}{log_text}", artifact=self.name, output=output, died=died
        )


def thread_variables(threads: int) -> dict[str, str]:
    """Return the variables that limit the threads of libraries; libraries read them when they load."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(threads)) if threads else {}


def read_answer(line: bytes) -> dict[str, Any] | None:
    """Return the answer in a line of a worker, or None if the line is not a valid answer."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict):
        return None
    if answer.get("ok") is True or isinstance(answer.get("progress"), list):
        return answer
    texts = [answer.get(name) for name in ("type", "message", "hint")]
    return answer if answer.get("ok") is False and all(isinstance(text, str) for text in texts) else None


def error_from_answer(answer: Mapping[str, Any], name: str, output: str) -> QCompileError:
    from ... import errors

    kind = getattr(errors, answer["type"], None)
    if isinstance(kind, type) and issubclass(kind, QCompileError):
        text = answer["message"]
        if Path(text.partition(": ")[0]).name != name:  # unless the text begins with the artifact's file
            text = f"{name}: {text}"
        return kind(text, hint=answer["hint"], artifact=name, output=output)
    message = ": ".join(part for part in (answer["type"], answer["message"]) if part)
    return WorkerError(f"{name}: {message}", artifact=name, output=output)
