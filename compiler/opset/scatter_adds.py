"""Adding rows at indices becomes a product with a matrix of ones, for runtimes that scatter without adding.

A layer over a graph sums the messages of all edges into the node that each leads to (`index_add`):

    out = data + sum over e of updates[e] at row indices[e],   data [N, ...], indices [E, 1], updates [E, ...]

    ScatterND(data, indices, updates, reduction=add)
    becomes
    Range(N) [N, 1] == indices [1, E] ─ Cast [N, E] ─ MatMul(updates [E, F]) ─ Reshape as data ─ Add(data)

TensorRT and TensorRT-RTX take ScatterND without a reduction alone (RTX 1.7: "ScatterND with reduction is not
supported").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...model.graph import attribute, infer_shapes, infer_types
from ...model.graph_edits import set_nodes

if TYPE_CHECKING:
    import onnx


def scatter_adds_to_products(model: onnx.ModelProto) -> list[str]:
    """Rewrite each ScatterND that adds rows of floats, and return the names of those nodes.

    One whose indices are tuples, or whose rows have no known length, stays.

    Args:
        model: Of opset 16 or newer; it is changed.
    """
    shapes, types = infer_shapes(model), infer_types(model)
    shapes.update({tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer})
    nodes: list[onnx.NodeProto] = []
    done = []
    for node in model.graph.node:
        data, indices = (shapes.get(name, ()) for name in node.input[:2]) if _adds(node) else ((), ())
        rows = data[1:]
        if not data or indices[-1:] != (1,) or not all(isinstance(extent, int) and extent for extent in rows):
            nodes.append(node)
            continue
        width = int(np.prod([int(extent) for extent in rows], dtype=np.int64))
        made = _Product(node, width, types.get(node.output[0], "float32"))
        nodes += made.nodes()
        model.graph.initializer.extend(made.stored)
        done.append(node.name)
    if done:
        set_nodes(model.graph, nodes)
    return done


def _adds(node: onnx.NodeProto) -> bool:
    return node.op_type == "ScatterND" and bool(attribute(node, "reduction") == "add")


class _Product:
    """The nodes in place of one ScatterND."""

    def __init__(self, node: onnx.NodeProto, width: int, dtype: str) -> None:
        self.node, self.width, self.dtype = node, width, dtype
        self.stored: list[onnx.TensorProto] = []

    def nodes(self) -> list[onnx.NodeProto]:
        """Return them in order."""
        from onnx import TensorProto, helper

        data, indices, updates = self.node.input
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        name = self.node.name or self.node.output[0]

        def make(operator: str, inputs: list[str], output: str, **settings: Any) -> onnx.NodeProto:
            return helper.make_node(operator, inputs, [f"{name}/{output}"], f"{name}/{output}", **settings)

        def part(output: str) -> str:
            return f"{name}/{output}"

        nodes = [
            make("Shape", [data], "shape"),
            make("Gather", [part("shape"), self._store("first", np.array(0))], "count"),
            make(
                "Range",
                [self._store("zero", np.array(0)), part("count"), self._store("one", np.array(1))],
                "rows",
            ),
            make("Reshape", [part("rows"), self._store("column", np.array([-1, 1]))], "row"),
            make("Cast", [indices], "index", to=TensorProto.INT64),
            make("Reshape", [part("index"), self._store("line", np.array([1, -1]))], "edge"),
            make("Equal", [part("row"), part("edge")], "leads"),
            make("Cast", [part("leads")], "ones", to=kind),
            make("Reshape", [updates, self._store("matrix", np.array([-1, self.width]))], "messages"),
            make("MatMul", [part("ones"), part("messages")], "sums"),
            make("Reshape", [part("sums"), part("shape")], "added"),
        ]
        last = helper.make_node("Add", [data, part("added")], list(self.node.output), f"{name}/add")
        return [*nodes, last]

    def _store(self, name: str, value: Any) -> str:
        from onnx import numpy_helper

        stored = f"{self.node.name or self.node.output[0]}/{name}"
        self.stored.append(numpy_helper.from_array(value.astype(np.int64), stored))
        return stored
