"""Declaration of an option: a field whose annotation has a sentence and, after it, `option(...)`.

    isa: Annotated[Isa, "Instruction set that static INT8 for onnxruntime runs on."] = "auto"

msgspec decodes and checks by the type and the constraints. The command line, the recipe's schema and the
reference pages are made from the sentence and the spelling.
"""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, inspect

COMMA = r","
SHAPES = r",(?=[^,\[\]]*:)"
"""trtexec's separator of inputs: a comma before a name, as shapes contain commas too."""

_SPELLING = "spelling"
Named = Literal[
    "cache", "data", "file", "interpreter", "library", "metric", "model", "output", "preprocessing", "ranges",
    "weights",
]  # fmt: skip
"""Kinds of things that the text of an option can name; a metric function is spelled like a model."""


@dataclass(frozen=True)
class OptionSpelling:
    """How the command line spells an option.

    Attributes:
        flag: Flag that differs from the name of the field, such as "--gpu" for `gpus`.
        metavar: Placeholder of the value, also the requirement in errors.
        split: Pattern that divides one value into several.
        pairs: Separator of a name and its value, if Python may pass a mapping.
        off: Whether the flag makes a true option false, as "--fresh" does for `resume`.
        argument: Whether the command line takes it by position.
        place: Whether it is only the place of a file. Keys and manifests have digests of the content.
        targets: Targets that it applies to; empty for all.
        names: Kind of thing that its text names; a recipe may spell it as a path, as code or as an address.
    """

    flag: str = ""
    short: str = ""
    metavar: str = ""
    split: str = ""
    pairs: str = ""
    off: bool = False
    argument: bool = False
    place: bool = False
    targets: tuple[str, ...] = ()
    names: Named | None = None


_CONSTRAINTS = ("ge", "gt", "le", "lt", "pattern", "min_length")


def option(usage: str = "", **about: Any) -> Callable[[str], Meta]:
    """Return a function that turns an option's sentence into `Meta` with `OptionSpelling` and constraints.

    `usage` is the flag, the letter and the metavar, each of them optional: "--input -i NAME:SHAPE".
    """
    match = re.fullmatch(r"(--\S+)? ?(-\w)? ?(.*)", usage)
    assert match is not None, "every text has this form"
    flag, short, metavar = match.groups("")
    constraints = {name: about.pop(name) for name in _CONSTRAINTS if name in about}
    spelling = OptionSpelling(flag, short, metavar, **about)
    return lambda sentence: Meta(description=sentence, extra={_SPELLING: spelling}, **constraints)


def argument(sentence: str) -> Meta:
    """Return the `Meta` of an option that the command line takes by its position."""
    return option(argument=True)(sentence)


def described(hint: Any) -> Any:
    """Return an annotation with sentence and `option(...)`, in either order, combined into `Meta`."""
    metadata = getattr(hint, "__metadata__", ())
    sentence = next((part for part in metadata if isinstance(part, str)), None)
    if sentence is None:
        return hint
    kind = hint.__origin__
    for limits in (part for part in metadata if isinstance(part, Meta)):
        kind = Annotated[kind, limits]
    return Annotated[kind, next((part for part in metadata if callable(part)), option())(sentence)]


@dataclass(frozen=True)
class Option:
    """One declared option.

    Attributes:
        key: Path in the spec, such as "tensorrt.workspace".
        annotation: Type with sentence, spelling and constraints.
        kind: Type as msgspec sees it, without `None` and without the tuple around several values.
        choices: Allowed values of an option with a list of them, without the empty one.
        default: Default value; `msgspec.NODEFAULT` if the option is required.
        table: Dataclass of a nested table, or None for a value.
    """

    name: str
    key: str
    annotation: Any
    kind: inspect.Type
    choices: tuple[str, ...]
    repeated: bool
    optional: bool
    default: Any
    sentence: str
    spelling: OptionSpelling
    table: type | None

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def takes_data(self) -> bool:
        return self.spelling.metavar == "DATA" or self.spelling.names == "data"

    @property
    def flag(self) -> str:
        return self.spelling.flag or "--" + self.name.replace("_", "-")


def fields_of(kind: Any) -> tuple[Option, ...]:
    """Return the options of a spec in order; a nested table is one of them."""
    return _fields_of(kind)


@functools.cache
def _fields_of(kind: Any) -> tuple[Option, ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    about = inspect.type_info(kind)
    assert isinstance(about, inspect.DataclassType)
    return tuple(_make_option(field, hints[field.name]) for field in about.fields)


def options_of(kind: type) -> tuple[Option, ...]:
    """Return every option of a spec, with those of nested tables by their path."""
    options: list[Option] = []
    for field in fields_of(kind):
        if field.table is None or field.repeated:
            options.append(field)
        else:
            options += (replace(inner, key=f"{field.name}.{inner.key}") for inner in options_of(field.table))
    return tuple(options)


def _make_option(field: inspect.Field, annotation: Any) -> Option:
    kind, about = _unwrap(field.type)
    optional = isinstance(kind, inspect.UnionType)
    if isinstance(kind, inspect.UnionType):
        kind, inner = _unwrap(next(kind_ for kind_ in kind.types if not isinstance(kind_, inspect.NoneType)))
        about = about or inner
    repeated = isinstance(kind, inspect.VarTupleType)
    if isinstance(kind, inspect.VarTupleType):
        kind, _ = _unwrap(kind.item_type)
    table = kind.cls if isinstance(kind, inspect.DataclassType) else None
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    sentence, spelling = about or ("", OptionSpelling())
    return Option(
        field.name, field.name, annotation, kind, _choices(annotation), repeated, optional, default,
        sentence, spelling, table,
    )  # fmt: skip


def _unwrap(kind: inspect.Type) -> tuple[inspect.Type, tuple[str, OptionSpelling] | None]:
    """Return a type without its `Meta`, and the sentence and spelling of the `Meta` or None."""
    if not isinstance(kind, inspect.Metadata):
        return kind, None
    if not kind.extra:
        return kind.type, None
    return kind.type, ((kind.extra_json_schema or {})["description"], kind.extra[_SPELLING])


def _choices(annotation: Any) -> tuple[str, ...]:
    if typing.get_origin(annotation) is typing.Literal:
        return tuple(str(value) for value in typing.get_args(annotation) if value)
    inner = (_choices(part) for part in typing.get_args(annotation))
    return next((choices for choices in inner if choices), ())


def as_path(kind: type, value: object) -> object:
    """Convert a text to `Path`, which msgspec does not know."""
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise NotImplementedError(kind)
