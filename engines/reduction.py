"""Make a graph with its inputs smaller, as long as it still shows what it shows.

1. Nodes: halves of what is left are taken away, then quarters, down to single nodes (Zeller and Hildebrandt,
   Simplifying and Isolating Failure-Inducing Input, IEEE Transactions on Software Engineering 28, 2002). What
   a node that stays read from one that goes becomes an input, with the value that it had.
2. Nodes between a tensor and another one of its shape and type: the second is replaced by the first.
3. Extents: every axis of one extent, of inputs and stored tensors, becomes shorter.
4. Values: stored tensors and inputs become ones, or are rounded to a digit.

Polygraphy's `debug reduce` does a part of the first by a command line for each attempt.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model import onnx
from ..model.graph.graph import captured_names, infer_shapes, tensor_values
from ..model.graph.graph_edits import (
    drop_unused_initializers,
    refill,
    set_nodes,
    set_values,
    store,
    store_constants,
)
from ..model.graph.graph_names import rename_inputs
from ..model.graph.onnx_file import copy_model
from ..spec.tensors import Feeds

Values = Mapping[str, NDArray[Any]]
_SHAPES = 64
"""Most elements of integers that say a shape or an axis: they stay constants."""


@dataclass(frozen=True)
class Case:
    """A graph and the values of its inputs."""

    model: onnx.ModelProto
    feeds: Feeds

    @property
    def nodes(self) -> int:
        return len(self.model.graph.node)


Shows = Callable[[Case], bool]
"""Whether a case still shows it; False where it is no valid graph, or shows something else."""


class Enough(Exception):
    """What there was of time is over."""


def reduce_case(case: Case, values_of: Callable[[Case], Values], shows: Shows) -> Case:
    """Return the smallest case that is found; `shows` ends the search by `Enough`.

    `values_of` returns every tensor that a case makes, of those that numpy has a type for.
    """
    best = case

    def kept(trial: Case | None) -> bool:
        nonlocal best
        if trial is None or not shows(trial):
            return False
        best = trial
        return True

    try:
        while True:
            before = best.nodes
            _fewer_nodes(best, values_of(best), kept)
            _fewer_between(lambda: best, values_of, kept)
            if best.nodes in (before, 1):
                break
        _shorter_axes(lambda: best, kept)
        _plainer_values(lambda: best, kept)
    except Enough:
        pass
    return best


def with_plain_names(case: Case) -> Case:
    """Return a case whose inputs are x0, x1, ..., stored tensors w0, ..., and others t0, ..."""
    model = copy_model(case.model)
    graph = model.graph
    store_constants(graph)
    names: dict[str, str] = {}
    made = (name for node in graph.node for name in node.output if name)
    for letter, group in (
        ("x", (value.name for value in graph.input)),
        ("w", (tensor.name for tensor in graph.initializer)),
        ("t", made),
    ):
        for number, name in enumerate(name for name in dict.fromkeys(group) if name not in names):
            names[name] = f"{letter}{number}"
    rename_inputs(graph, names)
    for node in graph.node:
        refill(node.output, [names.get(name, name) for name in node.output])
    for item in (*graph.input, *graph.output, *graph.initializer):
        item.name = names[item.name]
    del graph.value_info[:]
    return Case(model, {names[name]: array for name, array in case.feeds.items()})


def part_of(case: Case, keep: Sequence[int], values: Values, shapes: Mapping[str, Any]) -> Case | None:
    """Return the nodes at these places as a graph of their own; None where a value is not known."""
    graph = case.model.graph
    nodes = [graph.node[index] for index in keep]
    made = {name for node in nodes for name in node.output if name}
    read = dict.fromkeys(n for node in nodes for n in (*node.input, *captured_names(node)) if n)
    stored = {tensor.name: tensor for tensor in graph.initializer}
    model = onnx.ModelProto(ir_version=case.model.ir_version, opset_import=case.model.opset_import)
    model.functions.extend(case.model.functions)
    part, feeds = model.graph, dict[str, NDArray[Any]]()
    part.name = graph.name or "graph"
    part.node.extend(nodes)
    part.initializer.extend(stored[name] for name in read if name in stored)
    inputs = {value.name: value for value in graph.input}
    for name in read:
        if name in made or name in stored:
            continue
        value = case.feeds.get(name, values.get(name))
        if value is None:
            return None
        if name not in inputs and value.dtype == np.int64 and value.size <= _SHAPES:
            store(part, name, value)
            continue
        part.input.append(inputs.get(name) or _declared(name, value, shapes.get(name)))
        feeds[name] = value
    wanted = {value.name for value in graph.output}
    results = [name for name in made if name in values and (name not in read or name in wanted)]
    refill(part.output, [_declared(name, values[name], shapes.get(name)) for name in sorted(results)])
    return Case(model, feeds) if results and feeds else None


def _declared(name: str, value: NDArray[Any], shape: Any) -> onnx.ValueInfoProto:
    """An input or output of that type; of the inferred shape where all its extents have a number or name."""
    known = shape is not None and len(shape) == value.ndim and "" not in shape
    dtype = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.helper.make_tensor_value_info(name, dtype, shape if known else value.shape)


def _fewer_nodes(case: Case, values: Values, kept: Callable[[Case | None], bool]) -> None:
    shapes = infer_shapes(case.model)
    keep = list(range(case.nodes))
    size = max(len(keep) // 2, 1)
    while len(keep) > 1:
        removed = False
        end = len(keep)
        while end > 0:
            fewer = keep[: max(end - size, 0)] + keep[end:]
            if fewer and kept(part_of(case, fewer, values, shapes)):
                keep, removed = fewer, True
            end -= size
        if size == 1 and not removed:
            return
        size = max(size // 2, 1)


def _fewer_between(
    best: Callable[[], Case], values_of: Callable[[Case], Values], kept: Callable[[Case | None], bool]
) -> None:
    values = {**values_of(best()), **best().feeds}
    for name in [node.output[0] for node in best().model.graph.node]:
        node = next((node for node in best().model.graph.node if name in node.output), None)
        for source in dict.fromkeys(node.input) if node is not None else ():
            same = _kind(values, source) == _kind(values, name) is not None
            if same and kept(_bridged(best(), name, source)):
                break


def _kind(values: Values, name: str) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    return (values[name].shape, values[name].dtype) if name in values else None


def _bridged(case: Case, name: str, source: str) -> Case | None:
    """A case whose readers of one tensor read another one."""
    if name in {value.name for value in case.model.graph.output}:
        return None
    model = copy_model(case.model)
    graph = model.graph
    rename_inputs(graph, {name: source})
    set_nodes(graph, [node for node in graph.node if name not in node.output])
    drop_unused_initializers(graph)
    read = {name for node in graph.node for name in (*node.input, *captured_names(node))}
    refill(graph.input, [value for value in graph.input if value.name in read])
    return Case(model, {name: array for name, array in case.feeds.items() if name in read})


def _shorter_axes(best: Callable[[], Case], kept: Callable[[Case | None], bool]) -> None:
    """Try shorter extents, the longest first: 1, 2, half, one less."""
    tried: set[tuple[int, int]] = set()
    while True:
        arrays = [*best().feeds.values(), *map(tensor_values, best().model.graph.initializer)]
        extents = sorted({extent for array in arrays for extent in array.shape if extent > 1}, reverse=True)
        pairs = (
            (old, new) for old in extents for new in dict.fromkeys((1, 2, old // 2, old - 1)) if new < old
        )
        pair = next((pair for pair in pairs if pair not in tried), None)
        if pair is None:
            return
        tried.add(pair)
        kept(_shorter(best(), *pair))


def _shorter(case: Case, old: int, new: int) -> Case | None:
    """A case whose axes of one extent have another one, and so have the shapes that are stored."""

    def cropped(array: NDArray[Any]) -> NDArray[Any]:
        if array.dtype == np.int64 and array.ndim <= 1 and array.size <= _SHAPES:
            return np.where(array == old, new, array)
        return array[tuple(slice(new if extent == old else extent) for extent in array.shape)]

    model = copy_model(case.model)
    for tensor in model.graph.initializer:
        set_values(tensor, cropped(tensor_values(tensor)))
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value == old:
                dim.dim_value = new
    return Case(model, {name: cropped(array) for name, array in case.feeds.items()})


def _plainer_values(best: Callable[[], Case], kept: Callable[[Case | None], bool]) -> None:
    for tensor in list(best().model.graph.initializer):
        values = tensor_values(tensor)
        for plain in _plainer(values):
            model = copy_model(best().model)
            set_values(next(one for one in model.graph.initializer if one.name == tensor.name), plain)
            if kept(Case(model, best().feeds)):
                break
    for name, array in list(best().feeds.items()):
        for plain in _plainer(array):
            if kept(Case(best().model, {**best().feeds, name: plain})):
                break


def _plainer(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Forms of an array that are easier to read, the plainest first; none of small integers."""
    if array.dtype.kind not in "fiu" or (array.dtype == np.int64 and array.size <= _SHAPES):
        return
    forms: Iterable[NDArray[Any]] = [np.ones_like(array)]
    if array.dtype.kind == "f":
        rounded = (np.round(array, digits) for digits in (0, 1, 2))
        forms = itertools.chain(forms, rounded)
    for form in forms:
        if not np.array_equal(form, array):
            yield form
