"""Where factors can move: the products that read one tensor of activations, and what makes that tensor.

A place is a tensor `x` and all products `x @ w` with stored weights that read it, directly or through a
Reshape that keeps its last axis:

    x ─┬─ MatMul(w1)                 x/s ─┬─ MatMul(s·w1)
       ├─ Reshape ─ Gemm(w2)  becomes     ├─ Reshape ─ Gemm(s·w2)
       └─ Add (a residual)        x ──────┴─ Add

What makes `x` can take the 1/s where nothing else reads it:

1. LayerNormalization: its gain and bias.
2. Mul or Add of a stored vector, as a LayerNorm ends that is written in plain operators: the vectors.
3. A product with its bias, through Reshape, Transpose and the attention's own product (the projection of
   the values): its columns.

Elsewhere a Mul in front of the products does it, which everything else does not see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....model.graph import attribute, captured_names, consumers, infer_shapes, producers

if TYPE_CHECKING:
    import onnx

_HEADS = [0, 2, 1, 3]  # [batch, positions, heads, width] to [batch, heads, positions, width], and back


@dataclass(frozen=True)
class Place:
    """A tensor and the products that read it.

    Attributes:
        tensor: Name of the activations; channels are its last axis.
        products: Names of the nodes that multiply it by a stored matrix.
        weights: Names of those matrices, each with the axis of the channels that are read: 0 or 1.
        channels: How many channels there are.
        vectors: Stored vectors that take 1/s: gain, bias.
        columns: A stored matrix and the axis of its outputs, which take 1/s; or None.
        rescaled: Tensors that hold other values once 1/s is folded; empty where a Mul is needed.
    """

    tensor: str
    products: tuple[str, ...]
    weights: tuple[tuple[str, int], ...]
    channels: int
    vectors: tuple[str, ...] = ()
    columns: tuple[str, int] | None = None
    rescaled: tuple[str, ...] = ()

    @property
    def folds(self) -> bool:
        """Whether what makes the tensor takes the factors."""
        return bool(self.vectors or self.columns)


def find_places(model: onnx.ModelProto) -> tuple[list[Place], dict[str, str]]:
    """Return the places of a model, and why the other products with a stored operand are left alone.

    Args:
        model: After `store_constants`; every node has a name.

    Returns:
        Places in the order of execution, and name of a node to a sentence.
    """
    return _Finder(model).find()


class _Finder:
    def __init__(self, model: onnx.ModelProto) -> None:
        graph = self.graph = model.graph
        inputs = {value.name for value in graph.input}
        self.stored = {t.name: t for t in graph.initializer if t.name not in inputs and t.data_type == 1}
        self.made_by, self.readers = producers(graph), consumers(graph)
        self.reads = Counter(name for node in graph.node for name in node.input)
        self.kept = {value.name for value in graph.output}
        self.kept |= {name for node in graph.node for name in captured_names(node)}
        self.shapes = infer_shapes(model)
        self.inputs = inputs

    def find(self) -> tuple[list[Place], dict[str, str]]:
        groups: dict[str, list[onnx.NodeProto]] = {}
        left: dict[str, str] = {}
        for node in self.graph.node:
            if node.op_type not in ("MatMul", "Gemm") or node.domain not in ("", "ai.onnx"):
                continue
            reason = self._unfit(node)
            if reason:
                left[node.name] = reason
            else:
                groups.setdefault(self._root(node), []).append(node)
        places = []
        for tensor, nodes in groups.items():
            fit = [node for node in nodes if self._channels(node) == self._channels(nodes[0])]
            left |= {n.name: "it reads other channels than its neighbour" for n in nodes if n not in fit}
            places.append(self._place(tensor, fit))
        return places, left

    def _unfit(self, node: onnx.NodeProto) -> str:
        if node.input[1] not in self.stored:
            return "its second operand is not a stored float32 matrix"
        weight = self.stored[node.input[1]]
        if len(weight.dims) != 2:
            return f"its weight has {len(weight.dims)} axes; 2 are required"
        if self.reads[weight.name] != 1 or weight.name in self.kept:
            return "its weight is read elsewhere too"
        if attribute(node, "transA", 0):
            return "it reads its activations transposed"
        if node.input[0] in self.stored:
            return "its first operand is stored"
        return ""

    def _channels(self, node: onnx.NodeProto) -> int:
        axis = attribute(node, "transB", 0)
        return int(self.stored[node.input[1]].dims[axis])

    def _root(self, node: onnx.NodeProto) -> str:
        """The tensor in front of Reshapes that keep the last axis and that products alone read."""
        name = str(node.input[0])
        while (maker := self.made_by.get(name)) is not None and maker.op_type == "Reshape":
            before = self.shapes.get(maker.input[0], ())
            behind = {reader.op_type for reader in self.readers.get(name, ())}
            if not before or before[-1] != self._channels(node) or name in self.kept:
                break
            if behind - {"MatMul", "Gemm", "Reshape", "Shape"}:
                break
            name = str(maker.input[0])
        return name

    def _place(self, tensor: str, nodes: list[onnx.NodeProto]) -> Place:
        weights = tuple((str(n.input[1]), attribute(n, "transB", 0)) for n in nodes)
        names = tuple(node.name for node in nodes)
        plain = Place(tensor, names, weights, self._channels(nodes[0]))
        rescaled = self._only_for(tensor, set(names))
        maker = self.made_by.get(tensor)
        if rescaled is None or maker is None:
            return plain
        vectors = self._vectors(maker, plain.channels)
        if vectors is not None:
            made, inner = vectors
            return Place(tensor, names, weights, plain.channels, made, None, (*inner, *rescaled))
        columns = self._columns(tensor, plain.channels)
        if columns is not None:
            matrix, bias, inner = columns
            return Place(tensor, names, weights, plain.channels, bias, matrix, (*inner, *rescaled))
        return plain

    def _only_for(self, tensor: str, products: set[str]) -> tuple[str, ...] | None:
        """The tensor and its reshaped forms, where nothing but the products reads their values."""
        if tensor in self.kept:
            return None
        names = [tensor]
        for node in self.readers.get(tensor, ()):
            if node.name in products or node.op_type == "Shape":
                continue
            inner = self._only_for(node.output[0], products) if node.op_type == "Reshape" else None
            if inner is None:
                return None
            names += inner
        return tuple(names)

    def _own_vector(self, name: str, channels: int) -> bool:
        tensor = self.stored.get(name)
        own = tensor is not None and self.reads[name] == 1 and name not in self.kept
        return own and tensor is not None and list(tensor.dims) == [channels]

    def _vectors(
        self, maker: onnx.NodeProto, channels: int
    ) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Stored vectors that scale a tensor, and the tensors in between; None where there are none."""
        if maker.op_type == "LayerNormalization":
            parameters = tuple(str(name) for name in maker.input[1:] if name)
            last = attribute(maker, "axis", -1) == -1 and len(maker.output) == 1
            fit = last and all(self._own_vector(name, channels) for name in parameters)
            return (parameters, ()) if fit and parameters else None
        if maker.op_type not in ("Mul", "Add") or len(maker.input) != 2:
            return None
        vector = next((str(n) for n in maker.input if self._own_vector(n, channels)), "")
        if not vector:
            return None
        if maker.op_type == "Mul":
            return (vector,), ()
        inside = next(str(name) for name in maker.input if name != vector)
        gain = self.made_by.get(inside)
        if gain is None or gain.op_type != "Mul" or self.reads[inside] != 1 or inside in self.kept:
            return None
        gain_vectors = self._vectors(gain, channels)
        return ((vector, *gain_vectors[0]), (inside, *gain_vectors[1])) if gain_vectors is not None else None

    def _columns(
        self, tensor: str, channels: int
    ) -> tuple[tuple[str, int], tuple[str, ...], tuple[str, ...]] | None:
        """The matrix that projects the values of an attention, its bias, and the tensors in between."""
        path: list[str] = []
        name = tensor
        for step in ("Reshape", "Transpose", "MatMul", "Transpose", "Reshape"):
            node = self.made_by.get(name)
            if node is None or node.op_type != step or (path and not self._read_once(name)):
                return None
            if step == "Transpose" and attribute(node, "perm") != _HEADS:
                return None
            name = str(node.input[1] if step == "MatMul" else node.input[0])
            path.append(name)
        bias: tuple[str, ...] = ()
        for node in self._linear(name):
            if not self._read_once(name):
                return None
            if node.op_type == "Reshape":
                name = str(node.input[0])
                path.append(name)
            elif node.op_type == "Add":
                vector = next((str(n) for n in node.input if self._own_vector(n, channels)), "")
                if not vector:
                    return None
                bias, name = (vector,), next(str(n) for n in node.input if n != vector)
                path.append(name)
            else:
                return self._matrix(node, channels, bias, tuple(path))
        return None

    def _linear(self, name: str) -> Iterator[onnx.NodeProto]:
        """Reshape and Add in any order, and then the product."""
        for _ in range(4):
            node = self.made_by.get(name)
            if node is None or node.op_type not in ("Reshape", "Add", "MatMul", "Gemm"):
                return
            yield node
            if node.op_type in ("MatMul", "Gemm"):
                return
            name = next((str(n) for n in node.input if n in self.made_by and n not in self.stored), "")

    def _matrix(
        self, node: onnx.NodeProto, channels: int, bias: tuple[str, ...], path: tuple[str, ...]
    ) -> tuple[tuple[str, int], tuple[str, ...], tuple[str, ...]] | None:
        weight = self.stored.get(node.input[1])
        if weight is None or self._unfit(node):
            return None
        axis = 0 if attribute(node, "transB", 0) else 1
        if weight.dims[axis] != channels or len(node.input) > 3:
            return None
        if len(node.input) == 3 and node.input[2]:
            if not self._own_vector(node.input[2], channels):
                return None
            bias = (*bias, str(node.input[2]))
        return (weight.name, axis), bias, path

    def _read_once(self, name: str) -> bool:
        """Whether one node reads a tensor's values; its shape may be asked for."""
        values = [node for node in self.readers.get(name, ()) if node.op_type != "Shape"]
        return name not in self.kept and len(values) == 1
