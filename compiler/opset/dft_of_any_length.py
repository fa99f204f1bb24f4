"""Write a DFT whose length is only known at run time with a table that the graph computes.

    x [..., N, c] ─ Transpose [..., c, N] ─┬─ MatMul(cos) ─┬─ real and imaginary part ─ [..., M, 2]
                                           └─ MatMul(sin) ─┘

    cos[n, k] = cos(2 pi (n k mod N) / N),  k = 0 ... M - 1,  M = N, or N // 2 + 1 if onesided

`n k mod N` is computed in integers, so that long signals lose nothing. A table has N M values, which the
runtime computes anew at every call: that is for lengths of thousands at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...model.graph import attribute
from ...model.graph_edits import store

if TYPE_CHECKING:
    import onnx


def products_of_any_length(
    graph: onnx.GraphProto, node: onnx.NodeProto, *, axis: int, rank: int, parts: int, dtype: str
) -> list[onnx.NodeProto]:
    """Return the nodes in place of a DFT over the whole of its axis; constants are stored in the graph.

    Args:
        graph: Holds the node.
        node: A DFT without `dft_length`; no inverse of a onesided spectrum.
        axis: The signal's axis, from 0; never the last.
        rank: Of the signal, its last axis included.
        parts: Extent of the last axis: 1 for real values, 2 for pairs.
        dtype: "float32" or "float16".
    """
    return _Writer(graph, node, dtype).write(axis, rank, parts)


class _Writer:
    def __init__(self, graph: onnx.GraphProto, node: onnx.NodeProto, dtype: str) -> None:
        self.graph, self.node, self.dtype = graph, node, dtype
        self.name = node.name or node.output[0]
        self.nodes: list[onnx.NodeProto] = []

    def write(self, axis: int, rank: int, parts: int) -> list[onnx.NodeProto]:
        inverse = bool(attribute(self.node, "inverse", 0))
        length = self._op("Gather", self._op("Shape", self.node.input[0]), self._integer("axis", axis))
        cosine, sine = self._tables(length)
        flat = [one for one in range(rank) if one not in (axis, rank - 1)] + [rank - 1, axis]
        x = self._op("Transpose", self.node.input[0], perm=flat)
        with_cosine, with_sine = self._op("MatMul", x, cosine), self._op("MatMul", x, sine)
        if inverse:
            scale = self._op("Cast", length, to=self._type())
            with_cosine = self._op("Div", with_cosine, scale)
            with_sine = self._op("Neg", self._op("Div", with_sine, scale))
        real, imaginary = self._parts(with_cosine, with_sine, parts)
        joined = self._op("Concat", real, imaginary, axis=-2)
        back = [flat.index(one) for one in range(rank)]
        self._op("Transpose", joined, perm=back)
        self.nodes[-1].output[0] = self.node.output[0]
        return self.nodes

    def _parts(self, with_cosine: str, with_sine: str, parts: int) -> tuple[str, str]:
        """(r + i s) (cos - i sin): real r cos + s sin, imaginary s cos - r sin; of real values s is 0."""
        if parts == 1:
            return with_cosine, self._op("Neg", with_sine)
        r_cosine, s_cosine = self._halves(with_cosine)
        r_sine, s_sine = self._halves(with_sine)
        return self._op("Add", r_cosine, s_sine), self._op("Sub", s_cosine, r_sine)

    def _halves(self, value: str) -> tuple[str, str]:
        """The real and the imaginary part, each [..., 1, M]."""
        axis = self._integers("parts", [-2])
        ends = [self._integers(f"part_{part}", [part]) for part in (0, 1, 2)]
        first, second = (self._op("Slice", value, ends[part], ends[part + 1], axis) for part in (0, 1))
        return first, second

    def _tables(self, length: str) -> tuple[str, str]:
        """cos and sin, [N, M]."""
        zero, one = self._integer("zero", 0), self._integer("one", 1)
        rows = self._op("Range", zero, length, one)
        columns = rows
        if attribute(self.node, "onesided", 0):
            half = self._op("Div", length, self._integer("two", 2))
            columns = self._op("Range", zero, self._op("Add", half, one), one)
        column = self._op("Unsqueeze", rows, self._integers("last", [1]))
        products = self._op("Mul", column, self._op("Unsqueeze", columns, self._integers("first", [0])))
        whole = self._op("Mul", self._op("Div", products, length), length)
        turns = self._op("Cast", self._op("Sub", products, whole), to=1)
        angle = self._op("Div", turns, self._op("Cast", length, to=1))
        angle = self._op("Mul", angle, self._stored("turn", np.array(2 * np.pi, np.float32)))
        cosine, sine = self._op("Cos", angle), self._op("Sin", angle)
        if self.dtype == "float32":
            return cosine, sine
        return self._op("Cast", cosine, to=self._type()), self._op("Cast", sine, to=self._type())

    def _type(self) -> int:
        return 1 if self.dtype == "float32" else 10

    def _integer(self, name: str, value: int) -> str:
        return self._stored(name, np.array(value, np.int64))

    def _integers(self, name: str, values: list[int]) -> str:
        return self._stored(name, np.array(values, np.int64))

    def _stored(self, name: str, values: Any) -> str:
        full = f"{self.name}/{name}"
        if not any(tensor.name == full for tensor in self.graph.initializer):
            store(self.graph, full, values)
        return full

    def _op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        name = f"{self.name}/{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [f"{name}_out"], name, **attributes))
        return f"{name}_out"
