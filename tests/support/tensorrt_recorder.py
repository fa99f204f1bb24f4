"""Record the calls of a TensorRT module; `recording/sitecustomize.py` does it from the start of a process.

The file has one JSON object a line: a header with the versions, the GPU and every name the module has, then

    {"n": 4, "call": "Builder.create_network", "args": ["Builder", "2"]}       before the call
    {"n": 4, "gives": "INetworkDefinition"}                           after it; or "raises"
    {"callback": "ILogger.log", "args": [{"enum": "Severity.INFO"}, "..."]}

A call is written before it is made: where a process dies in TensorRT, the last line says in which call. No
object is replaced: members of the module's classes are wrapped in place. No file is overwritten: where there
is one already, of another process perhaps, FILE.2 is written, and so on.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

_TEXT = 300
"""Characters of a value that are written."""
_INTERFACES = ("Logger", "Profiler", "Monitor", "Allocator", "Recorder", "Selector", "Listener", "Reader",
               "Writer", "Calibrator", "Calibrator2")  # fmt: skip
"""How classes end that Python implements: a wrapped member would be taken for the implementation."""


def record(module: Any, path: Path) -> Callable[[], None]:
    """Record the uses of a module from now on; the returned function gives it back as it was."""
    file, lock, numbers = _open_new(path), threading.RLock(), itertools.count(1)
    originals: list[tuple[Any, str, Any]] = []

    def write(line: dict[str, object]) -> None:
        with lock:
            if not file.closed:
                file.write(json.dumps(line) + "\n")
                file.flush()

    def recorded(name: str, function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            number = next(numbers)
            write(
                {"n": number, "call": name, "args": [_spelled(value) for value in (*args, *named.values())]}
            )
            try:
                result = function(*args, **named)
            except BaseException as error:
                write({"n": number, "raises": f"{type(error).__name__}: {error}"})
                raise
            finally:
                del args, named  # what a callback raises may keep this frame
            write({"n": number, "gives": _spelled(result)})
            return result

        return call

    def replace(owner: Any, name: str, value: Any) -> None:
        originals.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, value)

    def hook(kind: type, /, **_: Any) -> None:
        log = vars(kind).get("log")
        if log is not None:

            def recorded_log(self: Any, severity: Any, message: str) -> None:
                enum = f"{type(severity).__name__}.{severity.name}"
                write({"callback": "ILogger.log", "args": [{"enum": enum}, message]})
                log(self, severity, message)

            kind.log = recorded_log  # type: ignore[attr-defined]

    def stop() -> None:
        for owner, name, original in reversed(originals):
            delattr(owner, name) if original is None else setattr(owner, name, original)
        file.close()

    write(_header(module))
    for owner, kind in list(vars(module).items()):
        if not isinstance(kind, type) or hasattr(kind, "__members__") or owner.endswith(_INTERFACES):
            continue
        for name, member in list(vars(kind).items()):
            if type(member).__name__ == "instancemethod" and (name == "__init__" or name[0] != "_"):
                replace(kind, name, recorded(f"{owner}.{name}", member))
    replace(module.ILogger, "__init_subclass__", classmethod(hook))
    return stop


def _open_new(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    places = itertools.chain([path], (path.with_name(f"{path.name}.{n}") for n in itertools.count(2)))
    return next(place for place in places if not place.exists()).open("x", encoding="utf-8")


def _spelled(value: Any) -> str:
    """Values as they are; of objects the class alone: repr() of some of pybind11's crashes."""
    if isinstance(value, list | tuple):
        return ", ".join(map(_spelled, value))[:_TEXT]
    if hasattr(type(value), "__members__"):
        return f"{type(value).__name__}.{value.name}"
    return str(value)[:_TEXT] if isinstance(value, str | int | float) else type(value).__name__


def _header(module: Any) -> dict[str, object]:
    from qcompile.engines.gpu import find_gpu
    from qcompile.version import __version__

    gpu = find_gpu()
    return {
        "module": module.__name__,
        "tensorrt": str(module.__version__),
        "gpu": gpu.as_json() if gpu else None,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "qcompile": __version__,
        "python": sys.version.split()[0],
        "names": {
            name: sorted(member for member in dir(value) if member[0] != "_")
            for name, value in vars(module).items()
            if isinstance(value, type)
        },
    }
