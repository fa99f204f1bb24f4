"""Decode and check values into a spec; errors name the key, the value found and the requirement.

msgspec decodes and checks. Its errors are translated here, alike for the command line, recipes and Python.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from ..errors import InvalidOption, UsageError
from .option import Option, as_path, described, fields_of
from .tensors import format_shape, parse_shapes

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # `typing` has it from Python 3.11 on

    def dataclass_transform(**_):
        return lambda cls: cls


T = TypeVar("T")

_NAMES = {
    "str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false",
    "array": "a list", "object": "a table", "list": "a list", "dict": "a table",
}  # fmt: skip
_SAMPLES = ".data.memory"
"""Module that writes samples in memory to files."""
_LARGEST = 2**31 - 1
"""Largest whole number of an option: runtimes take them as 32 bits."""
_LONGEST = 200
"""Characters of a value that a message shows."""
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


class Refused(InvalidOption, ValueError):
    """An invalid value of an option, or options that contradict each other.

    A `ValueError`, so that msgspec adds the place in the recipe.

    Args:
        key: Field of the option, or its path.
        problem: Requirement or contradiction; other options are between backticks.
        value: The invalid value; left out if the option alone is wrong.
        by_type: Whether the value is of another type than the option.
    """

    def __init__(
        self, key: str, problem: str, *, value: object = msgspec.UNSET, hint: str = "", by_type: bool = False
    ) -> None:
        self.key, self.problem, self.value, self.by_type = key, problem, value, by_type
        shown = "" if value is msgspec.UNSET else f" {_short_repr(value)}"
        super().__init__(f"`{key}`{shown}: {problem}", hint=hint, option=key)

    def below(self, prefix: str) -> Refused:
        """Return the error for a key in the table `prefix`."""
        if not prefix:
            return self
        value, by_type = self.value, self.by_type
        return Refused(f"{prefix}.{self.key}", self.problem, value=value, hint=self.hint, by_type=by_type)

    @property
    def sentence(self) -> str:
        """The problem for use after the key: "is 0; at least 1 is required"."""
        if self.value is msgspec.UNSET:
            return self.problem
        return (
            f"is {_type_and_value(self.value) if self.by_type else _short_repr(self.value)}; {self.problem}"
        )


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
class Checked:
    """A frozen, keyword-only dataclass of options; it checks every value when it is created."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls) -> None:
        hints = inspect.get_annotations(cls, eval_str=True)
        cls.__annotations__ = {name: described(hint) for name, hint in hints.items()}
        # repr, eq and hash are inherited, and a docstring is set: generating them per class slows each start.
        cls.__doc__ = cls.__doc__ or f"Options of {cls.__name__}."
        dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)(cls)

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)

    def __repr__(self) -> str:
        named = zip(self.__dataclass_fields__, self._values(), strict=True)
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in named)})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._values() == self._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __post_init__(self) -> None:
        for option in fields_of(type(self)):
            value = getattr(self, option.name)
            if option.table is None:
                object.__setattr__(self, option.name, _convert(option, paired(option, value)))
        self.check()

    def check(self) -> None:
        """Refuse options that contradict each other."""


def decode(kind: type[T], values: Mapping[str, Any], *, strict: bool = True) -> T:
    """Return a spec of these values.

    Args:
        values: Key to value, as in TOML or JSON.
        strict: Whether to refuse a text for a number; False for the command line, which has only texts.
    """
    _refuse_unknown(kind, values, "")
    try:
        return msgspec.convert(values, kind, strict=strict, dec_hook=as_path)
    except msgspec.ValidationError as error:
        text, _, place = str(error).rpartition(" - at `$")
        text, place = (text, place.rstrip("`").lstrip(".")) if text else (str(error), "")
        if isinstance(error.__cause__, Refused):
            raise error.__cause__.below(place) from error
        raise _refusal(text, place, kind, values) from error


