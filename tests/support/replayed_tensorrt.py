"""A TensorRT module that answers as a recording says: the same uses, in the same order, or a failure.

    tape = Tape.read("recording.jsonl")
    monkeypatch.setitem(sys.modules, tape.module.__name__, tape.module)
    ...
    assert tape.is_at_end

It has every name that the recorded module had, and no other. A use that is not the next one recorded raises
`Differs`, which names both. Log lines and other callbacks are made as they were. What cannot be the same in
two runs is not compared: addresses, files, digests of what was never there.

Source: the recordings of `tensorrt_recorder`, whose format they have.
"""

from __future__ import annotations

import builtins
import enum
import json
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recorded_values import encode

_LEAST_ADDRESS = 1 << 40
_ENDS = ("gives", "raises")


class Differs(AssertionError):
    """A use that is not the one recorded.

    Source: the tests' own.
    """


class _Enumeration(enum.Enum):
    """As pybind11 makes them: equal to no number, `int()` of one, in order only where arithmetic is.

    Source: pybind11's py::enum_ (pybind11.h, `enum_base::init`), with the values that were recorded.
    """

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__

    def __lt__(self, other: Any) -> bool:
        if type(other) is not type(self):
            raise TypeError("Expected an enumeration of matching type!")
        return int(self) < int(other)

    def __le__(self, other: Any) -> bool:
        return self is other or self < other

    def __gt__(self, other: Any) -> bool:
        return not self <= other


class Tape:
    """What is left of a recording, and the module that plays it.

    Attributes:
        header: The first line.
        enumerations: By name, those of classes too.
        module: Stands in for the recorded one.

    Source: the recording that is played, see tensorrt_recorder.py.
    """

    def __init__(self, header: dict[str, Any], uses: list[dict[str, Any]]) -> None:
        self.header = header
        self._uses, self._position = uses, 0
        self._objects: dict[int, Any] = {}
        self._digests: dict[str, str] = {}
        self.enumerations = _make_enumerations(header["names"])
        self.module = _make_module(self, header)

    @classmethod
    def read(cls, path: str | Path) -> Tape:
        """Read a recording."""
        lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
        return cls(lines[0], _nested(lines[1:]))

    @property
    def is_at_end(self) -> bool:
        """Whether every recorded use was made."""
        return self._position == len(self._uses)

    @property
    def next_use(self) -> str:
        """The next recorded use, in words."""
        return "the end" if self.is_at_end else _words(self._uses[self._position])

    def play(self, made: dict[str, Any], this: Any = None) -> Any:
        """Answer one use: make the callbacks inside it, then return or raise what was recorded."""
        if self.is_at_end:
            raise Differs(f"use {made} is after the end of the recording")
        use = self._uses[self._position]
        if not self._same(made, use, this):
            raise Differs(f"use {use['n']}: recorded {_words(use)}, made {_words(made)}")
        self._position += 1
        if this is not None:
            self._objects[use["on"]] = this
            this._number = use["on"]
        for callback in use["inside"]:
            if "callback" in callback:
                self._call_back(callback)
        if "raises" in use:
            kind = getattr(builtins, use["raises"], RuntimeError)
            raise kind(use["text"])
        if not any(end in use for end in _ENDS):
            raise Differs(f"use {use['n']}: {_words(use)} never returned when it was recorded")
        return self.decode(use["gives"])

    def decode(self, value: Any) -> Any:
        """Return what stands for a recorded value."""
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "enum" in value:
            kind, _, member = value["enum"].partition(".")
            return self.enumerations[kind][member]
        if "tuple" in value or "dims" in value:
            return tuple(self.decode(item) for item in value.get("tuple", value.get("dims")))
        if "float" in value:
            return float(value["float"])
        if "dict" in value:
            return {key: self.decode(item) for key, item in value["dict"].items()}
        if "bytes" in value and "object" not in value:
            return self._content(value)
        return self._object(value)

    def _object(self, value: Mapping[str, Any]) -> Any:
        """The object of a number, made where it is new."""
        number = value["object"]
        if number not in self._objects:
            kind = getattr(self.module, value["class"])
            content = (self._content(value),) if "bytes" in value else ()
            self._objects[number] = kind.__new__(kind, *content)
            self._objects[number]._number = number
        return self._objects[number]

    def _content(self, value: Mapping[str, Any]) -> bytes:
        """Bytes that begin as the recorded ones did; what follows was not kept."""
        made = bytes.fromhex(value["head"]).ljust(value["bytes"], b"\0")
        self._digests[encode(made, lambda _: None)["sha256"]] = value["sha256"]
        return made

    def _call_back(self, use: dict[str, Any]) -> None:
        this = self._objects[use["on"]]
        function = getattr(this, use["callback"].rpartition(".")[2])
        given = [self.decode(value) for value in use["args"]]
        named = {name: self.decode(value) for name, value in use.get("named", {}).items()}
        answer = self._encoded(function(*given, **named))
        if "gives" in use and not self._alike(answer, use["gives"]):
            raise Differs(f"callback {use['n']}: {_words(use)} gave {use['gives']}, and now {answer}")

    # Comparing

    def _same(self, made: dict[str, Any], use: dict[str, Any], this: Any) -> bool:
        kind = next(kind for kind in ("call", "get", "set") if kind in made)
        if made[kind].rpartition(".")[2] != use.get(kind, "").rpartition(".")[2]:
            return False  # the class is that of the object, or one that it inherits from
        if not made[kind].endswith(".__init__") and self._objects.get(use.get("on", 0)) is not this:
            return False
        given = {key: value for key, value in made.items() if key in ("args", "named", "value")}
        return all(self._alike(self._encoded(value), use.get(key)) for key, value in given.items())

    def _encoded(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._encoded(item) for item in value]
        if isinstance(value, dict):
            return {key: self._encoded(item) for key, item in value.items()}
        return encode(value, self._refer)

    def _refer(self, value: Any) -> dict[str, object] | None:
        if "_recorded_class" not in {name for kind in type(value).__mro__ for name in vars(kind)}:
            return None
        return {"object": vars(value).get("_number"), "class": type(value)._recorded_class}

    def _alike(self, made: Any, recorded: Any) -> bool:
        if isinstance(made, int) and isinstance(recorded, int) and min(made, recorded) >= _LEAST_ADDRESS:
            return True
        if isinstance(made, float | int) and isinstance(recorded, float | int):
            return made == recorded
        if isinstance(recorded, dict) and ("tuple" in recorded or "dims" in recorded):
            recorded = recorded.get("tuple", recorded.get("dims"))
        if isinstance(made, dict) and "tuple" in made:
            made = made["tuple"]
        if isinstance(made, list) and isinstance(recorded, list):
            return len(made) == len(recorded) and all(map(self._alike, made, recorded))
        if isinstance(made, dict) and isinstance(recorded, dict):
            return self._alike_objects(made, recorded)
        return bool(made == recorded)

    def _alike_objects(self, made: dict[str, Any], recorded: dict[str, Any]) -> bool:
        if "object" in recorded:
            return self._objects.get(recorded["object"]) is not None and (
                made.get("object") == self._objects[recorded["object"]]._number
            )
        if "file" in recorded:
            return made.get("file") == recorded["file"]
        if "sha256" in recorded and "array" not in recorded:
            return bool(self._digests.get(made.get("sha256", ""), made.get("sha256")) == recorded["sha256"])
        return made.keys() == recorded.keys() and all(self._alike(made[key], recorded[key]) for key in made)


