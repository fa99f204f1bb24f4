"""Reduce a case (a graph and its input values) to a smaller case that still shows the same failure.

1. Nodes: remove halves of the nodes, then quarters, down to single nodes (Zeller and Hildebrandt, Simplifying
   and Isolating Failure-Inducing Input, IEEE Transactions on Software Engineering 28, 2002). If a remaining
   node reads a tensor of a removed node, that tensor becomes an input with its former value.
2. Nodes with an input of the same shape and type as the output: the input replaces the output.
3. Extents: shorten all axes of the same extent together, in inputs and stored tensors.
4. Values: replace stored tensors and inputs by ones, or round them to 0 to 2 decimal digits.

Polygraphy's `debug reduce` does a part of step 1, with one command line for each attempt.
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
_MAX_SHAPE_ELEMENTS = 64
"""Largest size of an int64 tensor that counts as a shape or axes; such a tensor becomes a constant."""


@dataclass(frozen=True)
class Case:
    """A graph and the values of its inputs."""

    model: onnx.ModelProto
    feeds: Feeds

    @property
    def nodes(self) -> int:
        return len(self.model.graph.node)


Shows = Callable[[Case], bool]
"""Whether a case still shows the failure; False for an invalid graph or another failure."""


class Enough(Exception):
    """The time limit is reached."""


def reduce_case(case: Case, values_of: Callable[[Case], Values], shows: Shows) -> Case:
    """Return the smallest case found; `shows` ends the search by raising `Enough`.

    `values_of` returns the values of all tensors of a case, except types that numpy lacks.
    """
    best = case

    def accept(trial: Case | None) -> bool:
        nonlocal best
        if trial is None or not shows(trial):
            return False
        best = trial
        return True

    try:
        while True:
            before = best.nodes
            _remove_nodes(best, values_of(best), accept)
            _bypass_nodes(lambda: best, values_of, accept)
            if best.nodes in (before, 1):
                break
        _shorten_axes(lambda: best, accept)
        _simplify_values(lambda: best, accept)
    except Enough:
        pass
    return best


def with_plain_names(case: Case) -> Case:
    """Return a case with plain names: inputs x0, x1, ..., stored tensors w0, ..., other tensors t0, ..."""
    model = copy_model(case.model)
    graph = model.graph
    store_constants(graph)
    names: dict[str, str] = {}
    produced = (name for node in graph.node for name in node.output if name)
    for letter, group in (
        ("x", (value.name for value in graph.input)),
        ("w", (tensor.name for tensor in graph.initializer)),
        ("t", produced),
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


def part_of(case: Case, indices: Sequence[int], values: Values, shapes: Mapping[str, Any]) -> Case | None:
    """Return the nodes at these indices as a case; None if it lacks inputs, their values, or outputs."""
    graph = case.model.graph
    nodes = [graph.node[index] for index in indices]
    produced = {name for node in nodes for name in node.output if name}
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
        if name in produced or name in stored:
            continue
        value = case.feeds.get(name, values.get(name))
        if value is None:
            return None
        if name not in inputs and value.dtype == np.int64 and value.size <= _MAX_SHAPE_ELEMENTS:
            store(part, name, value)
            continue
        part.input.append(inputs.get(name) or _value_info(name, value, shapes.get(name)))
        feeds[name] = value
    graph_outputs = {value.name for value in graph.output}
    results = [name for name in produced if name in values and (name not in read or name in graph_outputs)]
    refill(part.output, [_value_info(name, values[name], shapes.get(name)) for name in sorted(results)])
    return Case(model, feeds) if results and feeds else None


def _value_info(name: str, value: NDArray[Any], shape: Any) -> onnx.ValueInfoProto:
    """Return an input or output with the value's type, and its inferred shape if all extents are known."""
    is_known = shape is not None and len(shape) == value.ndim and "" not in shape
    dtype = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.helper.make_tensor_value_info(name, dtype, shape if is_known else value.shape)


def _remove_nodes(case: Case, values: Values, accept: Callable[[Case | None], bool]) -> None:
    shapes = infer_shapes(case.model)
    indices = list(range(case.nodes))
    size = max(len(indices) // 2, 1)
    while len(indices) > 1:
        removed = False
        end = len(indices)
        while end > 0:
            fewer = indices[: max(end - size, 0)] + indices[end:]
            if fewer and accept(part_of(case, fewer, values, shapes)):
                indices, removed = fewer, True
            end -= size
        if size == 1 and not removed:
            return
        size = max(size // 2, 1)


def _bypass_nodes(
    best: Callable[[], Case], values_of: Callable[[Case], Values], accept: Callable[[Case | None], bool]
) -> None:
    values = {**values_of(best()), **best().feeds}
    for name in [node.output[0] for node in best().model.graph.node]:
        node = next((node for node in best().model.graph.node if name in node.output), None)
        for source in dict.fromkeys(node.input) if node is not None else ():
            same = _shape_and_dtype(values, source) == _shape_and_dtype(values, name) is not None
            if same and accept(_bypass_node(best(), name, source)):
                break


def _shape_and_dtype(values: Values, name: str) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    return (values[name].shape, values[name].dtype) if name in values else None


def _bypass_node(case: Case, name: str, source: str) -> Case | None:
    """Return the case with `source` in place of the tensor `name`; None if `name` is an output."""
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


def _shorten_axes(best: Callable[[], Case], accept: Callable[[Case | None], bool]) -> None:
    """Try the extents 1, 2, half, and one less, first for the axes with the largest extent."""
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
        accept(_with_extent(best(), *pair))


def _with_extent(case: Case, old: int, new: int) -> Case | None:
    """Return the case with every extent `old` shortened to `new`, also in stored shapes."""

    def cropped(array: NDArray[Any]) -> NDArray[Any]:
        if array.dtype == np.int64 and array.ndim <= 1 and array.size <= _MAX_SHAPE_ELEMENTS:
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


def _simplify_values(best: Callable[[], Case], accept: Callable[[Case | None], bool]) -> None:
    for tensor in list(best().model.graph.initializer):
        values = tensor_values(tensor)
        for plain in _simpler_forms(values):
            model = copy_model(best().model)
            set_values(next(item for item in model.graph.initializer if item.name == tensor.name), plain)
            if accept(Case(model, best().feeds)):
                break
    for name, array in list(best().feeds.items()):
        for plain in _simpler_forms(array):
            if accept(Case(best().model, {**best().feeds, name: plain})):
                break


def _simpler_forms(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield simpler values of an array, the simplest first; nothing for shapes and non-numeric types."""
    if array.dtype.kind not in "fiu" or (array.dtype == np.int64 and array.size <= _MAX_SHAPE_ELEMENTS):
        return
    forms: Iterable[NDArray[Any]] = [np.ones_like(array)]
    if array.dtype.kind == "f":
        rounded = (np.round(array, digits) for digits in (0, 1, 2))
        forms = itertools.chain(forms, rounded)
    for form in forms:
        if not np.array_equal(form, array):
            yield form
