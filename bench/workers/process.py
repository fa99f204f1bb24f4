"""Start, ask and end a worker process, and report its last output when it dies."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from ...engines.registry import engine
from ...errors import InvalidOption, MissingFile, QCompileError, WorkerError

_LAST_LINES = 5
_LAST_BYTES = 1 << 16
_GRACE_S = 2.0


class Worker:
    """One worker process. A context manager; leaving it ends the process and what it started.

    Args:
        name: For messages.
        threads: Threads of the runtime, set before any library is loaded.
        python: Interpreter to run it with, or a script that runs one.
        timeout_s: Longest wait for one answer.
        module: What the process runs.
        variables: Of its environment, besides those of this process; None takes one away.

    Raises:
        InvalidOption: If the interpreter cannot be run.
    """

    def __init__(
        self,
        name: str,
        *,
        threads: int,
        python: str = "",
        timeout_s: float = 600.0,
        module: str = "qcompile.bench.worker",
        variables: Mapping[str, str | None] | None = None,
    ) -> None:
        self.name, self._timeout_s = name, min(timeout_s, threading.TIMEOUT_MAX)
        self._frozen = False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        self._began = time.perf_counter()
        try:
            self._process = subprocess.Popen(
                worker_command(module, python=python),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=_environment(threads, variables or {}),
                # Ctrl-C reaches the caller alone, which then ends its workers in order.
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # not the interpreter's fault
            raise InvalidOption(
                f"`python` {python}: cannot be run ({error.strerror})", option="python"
            ) from error
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the process that was started; a script's interpreter may be a child of it."""
        return self._process.pid

    def hello(self) -> dict[str, Any]:
        """Wait until it serves; returns `started_ms` since it was made, `python` and `executable`."""
        answer = self.ask("hello")
        return answer | {"started_ms": (time.perf_counter() - self._began) * 1e3}

    def ask(
        self,
        do: str,
        *,
        timeout_s: float | None = None,
        told: Callable[[int], None] | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Send one request and return its answer.

        Args:
            do: Name of the request, see `worker`.
            timeout_s: Longest wait for this answer, where that is shorter than for others.
            told: Called with how far a long request is; each time the wait begins anew.
            arguments: Of the request.
        """
        assert self._process.stdin is not None
        wait_s = min(timeout_s or self._timeout_s, self._timeout_s)
        self._thaw()
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self._answers.put(b"")  # it has died, and perhaps that was said already
        while "progress" in (answer := self._receive(do, wait_s)):
            if told is not None:
                told(answer["progress"])
        if not answer["ok"]:
            raise _as_error(answer, self.name, self.last_output())
        return answer

    def _receive(self, do: str, wait_s: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=wait_s)
        except queue.Empty:
            self.kill()  # it would go on using the processor, and answer the next request with this one
            raise self._error(f"gave no answer to {do!r} for {wait_s:.0f} s") from None
        if not line:
            raise self._error(f"died during {do!r} ({self._cause()})")
        answer = read_answer(line)
        if answer is None:
            self.kill()  # what it would say next is no better
            raise self._error(f"answered {do!r} with {line[:80]!r}")
        return answer

    def freeze(self) -> None:
        """Stop the process until it is asked again: its threads would go on spinning otherwise."""
        if hasattr(signal, "SIGSTOP"):
            self._signal(signal.SIGSTOP)
            self._frozen = True

    def last_output(self) -> str:
        """Return the last lines that the process wrote to its standard streams."""
        if self._log.closed:
            return ""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(self._log.tell() - _LAST_BYTES, 0))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-_LAST_LINES:])

    def kill(self) -> None:
        """End the process and its children by force."""
        self._signal(signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)

    def close(self) -> None:
        """End the process: by closing its input, then by force. Does nothing when it was closed before."""
        if self._log.closed:
            return
        self._thaw()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it is gone already
                self._process.stdin.close()
        self._reader.join(_GRACE_S)  # its pipe ends with the process
        self.kill()  # if it is still there, and what it has started
        self._process.wait()
        self._reader.join()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                self._answers.put(line)
        self._answers.put(b"")

    def _thaw(self) -> None:
        if self._frozen:
            self._signal(signal.SIGCONT)
            self._frozen = False

    def _signal(self, number: int) -> None:
        """To the whole session: a script's interpreter, and processes that a library has started."""
        with contextlib.suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, number)  # it leads a session of its own
            else:
                self._process.send_signal(number)

    def _cause(self) -> str:
        try:
            code = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return "it closed its output"
        if code < 0:
            name = signal.Signals(-code).name
            return f"{name}, out of memory?" if name == "SIGKILL" else name
        return f"exit code {code}"

    def _error(self, what: str) -> WorkerError:
        said = self.last_output()
        shown = "; it said:\n    " + said.replace("\n", "\n    ") if said else ""
        return WorkerError(f"worker of {self.name} {what}{shown}", artifact=self.name, output=said)


