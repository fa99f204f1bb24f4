"""Write GridSample so that no reader mistakes its mode, or as gathered corners with their weights.

GridSample(x, grid), bilinear      becomes, for each of the four corners of a sampling point,

grid ─ coordinates [N, P] ─┬─ Floor, Clip ─ index y * W + x ─ GatherElements(x [N, C, H W]) ─┐
                           └─ weight of the corner, 0 outside ─────────────────────── Mul ── Sum ─ Reshape

P = Ho Wo sampling points; padding zeros or border
"""

from __future__ import annotations

import onnx

from ...model.graph import attribute, consumers, every_graph
from ...model.graph_edits import drop_attributes
from ...model.onnx_file import opset
from .scope import Chain, Scope, find_nodes, node_name, reached

_FLOAT, _INT64 = 1, 7  # ONNX's numbers
MODES_RENAMED = 20
"""The opset in which bilinear and bicubic became linear and cubic, names that not all parsers know."""
_SAMPLES = ("GridSample",)
_BILINEAR = ("bilinear", "linear")
_CARRIED_BY = frozenset("Unsqueeze Reshape Identity Squeeze Transpose Cast".split())


def find_renamed_modes(model: onnx.ModelProto) -> list[str]:
    """Return GridSample nodes whose mode is spelled as from opset 20 on."""
    if opset(model) < MODES_RENAMED:
        return []
    return find_nodes(model, _SAMPLES, lambda node: attribute(node, "mode") in ("linear", "cubic"))


def find_cubic_modes(model: onnx.ModelProto) -> list[str]:
    """Return GridSample nodes of mode "cubic", for which older opsets alone have a name that all know."""
    return find_nodes(model, _SAMPLES, lambda node: attribute(node, "mode") == "cubic")


def modes_left_out(model: onnx.ModelProto) -> None:
    """Take mode "linear" off each GridSample: it is the default of every opset, however it is spelled."""
    for graph in every_graph(model.graph):
        for node in graph.node:
            if node.op_type == "GridSample" and attribute(node, "mode") == "linear":
                drop_attributes(node, "mode")


def find_deformable_attention(model: onnx.ModelProto) -> list[str]:
    """Return bilinear GridSamples of which several meet in one Concat, as the levels of an attention do."""
    names = []
    for graph in every_graph(model.graph):
        read_by = consumers(graph)
        met: dict[str, list[str]] = {}
        for node in graph.node:
            if node.op_type == "GridSample" and attribute(node, "mode", "linear") in _BILINEAR:
                for reader in reached(node.output[0], read_by, _CARRIED_BY):
                    if reader.op_type == "Concat":
                        met.setdefault(node_name(reader), []).append(node_name(node))
        names += [name for samples in met.values() if len(samples) > 1 for name in samples]
    return list(dict.fromkeys(names))


def gathered_corners(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto] | None:
    """One bilinear GridSample of an image [N, C, H, W], as nodes; None for any other."""
    plain = attribute(node, "padding_mode", "zeros") in ("zeros", "border")
    if node.op_type != "GridSample" or not plain or len(scope.shape(node.input[0]) or ()) != 4:
        return None
    chain, (image, grid) = Chain(node, scope), node.input
    add, ints, kind = chain.add, chain.ints, scope.elem_type(node, image)
    sizes, grid_sizes = add("Shape", [image]), add("Shape", [grid])
    if scope.elem_type(node, grid) != _FLOAT:
        grid = add("Cast", [grid], to=_FLOAT)
    width, height = (add("Gather", [sizes, ints(axis)]) for axis in (3, 2))
    x_places, y_places = (
        _places(node, chain, add("Gather", [grid, ints(index)], axis=3), size)
        for index, size in ((0, width), (1, height))
    )
    flat = add("Reshape", [image, ints([0, 0, -1])])
    channels = add("Concat", [ints([1]), add("Gather", [sizes, ints([1])]), ints([1])], axis=0)
    corners = []
    for x_index, x_weight in x_places:
        for y_index, y_weight in y_places:
            index = add("Add", [add("Mul", [y_index, width]), x_index])
            index = add("Expand", [add("Unsqueeze", [index, ints([1])]), channels])
            weight = add("Unsqueeze", [add("Mul", [x_weight, y_weight]), ints([1])])
            if kind != _FLOAT:
                weight = add("Cast", [weight], to=kind)
            corners.append(add("Mul", [add("GatherElements", [flat, index], axis=2), weight]))
    total = add("Add", [add("Add", corners[:2]), add("Add", corners[2:])])
    extents = [add("Gather", [shape, ints(axes)]) for shape, axes in ((sizes, [0, 1]), (grid_sizes, [1, 2]))]
    add("Reshape", [total, add("Concat", extents, axis=0)], last=True)
    return chain.nodes


def _places(node: onnx.NodeProto, chain: Chain, value: str, extent: str) -> list[tuple[str, str]]:
    """Index int64 [N, P] and weight [N, P] of the lower and of the upper neighbour along an axis."""
    add, zeros = chain.add, attribute(node, "padding_mode", "zeros") == "zeros"
    one, half, zero = (chain.scalar(number, _FLOAT) for number in (1.0, 0.5, 0.0))
    size = add("Cast", [extent], to=_FLOAT)
    value = add("Add", [add("Reshape", [value, chain.ints([0, -1])]), one])
    last = add("Sub", [size, one])
    if attribute(node, "align_corners", 0):
        value = add("Mul", [add("Mul", [value, half]), last])
    else:
        value = add("Mul", [add("Sub", [add("Mul", [value, size]), one]), half])
    if not zeros:
        value = add("Min", [add("Max", [value, zero]), last])
    low = add("Floor", [value])
    share = add("Sub", [value, low])
    neighbours = []
    for corner, weight in ((low, add("Sub", [one, share])), (add("Add", [low, one]), share)):
        inside = add("Min", [add("Max", [corner, zero]), last])
        if zeros:
            weight = add("Mul", [weight, add("Cast", [add("Equal", [inside, corner])], to=_FLOAT)])
        neighbours.append((add("Cast", [inside], to=_INT64), weight))
    return neighbours