def _nested(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the uses that were made from outside, each with what happened inside it.

    Source: the tests' own.
    """
    uses: dict[int, dict[str, Any]] = {}
    outermost = []
    for line in lines:
        if "gone" in line:
            continue
        if line["n"] in uses:
            uses[line["n"]].update(line)
            continue
        uses[line["n"]] = {**line, "inside": []}
        if "in" in line:
            uses[line["in"]]["inside"].append(uses[line["n"]])
        elif "callback" not in line:
            outermost.append(uses[line["n"]])
    return outermost


def _words(use: Mapping[str, Any]) -> str:
    kind = next(kind for kind in ("call", "get", "set", "callback") if kind in use)
    given = use.get("args", [use["value"]] if "value" in use else [])
    return f"{kind} {use[kind]}({', '.join(map(str, given))})"


def _make_enumerations(names: Mapping[str, Any]) -> dict[str, Any]:
    """Source: the recording's header, by recorder.py."""
    found: dict[str, Any] = {}
    for name, about in names.items():
        if "enum" in about:
            found[name] = _Enumeration(name, about["enum"])
        for member, kind in about.get("class", {}).items():
            if isinstance(kind, dict):
                found[member] = _Enumeration(member, kind)
    return found


def _make_module(tape: Tape, header: dict[str, Any]) -> Any:
    """Source: the recording's header, by recorder.py."""
    module: Any = types.ModuleType(header["module"])
    module.__version__ = header["tensorrt"]
    for name, about in header["names"].items():
        if "enum" in about:
            setattr(module, name, tape.enumerations[name])
        elif "class" in about:
            setattr(module, name, _make_class(tape, name, about["class"]))
        elif "member" in about:
            setattr(module, name, tape.decode({"enum": about["member"]}))
        else:
            setattr(module, name, _Function(tape, name) if "function" in about["kind"] else None)
    return module


def _make_class(tape: Tape, name: str, members: Mapping[str, Any]) -> type:
    """Source: the recording's header, by recorder.py."""
    namespace: dict[str, Any] = {"_recorded_class": name, "_number": None}
    for member, kind in members.items():
        if kind in ("property", "read-only", "method"):
            namespace[member] = _Member(tape, f"{name}.{member}", kind)
        elif isinstance(kind, dict):
            namespace[member] = tape.enumerations[member]
        else:
            namespace[member] = tape.decode({"enum": kind}) if isinstance(kind, str) else kind
    if name == "IHostMemory":
        namespace["nbytes"] = property(len)
        return type(name, (bytes,), namespace)

    def construct(self: Any, *args: Any, **named: Any) -> None:
        made = {"call": f"{name}.__init__", "args": list(args), **({"named": named} if named else {})}
        tape.play(made, self)

    namespace["__init__"] = construct
    return type(name, (), namespace)


class _Function:
    """A function of the module.

    Source: the tests' own.
    """

    def __init__(self, tape: Tape, name: str) -> None:
        self._tape, self._name = tape, name

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._tape.play(
            {"call": self._name, "args": list(args), **({"named": named} if named else {})}
        )


class _Member:
    """A property or a method of a class.

    Source: the tests' own.
    """

    def __init__(self, tape: Tape, name: str, kind: str) -> None:
        self._tape, self._name, self._kind = tape, name, kind

    def __get__(self, this: Any, owner: type) -> Any:
        if this is None:
            return self
        if self._kind != "method":
            return self._tape.play({"get": self._name}, this)

        def method(*args: Any, **named: Any) -> Any:
            given = {"args": list(args), **({"named": named} if named else {})}
            return self._tape.play({"call": self._name, **given}, this)

        return method

    def __set__(self, this: Any, value: Any) -> None:
        if self._kind != "property":
            raise AttributeError(f"{self._name}: no setter")
        self._tape.play({"set": self._name, "value": value}, this)
