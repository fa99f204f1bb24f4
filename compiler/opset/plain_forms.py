"""Rewrite operators into forms that TensorRT's parser reads.

Einsum          in lower case: capital letters of an equation are invalid characters to it
EyeLike(x)      becomes      Cast(Equal(rows[:, None] + k, columns[None, :])): free extents are refused
                             (TensorRT-RTX 1.7.1)

Col2Im of disjoint blocks becomes a Transpose between two Reshapes; PyTorch's `fold` with a stride as wide
as its kernel is such: patches of an image go back to their places.

x [N, C bh bw, H/bh W/bw] ─ Reshape [N, C, bh, bw, H/bh, W/bw]
                          ─ Transpose [N, C, H/bh, bh, W/bw, bw] ─ Reshape [N, C, H, W]

ScatterND(data, indices, updates, reduction=add) becomes a product with a 0/1 matrix. A layer over a graph
sums the messages of all edges into the node that each leads to (`index_add`):

out = data + sum over e of updates[e] at row indices[e],   data [N, ...], indices [E, 1], updates [E, ...]

Range(N) [N, 1] == indices [1, E] ─ Cast [N, E] ─ MatMul(updates [E, F]) ─ Reshape as data ─ Add(data)

TensorRT and TensorRT-RTX take ScatterND without a reduction alone (RTX 1.7: "ScatterND with reduction is
not supported").

w ─ Q/DQ ─ Conv <pads=...>      becomes      w ─ Q/DQ ─ Conv <pads=..., kernel_shape=[3, 3]>
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING

from ...model.graph import attribute
from ...model.graph_edits import drop_unused_initializers
from .scope import Chain, Scope, rewrite_operator

if TYPE_CHECKING:
    import onnx

_SIDE_BY_SIDE = (0, 1, 4, 2, 5, 3)
_INT64 = 7  # ONNX's number
_WEIGHTED = ("Conv", "ConvTranspose")
_KEEPS_SHAPE = ("QuantizeLinear", "DequantizeLinear", "Identity", "Cast")


def einsums_in_lower_case(model: onnx.ModelProto) -> list[str]:
    """Rename the axes of each Einsum that has capital ones, in place; return the names of those nodes."""
    renamed = []
    for node in model.graph.node:
        equation = next((one for one in node.attribute if one.name == "equation"), None)
        if node.op_type != "Einsum" or equation is None:
            continue
        text = equation.s.decode()
        axes = dict.fromkeys(letter for letter in text if letter.isalpha())
        if text == text.lower() or len(axes) > len(ascii_lowercase):
            continue
        free = iter(letter for letter in ascii_lowercase if letter not in axes)
        names = {axis: axis if axis.islower() else next(free) for axis in axes}
        equation.s = "".join(names.get(letter, letter) for letter in text).encode()
        renamed.append(node.name)
    return renamed


def eyes_to_ranges(model: onnx.ModelProto) -> list[str]:
    """Rewrite each EyeLike of a model of opset 13 or newer in place; return the names of those nodes."""
    return rewrite_operator(model, "EyeLike", _ranges)


def _ranges(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    chain = Chain(node, scope)
    add, ints = chain.add, chain.ints
    kind = attribute(node, "dtype", 0) or scope.elem_type(node, node.input[0])
    shape = add("Shape", [node.input[0]])
    rows, columns = (add("Range", [ints(0), add("Gather", [shape, ints(at)]), ints(1)]) for at in (0, 1))
    diagonal = add("Unsqueeze", [add("Add", [rows, ints(attribute(node, "k", 0))]), ints([1])])
    where = add("Equal", [diagonal, add("Unsqueeze", [columns, ints([0])])])
    add("Cast", [where], last=True, to=kind)
    return chain.nodes


def folds_to_transposes(model: onnx.ModelProto) -> list[str]:
    """Rewrite each Col2Im of an image whose blocks do not overlap, and return the names of those nodes.

    Overlapping blocks, padding, and extents that are computed at run time stay.
    """
    names = rewrite_operator(model, "Col2Im", _transposed)
    if names:
        drop_unused_initializers(model.graph)
    return names


def _transposed(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto] | None:
    image, block = (scope.constant(name) for name in node.input[1:3])
    if image is None or block is None or image.size != 2 or block.size != 2:
        return None
    (height, width), (rows, columns) = image.tolist(), block.tolist()
    apart = attribute(node, "strides", [1, 1]) == [rows, columns] and not any(attribute(node, "pads", []))
    if not apart or attribute(node, "dilations", [1, 1]) != [1, 1]:
        return None
    chain = Chain(node, scope)
    blocks = chain.ints([0, -1, rows, columns, height // rows, width // columns])
    split = chain.add("Reshape", [node.input[0], blocks])
    turned = chain.add("Transpose", [split], perm=_SIDE_BY_SIDE)
    chain.add("Reshape", [turned, chain.ints([0, -1, height, width])], last=True)
    return chain.nodes


def scatter_adds_to_products(model: onnx.ModelProto) -> list[str]:
    """Rewrite each ScatterND that adds rows of floats, and return the names of those nodes.

    One whose indices are tuples, or whose rows have no known length, stays.
    """
    return rewrite_operator(model, "ScatterND", _sums_of_rows)


def _sums_of_rows(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto] | None:
    data, indices, updates = node.input
    extents, tuples = scope.shape(data), scope.shape(indices)
    if attribute(node, "reduction") != "add" or not extents or not tuples or tuples[-1] != 1:
        return None
    rows = [extent for extent in extents[1:] if extent]
    if len(rows) != len(extents) - 1:
        return None
    chain = Chain(node, scope)
    add, ints = chain.add, chain.ints
    shape = add("Shape", [data])
    row = add("Range", [ints(0), add("Gather", [shape, ints(0)]), ints(1)])
    edge = add("Reshape", [add("Cast", [indices], to=_INT64), ints([1, -1])])
    leads = add("Equal", [add("Reshape", [row, ints([-1, 1])]), edge])
    ones = add("Cast", [leads], to=scope.elem_type(node, data))
    sums = add("MatMul", [ones, add("Reshape", [updates, ints([-1, math.prod(rows)])])])
    add("Add", [data, add("Reshape", [sums, shape])], last=True)
    return chain.nodes


def with_kernel_shapes(graph: Path, output: Path, target: str) -> Path:
    """Return a graph that says them, for TensorRT; the file itself where it does already."""
    from ...model.onnx_file import load_onnx, save_onnx
    from ...model.weightless import read_weightless

    if not target.startswith("tensorrt") or not write_kernel_shapes(read_weightless(graph).model):
        return graph
    model = load_onnx(graph)
    write_kernel_shapes(model)
    save_onnx(model, output)
    return output


def write_kernel_shapes(model: onnx.ModelProto) -> bool:
    """Give each convolution without kernel_shape that of its weights, and return whether there was any.

    TensorRT's parser takes the shape from weights that are initializers. For weights behind Q/DQ it takes it
    from the attribute alone, compares an array that was never set, and refuses: "The input tensor shape
    misaligns with the input kernel shape" (onnx-tensorrt 8.5-GA to 10.1-GA, `convMultiInput`; issue 655).
    """
    from onnx import helper

    dims = {item.name: list(item.dims) for item in model.graph.initializer}
    made_by = {output: node for node in model.graph.node for output in node.output}
    changed = False
    for node in model.graph.node:
        if node.op_type not in _WEIGHTED or attribute(node, "kernel_shape") is not None:
            continue
        shape = dims.get(_behind(node.input[1], made_by))
        if shape is not None and node.input[1] not in dims:
            node.attribute.append(helper.make_attribute("kernel_shape", shape[2:]))
            changed = True
    return changed


def _behind(name: str, made_by: Mapping[str, onnx.NodeProto]) -> str:
    """The tensor that a tensor is quantized or cast from."""
    while name in made_by and made_by[name].op_type in _KEEPS_SHAPE:
        name = made_by[name].input[0]
    return name