def _environment(threads: int, variables: Mapping[str, str | None]) -> dict[str, str]:
    environment = {name: text for name, text in os.environ.items() if name not in variables}
    environment |= {name: text for name, text in variables.items() if text is not None}
    if threads:
        # Read once when the libraries load: it is too late for them in the worker's own code.
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            environment[name] = str(threads)
    return environment


def read_answer(line: bytes) -> dict[str, Any] | None:
    """Return what a line of a worker says; None where it is no answer.

    An answer has a number of `progress`; or `ok`, and where that is false, the texts of an error.
    """
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict):
        return None
    if isinstance(answer.get("progress"), int):
        return answer
    texts = [answer.get(name) for name in ("type", "message", "hint")]
    is_error = answer.get("ok") is False and all(isinstance(text, str) for text in texts)
    return answer if answer.get("ok") is True or is_error else None


def _as_error(answer: dict[str, Any], name: str, output: str) -> QCompileError:
    from ... import errors

    kind = getattr(errors, answer["type"], None)
    if isinstance(kind, type) and issubclass(kind, QCompileError):
        text = answer["message"]
        if Path(text.partition(": ")[0]).name != name:  # else it begins with the artifact's file
            text = f"{name}: {text}"
        return kind(text, hint=answer["hint"], artifact=name, output=output)
    message = ": ".join(part for part in (answer["type"], answer["message"]) if part)
    return WorkerError(f"{name}: {message}", artifact=name, output=output)


# Command line of a worker process: it runs this package's files with any interpreter, in any folder.
#
# `python -m` and `python -c` put the current folder first in `sys.path`, where a `random.py` would be taken
# for the standard library's. `-P` forbids it from Python 3.11 on. This removes the entry in every version,
# before anything is imported. Another interpreter need not have qcompile installed.


_START = """
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
folder, module = sys.argv[1:3]
del sys.argv[1:3]
import importlib.util, runpy
spec = importlib.util.spec_from_file_location(
    "qcompile", folder + "/__init__.py", submodule_search_locations=[folder]
)
package = importlib.util.module_from_spec(spec)
sys.modules["qcompile"] = package
spec.loader.exec_module(package)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def worker_command(module: str, *arguments: str, python: str = "") -> list[str]:
    """Return the words that run a module of this package as `__main__`.

    Args:
        module: Its full name.
        arguments: What it finds in `sys.argv[1:]`.
        python: Interpreter, or a script that runs one with the arguments it is given; by default this one.
    """
    folder = Path(__file__).resolve().parents[2]
    return [python or sys.executable, "-c", _START, str(folder), module, *arguments]


@dataclass
class Interpreters:
    """Engine to the interpreter that runs it, and what these have said.

    Attributes:
        by_engine: Engine's name to an executable: a Python, or a script that runs one with the arguments
            it is given.
    """

    by_engine: dict[str, str] = field(default_factory=dict)
    _answers: dict[str, str] = field(default_factory=dict)

    def python(self, engine_name: str) -> str:
        """Return the interpreter of an engine; empty for this one."""
        return self.by_engine.get(engine_name, "")

    def why_not_run(self, engine_name: str) -> str:
        """Return why an engine cannot run in its interpreter; empty when it can. Asks once, in a worker."""
        if engine_name not in self._answers:
            python = self.python(engine_name)
            try:
                with Worker(f"{engine_name} in {python}", threads=0, python=python) as worker:
                    answer = worker.ask("why_not", engine=engine_name)
            except WorkerError as error:
                raise InvalidOption(
                    f"`python` {engine_name}={python}: cannot serve a worker: {error.message}",
                    hint="it needs Python 3.10 or newer with numpy, onnx, msgspec and the runtime; "
                    'a script must pass its arguments on: exec python "$@"',
                    option="python",
                ) from error
            reason, fix = str(answer["why_not"]), str(answer["fix"])
            self._answers[engine_name] = f"{reason}; {fix}" if reason and fix else reason
        return self._answers[engine_name]


def parse_interpreters(texts: Iterable[str]) -> Interpreters:
    """Read `ENGINE=INTERPRETER`, such as `tensorrt=/opt/trt/bin/python`."""
    by_engine: dict[str, str] = {}
    for text in texts:
        name, equals, python = text.partition("=")
        if not (name and equals and python):
            raise InvalidOption(
                f"`python` {text!r}: ENGINE=INTERPRETER is required, as tensorrt=/opt/trt/bin/python",
                option="python",
            )
        engine(name)  # or it says which there are
        if name in by_engine:
            raise InvalidOption(f"`python` {name}: is given twice", option="python")
        path = shutil.which(python)
        if path is None:
            raise MissingFile(f"`python` {text}: there is no executable {python}", file=python)
        by_engine[name] = path
    return Interpreters(by_engine)
