"""Resize samples to other extents of a model's dynamic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...spec.tensors import Feeds, TensorInfo, named_extents
from .. import onnx
from ..graph.graph import model_io
from ..graph.input_notes import read_notes
from .random_input import Domain, RandomInput, read_domains

BATCHES = (1, 5)
"""Batch sizes of `at_other_extents`: one, and more than a vector of four."""


def at_other_extents(model: onnx.ModelProto, feeds: Feeds) -> list[Feeds]:
    """Return feeds with one dynamic axis resized each: to other batch sizes, or to half of another axis.

    Samples are repeated or cut, so values are real; lengths and indices are limited to the extent of their
    axis. Axes respect the ranges noted in the file. The model may still reject the extents.
    """
    inputs, notes, random_input = model_io(model).inputs, read_notes(model), RandomInput(model)
    axes: dict[str, dict[str, list[int]]] = {}  # name of a dynamic axis, input to its indices
    new_extents: dict[str, set[int]] = {}
    for tensor in inputs:
        for axis, dim in tensor.dynamic_axes.items():
            is_batch = random_input.is_batch(axis, dim)
            current = feeds[tensor.name].shape[axis]
            name = "batch" if is_batch else f"{tensor.name}/{axis}" if dim == "?" else f"axis {dim}"
            axes.setdefault(name, {}).setdefault(tensor.name, []).append(axis)
            note = notes.get(tensor.name)
            limits = note.axes.get(axis) if note else None
            extents = BATCHES if is_batch else (max(current // 2, 1),)
            allowed = {limits.round_up(extent) if limits else extent for extent in extents} - {current, 0}
            new_extents[name] = (new_extents[name] & allowed) if name in new_extents else allowed
    resized = (
        {name: _resized(array, axes[axis].get(name, []), extent) for name, array in feeds.items()}
        for axis, extents in new_extents.items()
        for extent in sorted(extents)
        if all(feeds[name].shape[index] for name, indices in axes[axis].items() for index in indices)
    )
    return [_within_extents(other, inputs, read_domains(model)) for other in resized]


def _within_extents(feeds: Feeds, inputs: Sequence[TensorInfo], domains: Mapping[str, Domain]) -> Feeds:
    """Return the feeds with lengths and indices limited to the extents of their axes."""
    extents = named_extents(inputs, {name: array.shape for name, array in feeds.items()})
    limited = dict(feeds)
    for name, domain in domains.items():
        bounds = [min(extents.get(dim, {0})) for dim in domain.bounds if isinstance(dim, str)]
        if name in feeds and any(bounds):
            most = min(filter(None, bounds)) - (domain.kind != "length")
            limited[name] = np.minimum(feeds[name], most).astype(feeds[name].dtype)
    return limited


def _resized(array: NDArray[Any], axes: Sequence[int], extent: int) -> NDArray[Any]:
    for axis in axes:
        array = np.take(array, np.arange(extent) % array.shape[axis], axis)
    return array
