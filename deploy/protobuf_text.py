"""Protobuf's text format, written from plain values (protobuf.dev, "Text Format Language Specification").

| value             | is written                                              |
|-------------------|---------------------------------------------------------|
| `Word("KIND_GPU")`| `kind: KIND_GPU`                                        |
| `"resnet"`        | `name: "resnet"`, escaped                               |
| `True`, `8`       | `enable: true`, `max_batch_size: 8`                     |
| a mapping         | `dynamic_batching { ... }`; present even when empty     |
| a list of scalars | `dims: [ 3, 224, 224 ]`; an empty one is left out       |
| a list of mappings| one `input { ... }` each                                |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_INDENT = "  "


class Word(str):
    """The name of an enumeration's value: written without quotes."""


Scalar: TypeAlias = "bool | int | str"
Value: TypeAlias = "Scalar | Message | Sequence[Scalar] | Sequence[Message]"
Message: TypeAlias = "Mapping[str, Value]"


def format_message(fields: Message, *, depth: int = 0) -> str:
    """Return the lines of a message's fields, in their order."""
    return "".join(_field(name, value, _INDENT * depth, depth) for name, value in fields.items())


def format_string(text: str) -> str:
    """Return a string literal: printable characters as they are, others as octal escapes of UTF-8."""
    return '"' + "".join(map(_character, text)) + '"'


def _field(name: str, value: Value, indent: str, depth: int) -> str:
    if isinstance(value, Mapping):
        body = format_message(value, depth=depth + 1)
        return f"{indent}{name} {{\n{body}{indent}}}\n" if body else f"{indent}{name} {{ }}\n"
    if isinstance(value, bool | int | str):
        return f"{indent}{name}: {_scalar(value)}\n"
    messages = [item for item in value if isinstance(item, Mapping)]
    if messages:
        return "".join(_field(name, message, indent, depth) for message in messages)
    items = [_scalar(item) for item in value if not isinstance(item, Mapping)]
    return f"{indent}{name}: [ {', '.join(items)} ]\n" if items else ""


def _scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Word):
        return str(value)
    return format_string(value) if isinstance(value, str) else str(value)


def _character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode())
