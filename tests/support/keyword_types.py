"""The keyword arguments of the verbs for editors and type checkers, from `spec/`.

``make reference`` writes `spec/keywords.pyi`; a test compares it.
"""

from __future__ import annotations

import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path

from qcompile.spec.artifacts import BuildSpec, QatSpec, QuantizeSpec, ReproduceSpec
from qcompile.spec.looking import DoctorCommand, EpContextSpec, InspectSpec, LoadSpec, ReportSpec, TritonSpec
from qcompile.spec.measure import BenchSpec, DiffSpec, GateOptions, LayerDiffSpec
from qcompile.spec.models import CalibrateSpec, ExportSpec, SimplifySpec
from qcompile.spec.option import Option, fields_of
from qcompile.spec.recipes import (
    AutoSpec,
    ConnectionOptions,
    InitSpec,
    RunSpec,
    SweepSpec,
    TuneSpec,
)

_HEAD = '''\
"""Keyword arguments of the verbs, for type checkers alone. Written by `make reference` from spec/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict

from .tensorrt import TensorRTOptions
from .tensors import Dataset'''


SPECS: dict[str, type] = {
    "auto": AutoSpec, "benchmark": BenchSpec, "build": BuildSpec, "calibrate": CalibrateSpec,
    "connect": ConnectionOptions, "diff": DiffSpec, "doctor": DoctorCommand,
    "export": ExportSpec, "gate": GateOptions, "init": InitSpec, "inspect": InspectSpec,
    "layer_diff": LayerDiffSpec, "load": LoadSpec, "package_ep_context": EpContextSpec,
    "package_triton": TritonSpec, "qat": QatSpec,
    "quantize": QuantizeSpec, "report": ReportSpec, "reproduce": ReproduceSpec, "run": RunSpec,
    "simplify": SimplifySpec, "sweep": SweepSpec, "tune": TuneSpec,
}  # fmt: skip
"""Verb of the Python interface to the spec whose fields are its keywords."""
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
        yield f"    {one.name}: {_kind(one)}"
        yield textwrap.indent(textwrap.fill(f'"""{one.sentence}"""', 104), "    ")


def _kind(one: Option) -> str:
    """The types that Python may give an option in."""
    if one.takes_data:
        return "Dataset | None" if one.optional else "Dataset"
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
