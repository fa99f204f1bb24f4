"""Rewrite a DFT as a product with its table, for runtimes without DFT.

For a signal x of N values, each real (c = 1) or a pair of real and imaginary part (c = 2), and L points:

    X[k] = sum over n of x[n] exp(-2 pi i k n / L),  k = 0 ... M - 1,  M = L, or L // 2 + 1 if onesided

    x [..., N, c] ─ DFT ─ X [..., M, 2]
    becomes
    x [..., N, c] ─ Reshape [..., N c] ─ MatMul(table [N c, M 2]) ─ Reshape [..., M, 2]

The inverse takes exp(+2 pi i k n / L) / L; of a onesided spectrum it gives L real numbers, for which every
value stands for two, but the first and, where L is even, the last. Values beyond L are cut off; missing ones
are 0 (ONNX, DFT). A length that only a run tells has a table that the graph computes (`dft_of_any_length`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...model.graph import attribute, constant_tensor, infer_shapes, infer_types, tensor_values
from ...model.graph_edits import set_nodes, store
from ...model.onnx_file import opset
from .dft_of_any_length import products_of_any_length

if TYPE_CHECKING:
    import onnx

_LARGEST_TABLE = 1 << 22
"""Values of a table: 16 MB. A longer transform keeps its operator, which is fast where a runtime has it."""


def dft_to_products(model: onnx.ModelProto) -> list[str]:
    """Rewrite each DFT, and return the names of those nodes.

    One of great length stays, and so does one whose points are not as many as its values at run time.

    Args:
        model: Of any opset that has DFT, 17 or newer; it is changed.
    """
    if not any(node.op_type == "DFT" for node in model.graph.node):
        return []
    return _Rewriter(model).run()


class _Rewriter:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph, self.opset = model.graph, opset(model)
        self.shapes, self.types = infer_shapes(model), infer_types(model)
        self.constants: Mapping[str, NDArray[np.generic]] = {
            tensor.name: tensor_values(tensor) for tensor in model.graph.initializer if len(tensor.dims) <= 1
        } | {
            node.output[0]: tensor_values(tensor)
            for node in model.graph.node
            if (tensor := constant_tensor(node)) is not None
        }

    def run(self) -> list[str]:
        nodes, rewritten = list(self.graph.node), []
        made = []
        for node in nodes:
            replaced = self._product(node) if node.op_type == "DFT" else None
            made += [node] if replaced is None else replaced
            rewritten += [node.name] if replaced is not None else []
        set_nodes(self.graph, made)
        return rewritten

    def _product(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """The nodes in place of a DFT; None where it stays."""
        from onnx import helper

        shape = self.shapes.get(node.input[0], ())
        axis, length = self._axis(node, len(shape)), self._length(node, shape)
        onesided, inverse = (attribute(node, name, 0) for name in ("onesided", "inverse"))
        dtype = self.types.get(node.input[0], "")
        if axis is None or dtype not in ("float32", "float16") or shape[-1] not in (1, 2):
            return None
        if length is None:
            whole = len(node.input) < 2 or not node.input[1]
            if not whole or isinstance(shape[axis], int) or (onesided and inverse):
                return None
            parts = 1 if shape[-1] == 1 else 2
            return products_of_any_length(
                self.graph, node, axis=axis, rank=len(shape), parts=parts, dtype=dtype
            )
        count, parts, rank = shape[axis], shape[-1], len(shape)
        assert isinstance(count, int)
        assert isinstance(parts, int)
        table = dft_table(count, parts, length, onesided=bool(onesided), inverse=bool(inverse))
        if table.size > _LARGEST_TABLE:
            return None
        name = node.name or node.output[0]
        swap = list(range(rank))
        swap[axis], swap[-2] = swap[-2], swap[axis]
        store(self.graph, f"{name}/table", table.astype(dtype))
        store(self.graph, f"{name}/flat", np.array([0] * (rank - 2) + [count * parts], np.int64))
        real = 1 if onesided and inverse else 2
        store(
            self.graph, f"{name}/pairs", np.array([0] * (rank - 2) + [table.shape[1] // real, real], np.int64)
        )
        steps = [
            ("Transpose", [], {"perm": swap}),
            ("Reshape", [f"{name}/flat"], {}),
            ("MatMul", [f"{name}/table"], {}),
            ("Reshape", [f"{name}/pairs"], {}),
            ("Transpose", [], {"perm": swap}),
        ]
        if axis == rank - 2:
            steps = steps[1:-1]
        nodes, value = [], node.input[0]
        for index, (operator, more, attributes) in enumerate(steps):
            last = index == len(steps) - 1
            output = node.output[0] if last else f"{name}/{operator.lower()}_{index}"
            own = name if operator == "MatMul" else f"{name}/{operator}_{index}"
            nodes.append(helper.make_node(operator, [value, *more], [output], own, **attributes))
            value = output
        return nodes

    def _axis(self, node: onnx.NodeProto, rank: int) -> int | None:
        """The signal's axis, from 0; None where it is not known."""
        if self.opset < 20:
            axis = attribute(node, "axis", 1)
        elif len(node.input) > 2 and node.input[2]:
            if node.input[2] not in self.constants:
                return None
            axis = int(np.asarray(self.constants[node.input[2]]).reshape(-1)[0])
        else:
            axis = -2
        axis += rank if axis < 0 else 0
        return axis if 0 <= axis < rank - 1 else None

    def _length(self, node: onnx.NodeProto, shape: tuple[int | str, ...]) -> int | None:
        """Points of the transform; None where they, the signal's extent or its parts are not known."""
        axis = self._axis(node, len(shape))
        if axis is None or not isinstance(shape[axis], int) or shape[-1] not in (1, 2):
            return None
        if len(node.input) > 1 and node.input[1]:
            given = self.constants.get(node.input[1])
            return None if given is None else int(np.asarray(given).reshape(-1)[0])
        extent = shape[axis]
        return extent if isinstance(extent, int) else None


