"""Flatten inputs inside dicts, dataclasses and tuples into named tensors, and rebuild them for each call."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ..errors import ExportError
from .pytorch import fields_of, joined


@dataclass(frozen=True)
class Slot:
    """Where the tensor of an input stands in the arguments."""

    name: str


class NestedInputs(nn.Module):
    """A module whose inputs are plain tensors, by position; its own `forward` is called with the structure.

    Args:
        arguments: Positional arguments, each tensor replaced by its `Slot`.
        keywords: Keyword arguments, likewise.
        input_names: Names of the tensors, in order.
    """

    def __init__(
        self, inner: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], names: Sequence[str]
    ) -> None:
        super().__init__()
        self.inner = inner
        self.input_names = tuple(names)
        self._arguments, self._keywords = arguments, keywords
        self.training = inner.training

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Call the module with the structure, its tensors in place."""
        values = dict(zip(self.input_names, tensors, strict=True))
        arguments = [_filled(item, values) for item in self._arguments]
        keywords = {name: _filled(item, values) for name, item in self._keywords.items()}
        return self.inner(*arguments, **keywords)


def taken_apart(module: nn.Module, example: Any) -> tuple[nn.Module, tuple[Any, ...] | dict[str, Any]]:
    """Return a module that takes tensors, and its example by name, for an example that may be nested.

    Args:
        example: A tensor, or a tuple (positional) or dict (by name) of the arguments of `forward`. Arguments
            may be tuples, lists, dicts, dataclasses, None and numbers.
    """
    if not isinstance(example, dict | tuple):
        example = (example,)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    known = [] if isinstance(module, torch.jit.ScriptModule) else _parameters(module)
    parameters = [parameter.name for parameter in known if parameter.kind in kinds]
    if isinstance(example, dict) and _is_one_argument(module, example):
        example = (example,)  # forward(batch), called with the dict itself
    values = list(example.values()) if isinstance(example, dict) else list(example)
    if all(isinstance(value, torch.Tensor) for value in values):
        return module, example
    tensors: dict[str, torch.Tensor] = {}
    if isinstance(example, dict):
        keywords = {name: _slots(item, name, tensors) for name, item in example.items()}
        return NestedInputs(module, (), keywords, list(tensors)), tensors
    names = [*parameters, *(f"input_{index}" for index in range(len(parameters), len(example)))]
    arguments = tuple(_slots(item, name, tensors) for name, item in zip(names, example, strict=False))
    return NestedInputs(module, arguments, {}, list(tensors)), tensors


def _parameters(module: nn.Module) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return []


def _is_one_argument(module: nn.Module, example: Mapping[str, Any]) -> bool:
    """Whether a dict is the one argument of `forward`, rather than its keywords."""
    parameters = _parameters(module)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return False
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    return len(required) == 1 and not set(example) & {parameter.name for parameter in parameters}


def _slots(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """The value with slots for its tensors, which are added to `tensors` by name."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, torch.Tensor):
        name = path
        while name in tensors:
            name += "_"
        tensors[name] = value
        return Slot(name)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    fields = fields_of(value)
    if fields is not None:
        parts = {name: _slots(item, joined(path, name), tensors) for name, item in fields}
        return _with_parts(value, parts, list(parts.values()))
    if isinstance(value, tuple | list):
        return type(value)(_slots(item, joined(path, index), tensors) for index, item in enumerate(value))
    raise ExportError(
        f"example: {path} is {type(value).__name__}; tensors, numbers, or tuples, dicts and dataclasses of "
        "them, are required"
    )


def _filled(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The value with tensors in its slots."""
    if isinstance(value, Slot):
        return tensors[value.name]
    fields = fields_of(value)
    if fields is not None:
        parts = {name: _filled(item, tensors) for name, item in fields}
        return _with_parts(value, parts, list(parts.values()))
    if isinstance(value, tuple | list):
        return type(value)(_filled(item, tensors) for item in value)
    return value


def _with_parts(value: Any, parts: dict[str, Any], in_order: list[Any]) -> Any:
    """A structure of the same type with other parts."""
    if isinstance(value, Mapping) and not dataclasses.is_dataclass(value):
        made = dict(zip(value, in_order, strict=True))
        return made if type(value) is dict else type(value)(made)  # type: ignore[call-arg]
    if dataclasses.is_dataclass(value):
        made_of: Any = copy.copy(value)  # not by its constructor, which may compute
        for name, part in parts.items():
            if hasattr(value, "__setitem__"):
                made_of[name] = part
            else:
                object.__setattr__(made_of, name, part)
        return made_of
    return type(value)(*in_order)
