"""How an option is declared, once: a field whose annotation holds a sentence and, behind it, `option(...)`.

    isa: Annotated[Isa, "Instruction set that static INT8 for onnxruntime runs on."] = "auto"

The type and the constraints are msgspec's, which decodes and checks; the sentence and the spelling are what
the command line, the recipe's schema and the reference pages are made from.
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
"""Where trtexec separates inputs: at a comma before a name, as commas stand inside of shapes too."""

_SPELLING = "spelling"
Named = Literal[
    "cache", "data", "file", "interpreter", "library", "metric", "model", "output", "preprocessing", "ranges",
    "weights",
]  # fmt: skip
"""What the text of an option names; a metric that is a function is spelled as a model is."""


@dataclass(frozen=True)
class OptionSpelling:
    """How the command line spells an option.

    Attributes:
        flag: Where it is not the name of the field, such as "--gpu" for `gpus`.
        metavar: What stands for the value, and what an error requires.
        split: Pattern that divides one value into several.
        pairs: What stands between a name and its value, of an option that Python may give as a mapping.
        off: Whether the flag makes a true option false, as "--fresh" does for `resume`.
        argument: Whether it is given by position.
        place: Whether it only says where a file lies. Keys and manifests have digests of what it holds.
        targets: The targets that have a use for it; empty for all.
        names: What its text names, of one that a recipe may spell as a path, as code or as an address.
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
    """Return what an annotation holds behind its sentence: `OptionSpelling` and the limits of `Meta`.

    `usage` is the flag, the letter and the metavar, as far as there are any: "--input -i NAME:SHAPE".
    """
    spelled = re.fullmatch(r"(--\S+)? ?(-\w)? ?(.*)", usage)
    assert spelled is not None, "every text has this form"
    flag, short, metavar = spelled.groups("")
    constraints = {name: about.pop(name) for name in _CONSTRAINTS if name in about}
    spelling = OptionSpelling(flag, short, metavar, **about)
    return lambda sentence: Meta(description=sentence, extra={_SPELLING: spelling}, **constraints)


def argument(sentence: str) -> Meta:
    """Return what the annotation of an option holds that the command line takes by its position."""
    return option(argument=True)(sentence)


def described(hint: Any) -> Any:
    """Return an annotation of a type, a sentence, and what `option` said, as msgspec reads it.

    What `option` said may stand in front of the sentence: in a type that several options share.
    """
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
        key: Its path in the spec, such as "tensorrt.workspace".
        annotation: Its type with all that `option` said.
        kind: Its type as msgspec sees it, without `None` and without the tuple around several values.
        choices: The values there are, of an option with a list of them; the empty one is none.
        default: What it is where it is not given; `msgspec.NODEFAULT` where it must be.
        table: The dataclass that it holds, in place of a value.
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
    def flag(self) -> str:
        return self.spelling.flag or "--" + self.name.replace("_", "-")


def fields_of(kind: Any) -> tuple[Option, ...]:
    """Return the options that a spec holds itself, tables among them, in their order."""
    return _fields_of(kind)


@functools.cache
def _fields_of(kind: Any) -> tuple[Option, ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    about = inspect.type_info(kind)
    assert isinstance(about, inspect.DataclassType)
    return tuple(_read(field, hints[field.name]) for field in about.fields)


def options_of(kind: type) -> tuple[Option, ...]:
    """Return every option of a spec, those of its tables with their path."""
    options: list[Option] = []
    for field in fields_of(kind):
        if field.table is None or field.repeated:
            options.append(field)
        else:
            options += (replace(inner, key=f"{field.name}.{inner.key}") for inner in options_of(field.table))
    return tuple(options)


def _read(field: inspect.Field, annotation: Any) -> Option:
    kind, about = _bare(field.type)
    optional = isinstance(kind, inspect.UnionType)
    if isinstance(kind, inspect.UnionType):
        kind, inner = _bare(next(kind_ for kind_ in kind.types if not isinstance(kind_, inspect.NoneType)))
        about = about or inner
    repeated = isinstance(kind, inspect.VarTupleType)
    if isinstance(kind, inspect.VarTupleType):
        kind, _ = _bare(kind.item_type)
    table = kind.cls if isinstance(kind, inspect.DataclassType) else None
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    sentence, spelling = about or ("", OptionSpelling())
    return Option(
        field.name, field.name, annotation, kind, _choices(annotation), repeated, optional, default,
        sentence, spelling, table,
    )  # fmt: skip


def _bare(kind: inspect.Type) -> tuple[inspect.Type, tuple[str, OptionSpelling] | None]:
    """A type without what `option` said of it, and that."""
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
    """Make the types of ours that msgspec does not know: paths."""
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise NotImplementedError(kind)
