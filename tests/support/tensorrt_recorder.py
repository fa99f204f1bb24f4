"""Record every use of a TensorRT module; `recording/sitecustomize.py` does it from the start of a process.

The file has one JSON object a line. The first is the header: the version of this format, of TensorRT and of
qcompile, the GPU and its driver, the date, and every name the module has. Then, numbered by `n`:

    {"n": 4, "call": "Builder.create_network", "on": 2, "args": [2]}       before the call
    {"n": 4, "gives": {"object": 3, "class": "INetworkDefinition"}}        after it; or "raises"
    {"n": 5, "get": "INetworkDefinition.num_layers", "on": 3, "gives": 8}
    {"n": 9, "in": 8, "callback": "ILogger.log", "on": 1, "args": [...], "gives": null}
    {"gone": [3]}                                                          objects that Python has let go

A call is written before it is made: where a process dies in TensorRT, the last line says in which call.
`in` names the call that was under way; `recorded_values` says how values are written. No object is replaced
and none of pybind11's lives longer: members of the module's classes are wrapped in place, and so are the
methods by which Python classes implement TensorRT's interfaces.

No file is overwritten: where there is one already, of another process perhaps, FILE.2 is written, and so on.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from recorded_values import encode, is_enumeration, is_value_class, module_names

FORMAT = 1

_CALIBRATOR = ("get_batch_size", "get_batch", "read_calibration_cache", "write_calibration_cache")
CALLBACKS = {
    # Source: the trampolines of NVIDIA/TensorRT python/src/infer/pyCore.cpp, pyInt8.cpp and
    # pyAlgorithmSelector.cpp, release/8.5 to 10.13.
    "ILogger": ("log",),
    "Logger": ("log",),
    "IProfiler": ("report_layer_time",),
    "Profiler": ("report_layer_time",),
    "IProgressMonitor": ("phase_start", "step_complete", "phase_finish"),
    "IOutputAllocator": ("reallocate_output", "reallocate_output_async", "notify_shape"),
    "IGpuAllocator": ("allocate", "reallocate", "deallocate", "allocate_async", "deallocate_async"),
    "IGpuAsyncAllocator": ("allocate", "reallocate", "deallocate", "allocate_async", "deallocate_async"),
    "IErrorRecorder": ("clear", "report_error", "get_num_errors", "get_error_code", "get_error_desc"),
    "IAlgorithmSelector": ("select_algorithms", "report_algorithms"),
    "IDebugListener": ("process_debug_tensor",),
    "IStreamReader": ("read",),
    "IStreamReaderV2": ("read", "seek"),
    "IStreamWriter": ("write",),
    "IInt8EntropyCalibrator": _CALIBRATOR,
    "IInt8EntropyCalibrator2": _CALIBRATOR,
    "IInt8MinMaxCalibrator": _CALIBRATOR,
    "IInt8LegacyCalibrator": (*_CALIBRATOR, "get_quantile", "get_regression_cutoff"),
}
"""Interface that Python classes implement to the methods that TensorRT calls on them."""

_recorders: dict[str, Recorder] = {}


def record(module: Any, path: Path) -> None:
    """Record the uses of a module from now on.

    Raises:
        OSError: If the file cannot be written.
    """
    if module.__name__ not in _recorders:
        _recorders[module.__name__] = Recorder(module, _open_new(path))


def stop_recording(module: Any) -> None:
    """Give the module back as it was; nothing happens where it is not recorded."""
    recorder = _recorders.pop(module.__name__, None)
    if recorder is not None:
        recorder.close()


def _open_new(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(2):
        try:
            return path.open("x", encoding="utf-8")
        except FileExistsError:
            path = path.with_name(f"{path.name.removesuffix(f'.{number - 1}')}.{number}")
    raise AssertionError("unreachable")


class _Event:
    """A use that is under way: written at once, or when something happens inside it, or with its end."""

    def __init__(self, about: dict[str, object]) -> None:
        self.about, self.written = about, False


class Recorder:
    """Wraps a module and writes what happens; `close` takes the wrappers off."""

    def __init__(self, module: Any, file: TextIO) -> None:
        self._module, self._file = module, file
        self._lock, self._thread = threading.RLock(), threading.local()
        self._counter, self._numbers = itertools.count(1), itertools.count(1)
        self._objects: dict[int, tuple[int, Callable[[], Any]]] = {}
        self._open: list[_Event] = []
        self._gone: deque[int] = deque()
        self._originals: list[tuple[Any, str, Any]] = []
        self._classes: dict[type, str] = {
            value: name
            for name, value in vars(module).items()
            if isinstance(value, type) and not is_enumeration(value) and not name.startswith("_")
        }
        self._write(_header(module))
        self._wrap()

    def close(self) -> None:
        """Take the wrappers off and close the file."""
        for owner, name, original in reversed(self._originals):
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self._file.close()

    # Wrapping

    def _wrap(self) -> None:
        for kind, owner in self._classes.items():
            if is_value_class(owner):
                continue
            callbacks = CALLBACKS.get(owner, ())
            for name, member in list(vars(kind).items()):
                if name in callbacks or (name.startswith("_") and name != "__init__"):
                    continue
                wrapped = self._wrapped(f"{owner}.{name}", member)
                if wrapped is not None:
                    self._replace(kind, name, wrapped, member)
            if callbacks:
                self._replace(kind, "__init_subclass__", self._subclass_hook(owner), None)
        for name, value in list(vars(self._module).items()):
            if isinstance(value, types.BuiltinFunctionType) and not name.startswith("_"):
                self._replace(self._module, name, self._function(name, value), value)

    def _replace(self, owner: Any, name: str, value: Any, original: Any) -> None:
        self._originals.append((owner, name, original))
        setattr(owner, name, value)

    def _wrapped(self, name: str, member: Any) -> Any:
        """A member that records; None for what is no member to be used."""
        if type(member) is property:  # a static one belongs to the class
            return property(
                self._getter(name, member.fget) if member.fget else None,
                self._setter(name, member.fset) if member.fset else None,
                member.fdel,
                member.__doc__,
            )
        if isinstance(member, property | staticmethod | classmethod | type) or is_enumeration(type(member)):
            return None
        return self._method(name, member) if hasattr(member, "__get__") and callable(member) else None

    def _method(self, name: str, member: Any) -> Callable[..., Any]:
        @functools.wraps(member)
        def method(this: Any, *args: Any, **named: Any) -> Any:
            with self._event({"call": name, "on": self._number(this), **self._given(args, named)}) as event:
                try:
                    return event(member.__get__(this, type(this))(*args, **named))
                finally:
                    del this, args, named, event  # what a callback raises may keep this frame

        return method

    def _function(self, name: str, function: Any) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            with self._event({"call": name, **self._given(args, named)}) as event:
                try:
                    return event(function(*args, **named))
                finally:
                    del args, named, event

        return call

    def _getter(self, name: str, function: Any) -> Callable[[Any], Any]:
        def get(this: Any) -> Any:
            with self._event({"get": name, "on": self._number(this)}, eager=False) as event:
                return event(function(this))

        return get

    def _setter(self, name: str, function: Any) -> Callable[[Any, Any], None]:
        def put(this: Any, value: Any) -> None:
            about = {"set": name, "on": self._number(this), "value": encode(value, self._refer)}
            with self._event(about, eager=False) as event:
                event(function(this, value))

        return put

    def _subclass_hook(self, owner: str) -> Any:
        def __init_subclass__(kind: type, /, **_: Any) -> None:  # noqa: N807
            for name in CALLBACKS[owner]:
                function = vars(kind).get(name)
                if isinstance(function, types.FunctionType):
                    setattr(kind, name, self._callback(f"{owner}.{name}", function))

        return classmethod(__init_subclass__)

    def _callback(self, name: str, function: Any) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(this: Any, *args: Any, **named: Any) -> Any:
            about = {"callback": name, "on": self._number(this), **self._given(args, named)}
            with self._event(about, eager=False) as event:
                try:
                    return event(function(this, *args, **named))
                finally:
                    del this, args, named, event

        return call

    # Writing

    @contextmanager
    def _event(self, about: dict[str, object], *, eager: bool = True) -> Iterator[Callable[[Any], Any]]:
        """A use under way; the value yielded takes its result, and returns it."""
        stack = self._stack()
        result: list[Any] = []

        def ended(value: Any) -> Any:
            result.append(value)
            return value

        with self._lock:
            inside = stack[-1] if stack else self._open[-1] if self._open else None
            if inside is not None:
                self._begin(inside)
                about = {"in": inside.about["n"], **about}
            event = _Event({"n": next(self._counter), **about})
            stack.append(event)
            self._open.append(event)
            if eager:
                self._begin(event)
        end: dict[str, object] = {}
        try:
            yield ended
            end = {"gives": encode(result[0], self._refer)}
        except BaseException as error:
            end = {"raises": type(error).__name__, "text": str(error)}
            raise
        finally:
            with self._lock:
                stack.remove(event)
                self._open.remove(event)
                self._write({"n": event.about["n"], **end} if event.written else {**event.about, **end})

    def _begin(self, event: _Event) -> None:
        if not event.written:
            event.written = True
            self._write(event.about)

    def _write(self, line: dict[str, object]) -> None:
        if self._file.closed:
            return
        gone = [self._gone.popleft() for _ in range(len(self._gone))]
        for item in ({"gone": gone}, line) if gone else (line,):
            self._file.write(json.dumps(item) + "\n")
        self._file.flush()

    def _stack(self) -> list[_Event]:
        if not hasattr(self._thread, "stack"):
            self._thread.stack = []
        return self._thread.stack  # type: ignore[no-any-return]

    # Values

    def _given(self, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, object]:
        given: dict[str, object] = {"args": [encode(value, self._refer) for value in args]}
        if named:
            given["named"] = {name: encode(value, self._refer) for name, value in named.items()}
        return given

    def _refer(self, value: Any) -> dict[str, object] | None:
        name = next((self._classes[base] for base in type(value).__mro__ if base in self._classes), "")
        return {"object": self._number(value), "class": name} if name else None

    def _number(self, value: Any) -> int:
        """The number of an object, as long as Python holds it."""
        with self._lock:
            known = self._objects.get(id(value))
            if known is not None and known[1]() is value:
                return known[0]
            number, key = next(self._numbers), id(value)

            def forget(reference: Callable[[], Any]) -> None:
                if self._objects.get(key, (0, None))[1] is reference:
                    del self._objects[key]
                self._gone.append(number)

            try:
                self._objects[key] = (number, weakref.ref(value, forget))
            except TypeError:  # no object of pybind11's; it is kept, as its address must stay its own
                self._objects[key] = (number, lambda: value)
            return number


def _header(module: Any) -> dict[str, object]:
    from qcompile.engines.gpu import find_gpu
    from qcompile.version import __version__

    gpu = find_gpu()
    return {
        "recording": FORMAT,
        "module": module.__name__,
        "tensorrt": str(module.__version__),
        "gpu": gpu.as_json() if gpu else None,
        "driver": _driver(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "qcompile": __version__,
        "python": sys.version.split()[0],
        "names": module_names(module),
    }


def _driver() -> str:
    """The kernel driver's version; empty where none is loaded."""
    try:
        text = Path("/sys/module/nvidia/version").read_text()
    except OSError:
        return ""
    return text.strip()
