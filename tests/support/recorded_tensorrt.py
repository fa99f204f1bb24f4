"""Modules with exactly the names that a real TensorRT has, for tests of code that must suit all of them.

`trt_api/*.json` say which names each version has. `recorded_module("8.5.3")` is a module of these names and
no others: what a version lacks raises `AttributeError`, for reading and for writing, of the module, of its
classes and of their objects. What the names do is for `behaviours` to say; without, any use of a member is
`NotImplementedError`. A behaviour is written once, for all versions: public members that a version does not
have are taken out of it.

Rules for a behaviour class: its state is in names that begin with an underscore; a public value in the class
body is an attribute that can be read and written; it has no `super()`; `self._module` is the module.
"""

from __future__ import annotations

import enum
import functools
import importlib
import itertools
import json
import math
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tensorrt_rtx

FILES = {
    "8.5.3": "tensorrt-8.5.3.1",
    "10.16": "tensorrt-10.16.1.11",
    "11.4": "tensorrt-11.4.0.106",
    "rtx": "tensorrt_rtx-1.7.1.116",
}
"""Version to file of `trt_api/`."""

VERSIONS = tuple(FILES)

_ALIASES = {
    "float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16", "int8": "INT8", "int32": "INT32",
    "int64": "INT64", "uint8": "UINT8", "bool": "BOOL", "fp8": "FP8", "int4": "INT4", "fp4": "FP4",
    "e8m0": "E8M0",
}  # fmt: skip
"""`tensorrt.float32` and its kin."""

_CONSTANTS = {"MAX_DIMS": 8, "MAX_DESC_LENGTH": 127}


class Call(NamedTuple):
    """A use of a module: a call (of "__init__" too), or an attribute that was written.

    Source: the tests' own.
    """

    owner: str
    member: str
    args: tuple[Any, ...]
    named: dict[str, Any]
    written: bool


class _Enumeration(enum.Enum):
    """As pybind11 makes them: equal to no number, but `int()` of one.

    Source: pybind11's py::enum_ (pybind11.h, `enum_base::init`);
    test_stand_ins.py holds it against TensorRT-RTX 1.7.1. Some of 8.5 are
    arithmetic too (python/src/infer/pyCore.cpp of release/8.5); here they are stricter.
    """

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__


@functools.total_ordering
class _Ordered(_Enumeration):
    """As pybind11's arithmetic enumerations, of which TensorRT has one, the severity.

    Source: python/src/infer/pyCore.cpp of release/8.5 to 10.13, `py::enum_<ILogger::Severity>(...,
    py::arithmetic())`.
    """

    def __lt__(self, other: object) -> bool:
        if type(other) is not type(self):
            raise TypeError("Expected an enumeration of matching type!")
        return int(self) < int(other)


class NotSimulated:
    """A member that the version has and no behaviour was given for: it is there, and cannot be used.

    Source: the tests' own.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: object, **__: object) -> Any:
        raise NotImplementedError(f"{self._name}: recorded, and not simulated")

    __call__ = __bool__ = __int__ = __index__ = __float__ = __len__ = __iter__ = _refuse
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class _Metaclass(type):
    """Refuses Python subclasses that do not construct their base, as pybind11 does.

    Source: pybind11's detail/class.h, `pybind11_meta_call`.
    """

    def __call__(cls, *args: Any, **named: Any) -> Any:
        made = super().__call__(*args, **named)
        if "_constructed" not in vars(made):
            base = next(base for base in cls.__mro__ if "_members" in vars(base))
            raise TypeError(f"{base.__name__}.__init__() must be called when overriding __init__")
        return made


class _Stored:
    """An attribute that keeps what is written. Source: the tests' own."""

    def __init__(self, name: str, default: Any) -> None:
        self._name, self._default = name, default

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else vars(instance).get(f"_stored_{self._name}", self._default)

    def __set__(self, instance: Any, value: Any) -> None:
        _note(instance, self._name, (value,), written=True)
        vars(instance)[f"_stored_{self._name}"] = value


def recorded_module(
    version: str, behaviours: Mapping[str, Callable[..., Any]] | None = None
) -> types.ModuleType:
    """Return a module with the names of one version.

    Args:
        version: One of `VERSIONS`.
        behaviours: Class or function to what it does. Names that the version does not have are ignored.

    Returns:
        The module. Its list `recorded_calls` says how it was used, see `Call`.

    Source: the tests' own; the names are those of trt_api/README.md.
    """
    recorded = json.loads((Path(__file__).parent / "trt_api" / f"{FILES[version]}.json").read_text())
    module: Any = types.ModuleType("tensorrt_rtx" if version == "rtx" else "tensorrt")
    module.__version__ = recorded["version"]
    module.recorded_calls = []
    severity = _enumeration("Severity", list(tensorrt_rtx.ILogger.Severity.__members__), module.__name__)
    for name, entry in recorded["names"].items():
        if "enum" in entry:
            setattr(module, name, _enumeration(name, entry["enum"], module.__name__))
    for name, entry in recorded["names"].items():
        behaviour = (behaviours or {}).get(name)
        if "members" in entry:
            setattr(module, name, _class(module, name, entry["members"], behaviour, severity))
        elif "kind" in entry:
            setattr(module, name, behaviour or _other(module, name, entry["kind"], severity))
    return module