def dft_table(
    count: int, parts: int, length: int, *, onesided: bool = False, inverse: bool = False
) -> NDArray[np.float64]:
    """Return the table of a transform as real numbers.

    Args:
        count: Values of the signal.
        parts: 1 for real values, 2 for pairs of real and imaginary part.
        length: Points of the transform.
        onesided: Whether only the first length // 2 + 1 results are computed; of the inverse, are given.
        inverse: Whether it is the inverse transform.

    Returns:
        float64 [count * parts, results * 2]: rows by value and part, columns by result and part; for the
        inverse of a onesided spectrum [count * parts, length], of real results.
    """
    if onesided and inverse:
        return _real_inverse(count, parts, length)
    results = length // 2 + 1 if onesided else length
    n, k = np.arange(count)[:, None], np.arange(results)[None, :]
    angle = 2 * np.pi * ((n * k) % length) / length * (1 if inverse else -1)
    used = (n < length) / (length if inverse else 1)
    cosine, sine = np.cos(angle) * used, np.sin(angle) * used
    table = np.empty((count, parts, results, 2))
    table[:, 0, :, 0], table[:, 0, :, 1] = cosine, sine
    if parts == 2:
        table[:, 1, :, 0], table[:, 1, :, 1] = -sine, cosine
    return table.reshape(count * parts, results * 2)


def _real_inverse(count: int, parts: int, length: int) -> NDArray[np.float64]:
    k, n = np.arange(count)[:, None], np.arange(length)[None, :]
    angle = 2 * np.pi * ((n * k) % length) / length
    alone = (k == 0) | (2 * k == length)
    weight = np.where(alone, 1.0, 2.0) * (k <= length // 2) / length
    table = np.empty((count, parts, length))
    table[:, 0] = np.cos(angle) * weight
    if parts == 2:
        table[:, 1] = -np.sin(angle) * weight
    return table.reshape(count * parts, length)
