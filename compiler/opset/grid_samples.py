"""Write GridSample so that no reader mistakes its mode, or as gathered corners with their weights.

GridSample(x, grid), bilinear      becomes, for each of the four corners of a sampling point,

grid ─ coordinates [N, P] ─┬─ Floor, Clip ─ index y * W + x ─ GatherElements(x [N, C, H W]) ─┐
                           └─ weight of the corner, 0 outside ─────────────────────── Mul ── Sum ─ Reshape

P = Ho Wo sampling points; padding zeros or border
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...model.graph import ONNX_DOMAINS, attribute, consumers, every_graph
from ...model.graph_edits import drop_attributes
from ...model.onnx_file import opset
from .decompose import Chain
from .scope import Scope, replace_nodes

if TYPE_CHECKING:
    import onnx

_RENAMED = 20  # the opset in which bilinear and bicubic became linear and cubic
_BILINEAR = ("bilinear", "linear")
_CARRIED_BY = frozenset("Unsqueeze Reshape Identity Squeeze Transpose Cast".split())


def find_renamed_modes(model: onnx.ModelProto) -> list[str]:
    """Return GridSample nodes whose mode is spelled as from opset 20 on."""
    if opset(model) < _RENAMED:
        return []
    return [
        _name(node)
        for node in _grid_samples(model)
        if attribute(node, "mode") in ("linear", "cubic")
    ]  # fmt: skip


def find_cubic_modes(model: onnx.ModelProto) -> list[str]:
    """Return GridSample nodes of mode "cubic", for which older opsets alone have a name that all know."""
    return [_name(node) for node in _grid_samples(model) if attribute(node, "mode") == "cubic"]


def modes_left_out(model: onnx.ModelProto) -> None:
    """Take mode "linear" off each GridSample: it is the default of every opset, however it is spelled."""
    for node in _grid_samples(model):
        if attribute(node, "mode") == "linear":
            drop_attributes(node, "mode")


def find_deformable_attention(model: onnx.ModelProto) -> list[str]:
    """Return bilinear GridSamples of which several meet in one Concat, as the levels of an attention do."""
    names = []
    for graph in every_graph(model.graph):
        read_by = consumers(graph)
        met: dict[str, list[str]] = {}
        for node in graph.node:
            if node.op_type == "GridSample" and attribute(node, "mode", "linear") in _BILINEAR:
                for concat in _concats(node.output[0], read_by):
                    met.setdefault(concat, []).append(_name(node))
        names += [name for samples in met.values() if len(samples) > 1 for name in samples]
    return list(dict.fromkeys(names))


def samples_to_gathers(model: onnx.ModelProto) -> None:
    """Write the bilinear GridSamples of images that `find_deformable_attention` finds as gathered corners."""
    found = set(find_deformable_attention(model))

    def gathered(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
        wanted = node.op_type == "GridSample" and _name(node) in found
        plain = attribute(node, "padding_mode", "zeros") in ("zeros", "border")
        shape = scope.shape(node.input[0]) if wanted else None
        if not (wanted and plain and shape is not None and len(shape) == 4):
            return [node]
        return _Corners(node, scope).nodes()

    replace_nodes(model, opset(model), gathered)


class _Corners:
    """One bilinear GridSample of an image [N, C, H, W], as nodes."""

    def __init__(self, node: onnx.NodeProto, scope: Scope) -> None:
        from onnx import TensorProto

        self.node, self.scope, self.chain = node, scope, Chain(node, scope)
        self.image, self.grid = node.input
        self.kind = scope.elem_type(node, self.image)
        self.float, self.long = TensorProto.FLOAT, TensorProto.INT64
        self.zeros = attribute(node, "padding_mode", "zeros") == "zeros"
        self.aligned = bool(attribute(node, "align_corners", 0))

    def nodes(self) -> list[onnx.NodeProto]:
        add, scope = self.chain.add, self.scope
        sizes = add("Shape", [self.image])
        grid = self.grid
        if scope.elem_type(self.node, grid) != self.float:
            grid = add("Cast", [grid], to=self.float)
        places = {
            axis: self._place(grid, at, sizes, extent) for axis, at, extent in (("x", 0, 3), ("y", 1, 2))
        }
        flat = add("Reshape", [self.image, self._ints([0, 0, -1])])
        channels = add("Concat", [self._ints([1]), self._slice(sizes, 1, 2), self._ints([1])], axis=0)
        width = add("Squeeze", [self._slice(sizes, 3, 4), self._ints([0])])
        corners = []
        for x_index, x_weight in places["x"]:
            for y_index, y_weight in places["y"]:
                index = add("Add", [add("Mul", [y_index, width]), x_index])
                index = add("Expand", [add("Unsqueeze", [index, self._ints([1])]), channels])
                weight = add("Unsqueeze", [add("Mul", [x_weight, y_weight]), self._ints([1])])
                if self.kind != self.float:
                    weight = add("Cast", [weight], to=self.kind)
                corners.append(add("Mul", [add("GatherElements", [flat, index], axis=2), weight]))
        total = add("Add", [add("Add", corners[:2]), add("Add", corners[2:])])
        made = add("Concat", [self._slice(sizes, 0, 2), self._slice(add("Shape", [self.grid]), 1, 3)], axis=0)
        add("Reshape", [total, made], last=True)
        return self.chain.nodes

    def _place(self, grid: str, at: int, sizes: str, extent: int) -> list[tuple[str, str]]:
        """Index int64 [N, P] and weight [N, P] of the lower and of the upper neighbour along an axis."""
        add = self.chain.add
        size = add(
            "Cast", [add("Squeeze", [self._slice(sizes, extent, extent + 1), self._ints([0])])], to=self.float
        )
        one, half, zero = (self.chain.scalar(value, self.float) for value in (1.0, 0.5, 0.0))
        value = add("Gather", [grid, self.scope.store(np.array(at, np.int64), "axis")], axis=3)
        value = add("Add", [add("Reshape", [value, self._ints([0, -1])]), one])
        last = add("Sub", [size, one])
        if self.aligned:
            value = add("Mul", [add("Mul", [value, half]), last])
        else:
            value = add("Mul", [add("Sub", [add("Mul", [value, size]), one]), half])
        if not self.zeros:
            value = add("Min", [add("Max", [value, zero]), last])
        low = add("Floor", [value])
        share = add("Sub", [value, low])
        neighbours = []
        for corner, weight in ((low, add("Sub", [one, share])), (add("Add", [low, one]), share)):
            inside = add("Min", [add("Max", [corner, zero]), last])
            if self.zeros:
                hit = add("Cast", [add("Equal", [inside, corner])], to=self.float)
                weight = add("Mul", [weight, hit])
            neighbours.append((add("Cast", [inside], to=self.long), weight))
        return neighbours

    def _slice(self, shape: str, first: int, last: int) -> str:
        return self.chain.add("Slice", [shape, self._ints([first]), self._ints([last])])

    def _ints(self, values: list[int]) -> str:
        return self.scope.store(np.array(values, np.int64), f"{self.node.output[0]}/ints")


def _grid_samples(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [
        node
        for graph in every_graph(model.graph)
        for node in graph.node
        if node.op_type == "GridSample" and node.domain in ONNX_DOMAINS
    ]


def _concats(name: str, read_by: dict[str, list[onnx.NodeProto]]) -> list[str]:
    """Concat nodes that a tensor reaches by nodes that only change its form."""
    found, waiting = [], [name]
    while waiting:
        for node in read_by.get(waiting.pop(), ()):
            if node.op_type == "Concat":
                found.append(_name(node))
            elif node.op_type in _CARRIED_BY:
                waiting.extend(node.output)
    return found


def _name(node: onnx.NodeProto) -> str:
    return str(node.name or node.output[0])
