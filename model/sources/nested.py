"""Flatten inputs inside dicts, dataclasses and tuples into named tensors, and rebuild them for each call."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ...errors import ExportError
from .pytorch import fields_of, join_path


class Slot(str):
    """The name of an input, in place of its tensor in the arguments."""


class NestedInputs(nn.Module):
    """A module that takes tensors by position and passes them to the inner `forward` in their structure.

    `arguments` and `keywords` hold a `Slot` in place of each tensor.
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
        """Call the inner module with these tensors in its structure."""
        values = dict(zip(self.input_names, tensors, strict=True))

        def fill(value: Any, _: str) -> Any:
            return values[value] if isinstance(value, Slot) else value

        arguments = [_map(item, "", fill) for item in self._arguments]
        keywords = {name: _map(item, "", fill) for name, item in self._keywords.items()}
        return self.inner(*arguments, **keywords)


def flatten_inputs(module: nn.Module, example: Any) -> tuple[nn.Module, tuple[Any, ...] | dict[str, Any]]:
    """Return a module that takes tensors, and its example by name.

    `example` is a tensor, or a tuple (positional) or dict (by name) of `forward`'s arguments. These may be
    tensors, tuples, lists, dicts, dataclasses, None and numbers.
    """
    if not isinstance(example, dict | tuple):
        example = (example,)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    signature: list[inspect.Parameter] = []
    with contextlib.suppress(TypeError, ValueError):
        if not isinstance(module, torch.jit.ScriptModule):
            signature = list(inspect.signature(module.forward).parameters.values())
    parameters = [parameter.name for parameter in signature if parameter.kind in kinds]
    if isinstance(example, dict) and not any(p.kind is p.VAR_KEYWORD for p in signature):
        required = [p for p in signature if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
        if len(required) == 1 and not set(example) & {parameter.name for parameter in signature}:
            example = (example,)  # the dict itself is the argument of forward(batch)
    values = example.values() if isinstance(example, dict) else example
    if all(isinstance(value, torch.Tensor) for value in values):
        return module, example
    tensors: dict[str, torch.Tensor] = {}

    def slot(value: Any, path: str) -> Any:
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        if isinstance(value, torch.Tensor):
            while path in tensors:
                path += "_"
            tensors[path] = value
            return Slot(path)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise ExportError(
            f"example: {path} is {type(value).__name__}; tensors, numbers, or tuples, dicts and dataclasses "
            "of them, are required"
        )

    if isinstance(example, dict):
        keywords = {name: _map(item, name, slot) for name, item in example.items()}
        return NestedInputs(module, (), keywords, list(tensors)), tensors
    names = [*parameters, *(f"input_{index}" for index in range(len(parameters), len(example)))]
    arguments = tuple(_map(item, name, slot) for name, item in zip(names, example, strict=False))
    return NestedInputs(module, arguments, {}, list(tensors)), tensors


def _map(value: Any, path: str, replace: Callable[[Any, str], Any]) -> Any:
    """Return a structure of the same type with its leaves replaced; `path` is the path to `value`."""
    fields = fields_of(value)
    if fields is None and isinstance(value, tuple | list):
        return type(value)(_map(item, join_path(path, index), replace) for index, item in enumerate(value))
    if fields is None:
        return replace(value, path)
    parts = {name: _map(item, join_path(path, name), replace) for name, item in fields}
    if dataclasses.is_dataclass(value):
        result: Any = copy.copy(value)  # the constructor may compute
        for name, part in parts.items():
            if hasattr(value, "__setitem__"):
                result[name] = part
            else:
                object.__setattr__(result, name, part)
        return result
    if isinstance(value, Mapping):
        items = dict(zip(value, parts.values(), strict=True))
        return items if type(value) is dict else type(value)(items)  # type: ignore[call-arg]
    return type(value)(*parts.values())