def parse_spec(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return the spec of keyword arguments, for `decode`; None leaves an option at its default."""
    options = {option.name: option for option in fields_of(kind)}
    present = {name: value for name, value in values.items() if value is not None}
    for name in present.keys() & options.keys():
        present[name] = paired(options[name], present[name])
    return decode(kind, present)


def spec_from_call(kind: type[T], spec: object, values: Mapping[str, Any]) -> T:
    """Return the spec of a call: the fields of `spec` (of any type) that `kind` has, replaced by `values`."""
    if spec is None:
        return parse_spec(kind, values)
    return parse_spec(kind, common(kind, spec) | dict(values)) if values else shared(kind, spec)


def shared(kind: type[T], spec: object, **more: Any) -> T:
    """Return a spec of type `kind` with the options that it shares with `spec`, and `more`."""
    return kind(**common(kind, spec) | more)


def common(kind: type, spec: object) -> dict[str, Any]:
    """Return the options of `spec` that `kind` has too."""
    names = {option.name for option in fields_of(kind)} & {option.name for option in fields_of(type(spec))}
    return {name: getattr(spec, name) for name in names}


def read_shapes(spec: object, name: str) -> dict[str, tuple[int, ...]]:
    """Return input to shape, of an option with values NAME:SHAPE."""
    try:
        return parse_shapes(getattr(spec, name), option=name)
    except UsageError as error:
        raise Refused(name, error.message.removeprefix(f"{name}: "), hint=error.hint) from error


def paired(option: Option, value: object) -> object:
    """Return a mapping as a list of typed pairs, such as "x:1x3x224x224", and samples in memory as a file.

    Another value is unchanged.
    """
    if option.takes_data and value is not None and not isinstance(value, str):
        memory = import_module(_SAMPLES, __package__.partition(".")[0])
        return memory.stored_option(value, option)
    if not (option.spelling.pairs and isinstance(value, Mapping)):
        return value
    return [f"{name}{option.spelling.pairs}{_format_value(half)}" for name, half in value.items()]


def _format_value(value: object) -> str:
    return format_shape(value) if isinstance(value, tuple | list) else str(value)


def _convert(option: Option, value: object) -> object:
    try:
        converted = msgspec.convert(value, option.annotation, dec_hook=as_path)
    except msgspec.ValidationError as error:
        text, _, place = str(error).rpartition(" - at `$")
        text, place = (text, place.rstrip("`")) if text else (str(error), "")
        raise _translate_message(text, f"{option.name}{place}", option, _value_at(place, value)) from error
    for index, item in enumerate(converted if isinstance(converted, tuple) else (converted,)):
        problem = _why_unusable(item)
        if problem:
            key = f"{option.name}[{index}]" if isinstance(converted, tuple) else option.name
            raise Refused(key, problem, value=str(item) if isinstance(item, Path) else item)
    return converted


def _why_unusable(value: object) -> str:
    """Return why a value is unusable for every option; empty if it is usable."""
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number is required"
    if isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
        return f"at most {_LARGEST} is required"
    if isinstance(value, str | Path) and "\0" in str(value):
        return "a text without the character NUL is required"
    return ""


def _refusal(text: str, place: str, kind: type, values: Mapping[str, Any]) -> Refused:
    missing = re.fullmatch(r"Object missing required field `(\w+)`", text)
    if missing:
        return Refused(f"{place}.{missing[1]}" if place else missing[1], "is missing")
    return _translate_message(text, place, _option_at(kind, place), _value_at(place, values))


def _translate_message(text: str, key: str, option: Option, value: object) -> Refused:
    """Translate an error message of msgspec."""
    if text.startswith("Invalid enum value"):
        matches = difflib.get_close_matches(str(value).lower(), option.choices, n=1)
        hint = f"did you mean {matches[0]!r}?" if matches else ""
        least = "one of " if len(option.choices) > 1 else ""
        return Refused(key, f"{least}{', '.join(option.choices)} is required", value=value, hint=hint)
    expected = re.fullmatch(r"Expected `([\w |]+)`(.*)", text)
    name, bound_text = (expected[1].removesuffix(" | null"), expected[2]) if expected else ("", "")
    bound = re.search(r"^ (of length )?([<>]=?) (\S+)$", bound_text)
    if bound and bound[1]:
        return Refused(key, f"is empty; at least one {option.spelling.metavar} is required")
    if bound:
        return Refused(key, f"{_BOUNDS[bound[2]]} {bound[3].removesuffix('.0')} is required", value=value)
    if text == "Number out of range":
        return Refused(key, "a finite number is required", value=value)
    if "regex" in bound_text:
        required = option.spelling.metavar or "another form"
        matches = difflib.get_close_matches(str(value).lower(), re.findall(r"\w+", required), n=1, cutoff=0.7)
        hint = f"did you mean {matches[0]!r}?" if matches else option.sentence
        return Refused(key, f"{required} is required", value=value, hint=hint)
    return Refused(key, f"{_NAMES.get(name, name or text)} is required", value=value, by_type=True)


def _refuse_unknown(kind: type, values: Mapping[str, Any], prefix: str) -> None:
    """Refuse unknown keys, which msgspec ignores."""
    options = {option.name: option for option in fields_of(kind)}
    for key, value in values.items():
        if key not in options:
            matches = difflib.get_close_matches(key, options, n=1)
            hint = f"did you mean {prefix}{matches[0]}?" if matches else f"known keys: {', '.join(options)}"
            raise Refused(f"{prefix}{key}", "is unknown", hint=hint)
        table = options[key].table
        if table is not None and isinstance(value, dict):
            _refuse_unknown(table, value, f"{prefix}{key}.")
        if table is not None and isinstance(value, list):
            for index, row in enumerate(value):
                if isinstance(row, dict):
                    _refuse_unknown(table, row, f"{prefix}{key}[{index}].")


def _option_at(kind: Any, place: str) -> Option:
    """Return the option at a path such as `artifact[0].layers[1]`."""
    for name in re.findall(r"\.?(\w+)(?:\[\d+\])*", place):
        option = next(option for option in fields_of(kind) if option.name == name)
        if option.table is None:
            break
        kind = option.table
    return option


def _value_at(place: str, value: Any) -> Any:
    for name, index in re.findall(r"(\w+)(?!\])|\[(\d+)\]", place):
        value = value[name] if name else value[int(index)]
    return value


def _type_and_value(value: object) -> str:
    name = type(value).__name__
    return f"{_NAMES.get(name, name)} ({_short_repr(value)})"


def _short_repr(value: object) -> str:
    """Return the repr of a value, cut to fit into a message."""
    try:
        text = repr(value).removesuffix(".0") if isinstance(value, float) else repr(value)
    except (ValueError, RecursionError):  # an integer with thousands of digits; deeply nested lists
        return f"({type(value).__name__})"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def non_default_options(spec: object, *, without: tuple[str, ...] = ()) -> dict[str, object]:
    """Return the options that differ from their defaults, as JSON values: the `options` of a manifest.

    Options of nested tables are merged in, as on the command line. Places of files are left out.
    """
    changes: dict[str, object] = {}
    for option in fields_of(type(spec)):
        value = getattr(spec, option.name)
        if option.name in without or option.spelling.place or value == option.default:
            continue
        is_table = option.table is not None and not option.repeated
        changes |= non_default_options(value) if is_table else {option.name: _json_value(value)}
    return changes


def key(spec: object, *, without: tuple[str, ...] = ()) -> dict[str, object]:
    """Return all options as JSON values, for the key of a stage; a new option therefore changes the key.

    Places of files are left out: the stage adds digests of their content.
    """
    return {
        option.name: _json_value(getattr(spec, option.name))
        for option in fields_of(type(spec))
        if option.name not in without and not option.spelling.place
    }


def _json_value(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return key(value)
    return [_json_value(item) for item in value] if isinstance(value, tuple) else value
