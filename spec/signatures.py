"""Signatures of the verbs in Python, with each option by name, its type and its default, from the specs."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from .option import Option, fields_of

SPECS: dict[str, str] = {
    "auto": "recipes:AutoSpec", "benchmark": "measure:BenchSpec", "build": "artifacts:BuildSpec",
    "calibrate": "models:CalibrateSpec", "connect": "recipes:ConnectionOptions", "diff": "measure:DiffSpec",
    "doctor": "looking:DoctorCommand", "export": "models:ExportSpec", "gate": "measure:GateOptions",
    "init": "recipes:InitSpec", "inspect": "looking:InspectSpec", "layer_diff": "measure:LayerDiffSpec",
    "load": "looking:LoadSpec", "package_ep_context": "looking:EpContextSpec",
    "package_triton": "looking:TritonSpec", "qat": "artifacts:QatSpec", "quantize": "artifacts:QuantizeSpec",
    "report": "looking:ReportSpec", "reproduce": "artifacts:ReproduceSpec", "run": "recipes:RunSpec",
    "simplify": "models:SimplifySpec", "sweep": "recipes:SweepSpec", "tune": "recipes:TuneSpec",
}  # fmt: skip
"""Maps a verb of the Python interface to the spec with its keywords as fields."""


def spec_of(verb: str) -> type:
    """Return the spec of a verb of `SPECS`."""
    module, _, name = SPECS[verb].partition(":")
    spec: type = getattr(import_module(f".{module}", __package__), name)
    return spec


def signature_of(verb: str, function: Callable[..., object]) -> inspect.Signature:
    """Return the signature of a verb with its options in place of `**options`."""
    signature = inspect.signature(function)
    parameters = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    if verb in SPECS:
        names = {one.name for one in parameters}
        parameters += [_parameter(option) for option in fields_of(spec_of(verb)) if option.name not in names]
    return signature.replace(parameters=parameters)


def _parameter(option: Option) -> inspect.Parameter:
    default = None if option.table is not None else option.default
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if option.required else default,
        annotation=type_text(option),
    )


def type_text(option: Option) -> str:
    """Return the types of an option's values in Python, as an annotation."""
    if option.takes_data:
        return "Dataset | None" if option.optional else "Dataset"
    if option.table is not None:
        return f"{option.table.__name__} | Mapping[str, object]"
    (hint,) = [kind for kind in _alternatives(_plain(option.annotation)) if kind is not types.NoneType]
    if option.repeated:
        sequence = f"Sequence[{_name(_plain(typing.get_args(hint)[0]))}]"
        return f"{sequence} | Mapping[str, object]" if option.spelling.pairs else sequence
    return f"{_name(hint)} | None" if option.optional else _name(hint)


def _plain(hint: object) -> object:
    return _plain(typing.get_args(hint)[0]) if typing.get_origin(hint) is typing.Annotated else hint


def _alternatives(hint: object) -> tuple[object, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return tuple(map(_plain, typing.get_args(hint))) if union else (hint,)


def _name(hint: object) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return f"Literal[{', '.join(f'{value!r}' for value in typing.get_args(hint))}]".replace("'", '"')
    assert isinstance(hint, type), hint
    return "str | Path" if hint is Path else hint.__name__
