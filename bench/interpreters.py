"""The interpreters that run engines: TensorRT often lives in another environment than PyTorch."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..engines.registry import engine
from ..errors import InvalidOption, MissingFile, WorkerError
from ..processes.worker import Worker


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
