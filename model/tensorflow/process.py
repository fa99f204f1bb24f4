"""Start and ask the process that holds a TensorFlow model, in this interpreter or in another one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import EngineUnavailable, ExportError, InvalidOption, MissingFile, ModelError, QCompileError
from ...files import temporary_folder

INSTALL = "pip install 'qcompile[tensorflow]'"
ANOTHER = (
    "python -m venv tf && tf/bin/pip install tensorflow tf2onnx, "
    "and give `python` tensorflow=tf/bin/python"
)  # fmt: skip
"""How TensorFlow gets an environment of its own."""
_LAST_LINES = 5
_LAST_BYTES = 1 << 14
_GRACE_S = 5.0

# `-P` keeps the current folder out of `sys.path` from Python 3.11 on; this does so in every version.
_START = """
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
import runpy
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def tensorflow_python(texts: Iterable[str]) -> str:
    """Return the interpreter that has TensorFlow, of `tensorflow=INTERPRETER`; this one where none is given.

    Raises:
        InvalidOption: If one is spelled otherwise, or given twice.
        MissingFile: If there is no such executable.
    """
    found = ""
    for text in texts:
        name, equals, python = text.partition("=")
        if name != "tensorflow" or not equals or not python:
            raise InvalidOption(
                f"`python` {text!r}: tensorflow=INTERPRETER is required, as tensorflow=/opt/tf/bin/python",
                option="python",
            )
        if found:
            raise InvalidOption("`python` tensorflow: is given twice", option="python")
        found = shutil.which(python) or ""
        if not found:
            raise MissingFile(f"`python` {text}: there is no executable {python}", file=python)
    return found or sys.executable


class TensorFlowProcess:
    """A process with one model. A context manager; leaving it ends the process.

    Args:
        python: Interpreter to run it with.
        name: Of the model, for messages.

    Raises:
        InvalidOption: If the interpreter cannot be run.
    """

    def __init__(self, python: str, name: str) -> None:
        self.python, self.name = python, name
        self._held = contextlib.ExitStack()
        self._folder = self._held.enter_context(temporary_folder("tensorflow"))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        try:
            self._process = subprocess.Popen(
                [python, "-c", _START, str(Path(__file__).with_name("worker.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=self._environment(),
            )
        except OSError as error:
            self._log.close()
            self._held.close()
            raise InvalidOption(
                f"`python` {python}: cannot be run ({error.strerror})", option="python"
            ) from error

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send one request and return its answer.

        Raises:
            QCompileError: What the process said of the model.
            ModelError: If it died or answered nonsense, with its last output.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # it has died, as its answer will tell
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        try:
            answer: dict[str, Any] = json.loads(line)
            succeeded = answer["ok"]
        except (ValueError, KeyError, TypeError, RecursionError):
            said = self.last_output()
            shown = "; it said:\n    " + said.replace("\n", "\n    ") if said else ""
            state = f"answered {line[:80]!r}" if line else "died"
            raise ModelError(
                f"{self.name}: the process with TensorFlow ({self.python}) {state} during {do!r}{shown}",
                hint="it needs memory for TensorFlow and the model; `qcompile doctor` checks the interpreter",
            ) from None
        if not succeeded:
            raise _error(answer)
        return answer

    def require_packages(self) -> dict[str, str]:
        """Return the versions in its interpreter.

        Raises:
            EngineUnavailable: If TensorFlow or tf2onnx is missing there.
        """
        answer = self.ask("hello")
        if answer["missing"]:
            missing = " and ".join(answer["missing"])
            raise EngineUnavailable(
                f"{self.name}: {missing} cannot be imported by {self.python}",
                hint=f"{INSTALL}, or {ANOTHER}",
                engine="tensorflow",
                reason=f"{missing} missing",
            )
        return dict(answer["versions"])

    def infer(self, feeds: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the outputs, in order, of inputs in order.

        Raises:
            ModelError: If TensorFlow raises.
        """
        given, made = self._folder / "feeds.npz", self._folder / "outputs.npz"
        np.savez(given, *feeds)
        self.ask("infer", feeds=str(given), output=str(made))
        with np.load(made, allow_pickle=False) as stored:
            return [stored[f"arr_{index}"] for index in range(len(stored.files))]

    def last_output(self) -> str:
        """Return the last lines that the process wrote to its standard streams."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(self._log.tell() - _LAST_BYTES, 0))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-_LAST_LINES:])

    def close(self) -> None:
        """End the process: by closing its input, then by force."""
        if self._log.closed:
            return
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._held.close()

    def __enter__(self) -> TensorFlowProcess:
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

    def _environment(self) -> dict[str, str]:
        # Keras writes a file of settings into its home, and TensorFlow takes all of a GPU's memory.
        return {
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
            "KERAS_BACKEND": "tensorflow",
            "KERAS_HOME": self._folder.name,
        }


def _error(answer: dict[str, Any]) -> QCompileError:
    kinds = {kind.__name__: kind for kind in (ExportError, InvalidOption, ModelError)}
    chosen = kinds.get(str(answer.get("type")), ModelError)
    return chosen(str(answer.get("message")), hint=str(answer.get("hint", "")))
