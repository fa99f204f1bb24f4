"""Write operators in forms that leave a parser nothing to mistake.

Mod(x, y) of integers                r = x - y Div(x, y);  r + y where the signs of r and y differ
GroupNormalization of one group      Reshape, InstanceNormalization, Reshape, Mul, Add
LSTM, GRU, RNN of layout 1           Transpose, the same of layout 0, Transpose
Shape from one axis to another       Shape, Slice
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ...model.graph import ONNX_DOMAINS, attribute, every_graph, producers
from ...model.graph_edits import drop_attributes
from ...model.onnx_file import opset
from .decompose import Chain, group_normalization
from .rewrites import Rewrite, slice_shape
from .scope import Scope, replace_nodes

if TYPE_CHECKING:
    import onnx

_RECURRENT = ("LSTM", "GRU", "RNN")
_BATCH_SECOND = (1, 0, 2)
_Y_BATCH_FIRST = (2, 0, 1, 3)  # [time, directions, batch, hidden] to [batch, time, directions, hidden]
_OF_SHAPES = ("Shape", "Size")

Finder = Callable[["onnx.ModelProto"], "list[str]"]
Cure = Callable[["onnx.ModelProto"], object]


def find_integer_mods(model: onnx.ModelProto) -> list[str]:
    """Return Mods of integers (fmod = 0) whose operand is no extent of a shape: those are small."""
    return [
        _name(node)
        for graph in every_graph(model.graph)
        for made_by in [producers(graph)]
        for node in graph.node
        if _is(node, "Mod") and not attribute(node, "fmod", 0) and not _of_shapes(node.input[0], made_by)
    ]


def find_one_group(model: onnx.ModelProto) -> list[str]:
    """Return GroupNormalizations of one group."""
    return _found(model, lambda node: _is(node, "GroupNormalization") and attribute(node, "num_groups") == 1)


def find_batch_first(model: onnx.ModelProto) -> list[str]:
    """Return recurrent layers of layout 1."""
    return _found(model, lambda node: _is(node, *_RECURRENT) and attribute(node, "layout", 0) == 1)


def find_sliced_shapes(model: onnx.ModelProto) -> list[str]:
    """Return Shapes that are not of all axes."""
    return _found(
        model,
        lambda node: (
            _is(node, "Shape") and bool(attribute(node, "start", 0) or attribute(node, "end") is not None)
        ),
    )


def exact_mod(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Mod by a division of integers; ONNX's Div rounds towards zero, Mod towards minus infinity."""
    from onnx import helper

    chain, (x, y) = Chain(node, scope), node.input
    kind = scope.elem_type(node, x)
    zero = scope.store(np.array(0, helper.tensor_dtype_to_np_dtype(kind)), f"{node.output[0]}/zero")
    rest = chain.add("Sub", [x, chain.add("Mul", [y, chain.add("Div", [x, y])])])
    other_sign = chain.add("Less", [chain.add("Mul", [rest, y]), zero])
    chain.add("Where", [other_sign, chain.add("Add", [rest, y]), rest], last=True)
    return chain.nodes


def time_first(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """A recurrent layer of layout 1 as one of layout 0."""
    from onnx import helper

    drop_attributes(node, "layout")
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    for index in (0, 5, 6):  # X, initial_h, initial_c
        if index < len(node.input) and node.input[index]:
            turned = scope.fresh(f"{node.input[index]}/time_first")
            name = scope.fresh(f"{_name(node)}/time_first")
            before.append(
                helper.make_node("Transpose", [node.input[index]], [turned], name, perm=_BATCH_SECOND)
            )
            node.input[index] = turned
    for index, result in enumerate(node.output):
        if result:
            inner = scope.fresh(f"{result}/time_first")
            perm = _BATCH_SECOND if index else _Y_BATCH_FIRST
            name = scope.fresh(f"{_name(node)}/batch_first")
            after.append(helper.make_node("Transpose", [inner], [result], name, perm=perm))
            node.output[index] = inner
    return [*before, node, *after]


def rewriting(find: Finder, rewrite: Rewrite) -> Cure:
    """Return what rewrites the nodes that a finder finds, in place."""

    def cure(model: onnx.ModelProto) -> None:
        found = set(find(model))
        if found:
            replace_nodes(
                model,
                opset(model),
                lambda node, scope: rewrite(node, scope) if _name(node) in found else [node],
            )

    return cure


mods_exactly = rewriting(find_integer_mods, exact_mod)
one_group_by_instances = rewriting(find_one_group, group_normalization)
layouts_time_first = rewriting(find_batch_first, time_first)
shapes_then_slices = rewriting(find_sliced_shapes, slice_shape)


def _found(model: onnx.ModelProto, fits: Callable[[onnx.NodeProto], bool]) -> list[str]:
    return [_name(node) for graph in every_graph(model.graph) for node in graph.node if fits(node)]


def _is(node: onnx.NodeProto, *operators: str) -> bool:
    return node.domain in ONNX_DOMAINS and node.op_type in operators


def _of_shapes(name: str, made_by: dict[str, onnx.NodeProto]) -> bool:
    """Whether a tensor is computed from shapes and constants alone."""
    waiting, seen, from_shape = [name], set[str](), False
    while waiting:
        node = made_by.get(waiting.pop())
        if node is None:
            return False
        if node.op_type in _OF_SHAPES:
            from_shape = True
            continue
        for operand in node.input:
            if operand in made_by and operand not in seen and made_by[operand].op_type != "Constant":
                seen.add(operand)
                waiting.append(operand)
    return from_shape


def _name(node: onnx.NodeProto) -> str:
    return str(node.name or node.output[0])
