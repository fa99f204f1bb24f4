"""The keyword arguments of `build` and `quantize` for editors and type checkers, from `spec/`.

``make reference`` writes `spec/keywords.py`; a test compares it.
"""

from __future__ import annotations

import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path

from qcompile.spec.artifacts import BuildSpec, QuantizeSpec
from qcompile.spec.option import Option, fields_of

_HEAD = '''\
"""Keyword arguments of `build` and `quantize`. Written by `make reference` from spec/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict

from .tensorrt import TensorRTOptions'''


def keyword_types() -> str:
    """Return the text of `spec/keywords.py`."""
    build = _keywords("BuildKeywords", "build", fields_of(BuildSpec))
    quantize = _keywords(
        "QuantizeKeywords", "quantize", [one for one in fields_of(QuantizeSpec) if one.name != "ranges"]
    )
    return "\n".join((_HEAD, *build, *quantize)) + "\n"


def _keywords(name: str, function: str, options: typing.Iterable[Option]) -> Iterator[str]:
    yield from ("", "", f"class {name}(TypedDict, total=False):")
    yield from (f'    """Options of `{function}`, by name."""', "")
    for one in options:
        yield f"    {one.name}: {_kind(one)}"
        yield textwrap.indent(textwrap.fill(f'"""{one.sentence}"""', 104), "    ")


def _kind(one: Option) -> str:
    """The types that Python may give an option in."""
    if one.table is not None:
        return f"{one.table.__name__} | Mapping[str, object]"
    (hint,) = [kind for kind in _alternatives(_plain(one.annotation)) if kind is not types.NoneType]
    if one.repeated:
        item = _plain(typing.get_args(hint)[0])
        return (
            f"Sequence[{_named(item)}] | Mapping[str, object]"
            if one.spelling.pairs
            else f"Sequence[{_named(item)}]"
        )
    return f"{_named(hint)} | None" if one.optional else _named(hint)


def _plain(hint: object) -> object:
    return _plain(typing.get_args(hint)[0]) if typing.get_origin(hint) is typing.Annotated else hint


def _alternatives(hint: object) -> tuple[object, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return tuple(map(_plain, typing.get_args(hint))) if union else (hint,)


def _named(hint: object) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return f"Literal[{', '.join(f'{value!r}' for value in typing.get_args(hint))}]".replace("'", '"')
    assert isinstance(hint, type), hint
    return "str | Path" if hint is Path else hint.__name__
