"""The keyword arguments of the verbs for editors and type checkers, from `spec/`.

``make reference`` writes `spec/keywords.pyi`; a test compares it.
"""

from __future__ import annotations

import textwrap
import typing
from collections.abc import Iterator

from qcompile.spec import signatures
from qcompile.spec.option import Option, fields_of
from qcompile.spec.signatures import spec_of, type_text

_HEAD = '''\
"""Keyword arguments of the verbs, for type checkers alone. Written by `make reference` from spec/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict

from .tensorrt import TensorRTOptions
from .tensors import Dataset'''


SPECS: dict[str, type] = {verb: spec_of(verb) for verb in signatures.SPECS}
PARAMETERS = {"export": {"inputs", "preprocessing"}, "quantize": {"ranges"}}
"""Fields that are parameters of their own, as they may be in memory."""


def keyword_names(verb: str) -> list[str]:
    """Return the keywords of a verb."""
    return [one.name for one in fields_of(SPECS[verb]) if one.name not in PARAMETERS.get(verb, ())]


def keyword_types() -> str:
    """Return the text of `spec/keywords.pyi`."""
    classes = []
    for verb, spec in SPECS.items():
        names = keyword_names(verb)
        name = f"{_class_name(verb)}Keywords"
        classes += _keywords(name, verb, [one for one in fields_of(spec) if one.name in names])
    return "\n".join((_HEAD, *classes)) + "\n"


def _class_name(verb: str) -> str:
    """`benchmark` is Bench, `package_ep_context` EpContext."""
    words = verb.removesuffix("mark").removeprefix("package_").split("_")
    return "".join(map(str.capitalize, words))


def _keywords(name: str, function: str, options: typing.Iterable[Option]) -> Iterator[str]:
    yield from ("", f"class {name}(TypedDict, total=False):")
    yield from (f'    """Options of `{function}`, by name."""', "")
    for one in options:
        yield f"    {one.name}: {type_text(one)}"
        yield textwrap.indent(textwrap.fill(f'"""{one.sentence}"""', 104), "    ")
