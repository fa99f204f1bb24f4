"""Flatten the outputs of `forward` (tuples, dicts, dataclasses) into a list of named tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from ..errors import ExportError, InvalidOption
from .pytorch import import_torch


class ForeignOutput(ExportError):
    """`forward` returned an object that is no tensor, such as a cache."""


def flat_tensors(outputs: Any) -> list[tuple[str, Any]]:
    """Return (name, tensor) of every tensor in what `forward` returned; numbers, texts and None are left out.

    A name is the path through dicts and dataclasses, such as `encoder.hidden_0`; it is empty where the
    outermost structure is a tensor, tuple or list, which name nothing.
    """
    named = _is_named(outputs)
    return [(path if named else "", tensor) for path, tensor in _tensors(outputs, "")]


def flat_outputs(outputs: Any) -> tuple[list[str], list[NDArray[Any]]]:
    """Return names (empty where the structure has none) and arrays of what `forward` returned."""
    tensors = flat_tensors(outputs)
    return [name for name, _ in tensors], [tensor.detach().cpu().numpy() for _, tensor in tensors]


def name_outputs(given: Sequence[str], reference: Any) -> list[str]:
    """Return a name for every output: as given, as the structure says, or `output`, `output_0`, ..."""
    names = [name for name, _ in flat_tensors(reference)]
    if not names:
        raise ExportError(
            f"forward returned {type(reference).__name__}; tensors, or a tuple or dict of them, are required"
        )
    if given:
        if len(given) != len(names):
            raise InvalidOption(f"{len(given)} output names for {len(names)} outputs")
        return list(given)
    if all(names) and len(set(names)) == len(names):
        return names
    return ["output"] if len(names) == 1 else [f"output_{i}" for i in range(len(names))]


def is_plain(outputs: Any) -> bool:
    """Whether PyTorch's exporter takes a structure apart as `flat_tensors` does: only tensors, no `None`."""
    if isinstance(outputs, import_torch().Tensor):
        return True
    if type(outputs) in (tuple, list):
        return all(is_plain(item) for item in outputs)
    return type(outputs) is dict and all(is_plain(item) for item in outputs.values())


def fields_of(value: Any) -> list[tuple[str, Any]] | None:
    """The named parts of a dict, dataclass or named tuple; None for what has none."""
    if isinstance(value, Mapping):
        return [(str(name), item) for name, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(getattr(value, "_fields"), value, strict=True))  # noqa: B009
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(item.name, getattr(value, item.name)) for item in dataclasses.fields(value)]
    return None


def joined(path: str, name: str | int) -> str:
    """A longer path: `batch.image` by name, `features_0` by position; ONNX has no rule for other letters."""
    if isinstance(name, int):
        return f"{path}_{name}" if path else str(name)
    plain = "".join(letter if letter.isalnum() or letter in "_.-" else "_" for letter in name)
    return f"{path}.{plain}" if path else plain


def _is_named(outputs: Any) -> bool:
    return fields_of(outputs) is not None


def _tensors(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, import_torch().Tensor):
        yield path, value
    elif value is not None and not isinstance(value, bool | int | float | str):
        fields = fields_of(value)
        parts: list[tuple[Any, Any]]
        if fields is not None and not _is_cache(value):
            parts = list(fields)
        elif isinstance(value, tuple | list):
            parts = list(enumerate(value))
        else:
            raise ForeignOutput(
                f"forward returned {type(value).__name__} "
                f"({f'output {path}' if path else 'its only output'}); "
                "tensors, or tuples, dicts and dataclasses of them, are required",
                hint="wrap the model in an nn.Module that returns the tensors alone",
                output=path,
            )
        for name, item in parts:
            yield from _tensors(item, joined(path, name))


def _is_cache(value: Any) -> bool:
    """Older caches of transformers are dataclasses whose lists grow while the model runs."""
    return type(value).__name__.endswith("Cache")
