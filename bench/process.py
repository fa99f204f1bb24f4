"""The caller's side of a worker: start it, ask it, end it, and say what it said when it died."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from types import TracebackType
from typing import Any

from ..errors import QCompileError, WorkerError

_LAST_LINES = 5
_GRACE_S = 2.0


class Worker:
    """One worker process. A context manager; leaving it ends the process.

    Args:
        name: For messages.
        threads: Threads of the runtime, set before any library is loaded.
        python: Interpreter to run it with.
        timeout_s: Longest wait for one answer.
    """

    def __init__(
        self, name: str, *, threads: int, python: str = sys.executable, timeout_s: float = 600.0
    ) -> None:
        self.name, self._timeout_s = name, timeout_s
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        self._process = subprocess.Popen(
            [python, "-m", "qcompile.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_environment(threads),
            # Ctrl-C reaches the caller alone, which then ends its workers in order.
            start_new_session=True,
        )
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send one request and return its answer.

        Raises:
            WorkerError: If the worker died, hung or answered nonsense, with its last output.
            QCompileError: The error that the artifact's runtime raised.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=self._timeout_s)
        except queue.Empty:
            raise self._error(f"gave no answer to {do!r} for {self._timeout_s:.0f} s") from None
        except OSError:
            line = b""
        if not line:
            raise self._error(f"died during {do!r} ({self._cause()})")
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._error(f"answered {do!r} with {line[:80]!r}") from None
        if not answer["ok"]:
            raise _as_error(answer, self.name)
        return answer  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process: by closing its input, then by force."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it is gone already
                self._process.stdin.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()  # its pipe ends with the process
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.kill()
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                self._answers.put(line)
        self._answers.put(b"")

    def _cause(self) -> str:
        code = self._process.wait(_GRACE_S)
        if code < 0:
            name = signal.Signals(-code).name
            return f"{name}, out of memory?" if name == "SIGKILL" else name
        return f"exit code {code}"

    def _error(self, what: str) -> WorkerError:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
        said = "; it said:\n    " + "\n    ".join(lines) if lines else ""
        return WorkerError(f"worker of {self.name} {what}{said}", artifact=self.name, output="\n".join(lines))


def _environment(threads: int) -> dict[str, str]:
    environment = dict(os.environ)
    if threads:
        # Read once when the libraries load: it is too late for them in the worker's own code.
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            environment[name] = str(threads)
    return environment


def _as_error(answer: dict[str, Any], name: str) -> QCompileError:
    from .. import errors

    kind = getattr(errors, answer["type"], None)
    if isinstance(kind, type) and issubclass(kind, QCompileError):
        return kind(f"{name}: {answer['message']}", hint=answer["hint"], artifact=name)
    return WorkerError(f"{name}: {answer['type']}: {answer['message']}", artifact=name)