def stored(instance: Any, name: str, default: Any) -> Any:
    """Return what was written to an attribute that a behaviour declares, also where a version lacks it."""
    return vars(instance).get(f"_stored_{name}", default)


def _enumeration(name: str, members: list[str], module: str) -> Any:
    """The numbers are those of TensorRT-RTX 1.7.1 where it has the member; others follow by their names.

    Source: TensorRT-RTX 1.7.1, whose headers have the numbers of NvInfer.h and NvInferRuntime.h.
    """
    real = tensorrt_rtx.ILogger.Severity if name == "Severity" else getattr(tensorrt_rtx, name, None)
    known = {key: int(value) for key, value in getattr(real, "__members__", {}).items()}
    free = itertools.count(max(known.values(), default=-1) + 1)
    numbers = {member: known[member] if member in known else next(free) for member in sorted(members)}
    base: Any = _Ordered if name == "Severity" else _Enumeration
    return base(name, sorted(numbers.items(), key=lambda item: item[1]), module=module)


def _other(module: Any, name: str, kind: str, severity: Any) -> Any:
    """Source: python/src/infer/pyFoundationalTypes.cpp of release/10.13 for `float32` and its kin, and
    python/packaging/bindings_wheel/tensorrt/__init__.py for `volume`.
    """
    if kind == "DataType":
        return module.DataType[_ALIASES[name]]
    if kind == "Severity":
        return severity.VERBOSE
    if kind == "str":
        return ""
    if kind == "module":
        return module if name.startswith("tensorrt") else importlib.import_module(name)
    return math.prod if name == "volume" else NotSimulated(f"{module.__name__}.{name}")


def _class(module: Any, name: str, members: list[str], behaviour: Any, severity: Any) -> type:
    """Source: the tests' own."""
    namespace: dict[str, Any] = {}
    for base in reversed(behaviour.__mro__ if behaviour is not None else ()):
        if base.__module__ != "builtins":
            namespace |= {
                key: value
                for key, value in vars(base).items()
                if (key.startswith("_") or key in members) and key not in ("__dict__", "__weakref__")
            }
    initialize = namespace.pop("__init__", None)
    missing = {member: NotSimulated(f"{name}.{member}") for member in members}
    namespace |= {member: _member(member, {**missing, **namespace}[member], severity) for member in members}

    def construct(self: Any, *args: Any, **named: Any) -> None:
        vars(self)["_constructed"] = True
        _note(self, "__init__", args, named)
        if initialize is not None:
            initialize(self, *args, **named)

    namespace |= {
        "__init__": construct,
        "__setattr__": _set,
        "__getattribute__": _get,
        "__module__": module.__name__,
        "__qualname__": name,
        "_module": module,
        "_members": frozenset(members),
        "_recorded_name": name,
    }
    bases = behaviour.__mro__ if behaviour else (object,)
    return _Metaclass(name, (next(base for base in bases if base.__module__ == "builtins"),), namespace)


def _member(name: str, value: Any, severity: Any) -> Any:
    """Source: the tests' own."""
    if name == "Severity":
        return severity
    if name in severity.__members__:
        return severity[name]
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if isinstance(value, types.FunctionType):
        return _noted(name, value)
    if isinstance(value, property):
        writer = value.fset
        return property(value.fget, _noted(name, writer, written=True) if writer else None)
    return value if isinstance(value, staticmethod | classmethod) else _Stored(name, value)


def _noted(name: str, function: Any, *, written: bool = False) -> Any:
    """Source: the tests' own."""

    @functools.wraps(function)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        _note(self, name, args, named, written=written)
        return function(self, *args, **named)

    return call


def _note(instance: Any, member: str, args: Any, named: Any = None, *, written: bool = False) -> None:
    call = Call(instance._recorded_name, member, args, named or {}, written)
    instance._module.recorded_calls.append(call)


def _require(instance: Any, name: str) -> None:
    """Refuse an attribute that is neither recorded, nor private, nor of a subclass in Python.

    Source: pybind11's classes have no `__dict__` (docs/classes.rst, "Dynamic attributes", documentation).
    """
    kind = type(instance)
    if not (name.startswith("_") or "_members" not in vars(kind) or name in kind._members):
        raise AttributeError(f"{kind.__qualname__!r} object has no attribute {name!r}")


def _get(self: Any, name: str) -> Any:
    _require(self, name)
    return object.__getattribute__(self, name)


def _set(self: Any, name: str, value: Any) -> None:
    _require(self, name)
    object.__setattr__(self, name, value)
