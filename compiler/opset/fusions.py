"""Keep OpenVINO's optimizer from fusions that compute something else.

    Conv ─ QuantizeLinear        becomes        Conv ─ Max(·, -1e30) ─ QuantizeLinear

No layer gives less than -1e30, so that Max is its operand. OpenVINO fuses it with neither side. These
fusions are wrong (2026.4.1, on every processor):

1. a QuantizeLinear reads a ReduceMax or ReduceMin, directly or through other operators: it becomes part of
   the reduction's kernel, which stores what it reduces as an integer of 0 to 255 first;
2. a QuantizeLinear reads any reduction without keepdims behind operands for each channel, as the factors of
   balanced channels are: they become part of the kernel, which counts channels on another axis;
3. a QuantizeLinear reads factors or offsets for each channel behind an int8 product of two axes, as the
   factors of balanced channels are, and another such product reads it: batches of 4, 6 and 8 are wrong;
4. a QuantizeLinear reads a product behind a bias, the product is read elsewhere, and its shape is dynamic:
   the bias becomes part of the quantization, which takes channel 0's for all. The other reader may be one
   that OpenVINO makes: it takes an extent that Shape asks for from another tensor of that extent. Of an int8
   convolution without bias, the scale of its weights is what a bias is otherwise; without any
   QuantizeLinear behind it that scale is lost, if the result is read twice;
5. a Reshape makes more axes, or others, of an int8 product without bias whose batch is dynamic: the scale
   of its weights is moved behind the Reshape, where it scales another axis;
6. a reduction reads a Reshape that joins the positions of an int8 convolution, [N, C, H, W] to [N, C, H W]:
   the scale of its weights, or factors for each channel behind it, are moved behind the reduction, where
   they scale other channels;
7. a Gather with a scalar index reads an int8 product without bias: the scale of its weights is moved behind
   the Gather with the axis that it removed, so that the result has an axis too many, or cannot be computed;
8. a constant is added to a reduction of integers over the second or third of three axes, or scales it, also
   behind a Reshape, or it is negated: that becomes part of the reduction's kernel, which reads one value for
   all channels as if there were one for each. All behind the first vector is wrong, in float graphs too.
   For integers the Max is with the least there is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import onnx

from ...model.graph import (
    ONNX_DOMAINS,
    WEIGHTED,
    attribute,
    constant_names,
    constant_tensor,
    consumers,
    every_graph,
    infer_shapes,
    opset,
    producers,
    tensor_values,
)
from .scope import Chain, Scope, comes_from, every_scope, nearest, node_name, reached

_LOWEST = {
    "tensor(float16)": np.float16(-65504),
    "tensor(int32)": np.int32(np.iinfo(np.int32).min),
    "tensor(int64)": np.int64(np.iinfo(np.int64).min),
}
_APART = "/apart"
"""What the name of each Max that this module writes ends with, but for a number that makes it unique."""
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_FUSED = frozenset(
    """
    Abs Add Cast Clip Concat Div Elu Erf Exp Expand Flatten Gather Gelu HardSigmoid HardSwish Identity
    LeakyRelu Max Min Mish Mul Neg PRelu Pow Relu Reshape Selu Sigmoid Slice Softplus Split Sqrt Squeeze Sub
    Swish Tanh Tile Transpose Unsqueeze
    """.split()
)
"""Operators that become part of a reduction's kernel with the quantization behind them, or let it pass."""
_LINEAR = ("Add", "Sub", "Mul", "Div")
_REDUCTIONS = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum")
_PLACES = frozenset("Identity Reshape Transpose Squeeze Unsqueeze Flatten".split())
_BOUNDS = ("Relu", "LeakyRelu", "PRelu", "Clip", "Max", "Min")
_PASSED = ("Relu", "Clip", "Transpose", "Concat", "Identity")
"""Operators through which OpenVINO moves a quantization to the bias in front."""
_SHAPED = frozenset(["Shape", "EyeLike", "LSTM", "GRU", "RNN"])
"""Operators for which OpenVINO asks for an extent of a tensor: recurrent layers, for their first state."""
_MOVED = frozenset(
    """
    Relu LeakyRelu PRelu Clip Mul Div Identity Transpose Squeeze Unsqueeze Flatten
    MaxPool AveragePool GlobalMaxPool GlobalAveragePool
    """.split()
)
"""Operators behind which OpenVINO moves the scale of a product."""
_KEPT_AXES = _MOVED - {"Relu", "LeakyRelu", "PRelu", "Clip", "Transpose", "Squeeze", "Unsqueeze"}
"""Those of them between a product and a Gather."""


def find_quantized_extrema(model: onnx.ModelProto) -> list[str]:
    """Return the ReduceMax and ReduceMin that a QuantizeLinear reads, in whatever form."""
    return [
        node_name(node)
        for graph in every_graph(model.graph)
        for read_by in [consumers(graph)]
        for node in graph.node
        if node.op_type in ("ReduceMax", "ReduceMin") and node.domain in ONNX_DOMAINS
        if not any(_APART in reader.name for reader in read_by.get(node.output[0], ()))
        if _is_quantized(node.output[0], read_by, _FUSED)
    ]


def find_reduced_channels(model: onnx.ModelProto) -> list[str]:
    """Return reductions without keepdims that a QuantizeLinear reads behind an operand for each channel."""

    def fits(node: onnx.NodeProto, read_by: Mapping[str, Sequence[onnx.NodeProto]], rows: set[str]) -> bool:
        if not node.op_type.startswith("Reduce") or attribute(node, "keepdims", 1):
            return False
        if any(_APART in reader.name for reader in read_by.get(node.output[0], ())):
            return False
        return any(
            _is_quantized(reader.output[0], read_by, _FUSED)
            for reader in reached(node.output[0], read_by, _FUSED)
            if reader.op_type in _FUSED and rows.intersection(reader.input)
        )

    return [
        node_name(node)
        for graph in every_graph(model.graph)
        for read_by in [consumers(graph)]
        for rows in [{tensor.name for tensor in graph.initializer if np.prod(tensor.dims) > 1}]
        for node in graph.node
        if node.domain in ONNX_DOMAINS and fits(node, read_by, rows)
    ]


def find_quantized_factors(model: onnx.ModelProto) -> list[str]:
    """Return what scales or shifts channels of an int8 product of two axes in front of a QuantizeLinear."""
    shapes: Mapping[str, Sequence[int | str]] = {}
    names = []
    for graph in every_graph(model.graph):
        read_by, made_by = consumers(graph), producers(graph)
        stored = {tensor.name for tensor in graph.initializer}
        rows = {tensor.name for tensor in graph.initializer if np.prod(tensor.dims) > 1}
        for node in graph.node:
            readers = read_by.get(node.output[0], ()) if node.op_type in _LINEAR else ()
            is_row = any(reader.op_type == "QuantizeLinear" for reader in readers) and rows & {*node.input}
            varying = [name for name in node.input if name not in stored]
            if not is_row or len(varying) != 1:
                continue
            product = nearest(varying[0], made_by, (*_LINEAR, *_BOUNDS), stored)
            if product is None or product.op_type not in ("Gemm", "MatMul"):
                continue
            is_int8 = comes_from(product.input[0], made_by, "DequantizeLinear") is not None
            is_bias = node.op_type == "Add" and len(product.input) < 3 and varying[0] == product.output[0]
            if not is_int8 or is_bias:
                continue
            shapes = shapes or infer_shapes(model)
            if len(shapes.get(product.output[0], "nc")) == 2:
                names.append(node_name(node))
    return names


def find_reduced_scales(model: onnx.ModelProto) -> list[str]:
    """Return the Reshapes in front of a reduction, behind an int8 convolution whose scale may move there."""
    names = []
    for products in (_Products(model, graph) for graph in every_graph(model.graph)):
        for node in products.graph.node:
            readers = (
                list(reached(node.output[0], products.read_by, _MOVED)) if node.op_type == "Reshape" else []
            )
            is_reduced = any(reader.op_type in _REDUCTIONS for reader in readers)
            if is_reduced and products.has_loose_scale(node.input[0]):
                names.append(node_name(node))
    return names


def find_gathered_scales(model: onnx.ModelProto) -> list[str]:
    """Return the int8 products without bias of which a Gather takes one place of an axis."""
    graphs = every_graph(model.graph)
    return [name for graph in graphs for name in _Products(model, graph).gathered_scales()]


def find_shifted_counts(model: onnx.ModelProto) -> list[str]:
    """Return reductions of integers, of three axes, that a constant shifts or scales, or that are negated."""
    constants = constant_names(model)

    def is_shifted(node: onnx.NodeProto, read_by: Mapping[str, Sequence[onnx.NodeProto]]) -> bool:
        return any(
            reader.op_type == "Neg" or (reader.op_type in _LINEAR and constants & {*reader.input})
            for reader in reached(node.output[0], read_by, _PLACES)
        )

    found = {
        node.output[0]
        for graph in every_graph(model.graph)
        for read_by in [consumers(graph)]
        for node in graph.node
        if node.op_type.startswith("Reduce") and node.domain in ONNX_DOMAINS and is_shifted(node, read_by)
    }
    return [
        node_name(node)
        for scope in (every_scope(model, opset(model)) if found else ())
        for node in scope.graph.node
        if found & {*node.output} and _counts_within(node, scope)
    ]


def _counts_within(node: onnx.NodeProto, scope: Scope) -> bool:
    """Whether a reduction is of integers of three axes, and not known to reduce the first of them."""
    shape = scope.shape(node.input[0])
    if scope.type(node.output[0]) not in ("tensor(int32)", "tensor(int64)") or len(shape or "nlc") != 3:
        return False
    axes = scope.constant(node.input[1]) if len(node.input) > 1 else attribute(node, "axes")
    return axes is None or {0, -3}.isdisjoint(np.asarray(axes).reshape(-1).tolist())


def _is_quantized(
    tensor: str, read_by: Mapping[str, Sequence[onnx.NodeProto]], passed: Collection[str]
) -> bool:
    return any(reader.op_type == "QuantizeLinear" for reader in reached(tensor, read_by, passed))


def find_merged_biases(model: onnx.ModelProto) -> list[str]:
    """Return the nodes, or the last constant Add or Mul behind, of biased products that not only Q reads."""
    graphs = [_Products(model, graph) for graph in every_graph(model.graph)]
    shaped = any(node.op_type in _SHAPED for products in graphs for node in products.graph.node)
    return [name for products in graphs for name in products.merged_biases(shaped=shaped)]


def find_moved_scales(model: onnx.ModelProto) -> list[str]:
    """Return the int8 products without bias that a Reshape of their batch reads."""
    graphs = every_graph(model.graph)
    return [name for graph in graphs for name in _Products(model, graph).moved_scales()]


def with_max(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """A node, and Max(·, -1e30) behind it."""
    chain = Chain(node, scope)
    lowest = scope.store(_LOWEST.get(scope.type(chain.output), np.float32(-1e30)), f"{chain.output}/lowest")
    node.output[0] = scope.fresh(f"{chain.output}{_APART}")
    chain.nodes.append(node)
    chain.add("Max", [node.output[0], lowest], last=True)
    chain.nodes[-1].name = scope.fresh(f"{chain.name}{_APART}")
    return chain.nodes


class _Products:
    """The products of a graph whose shapes are dynamic, and what reads them."""

    def __init__(self, model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
        self.model, self.graph = model, graph
        self.read_by, self.made_by = consumers(graph), producers(graph)
        self.results = {value.name for value in graph.output}
        self.stored = {tensor.name: tensor for tensor in graph.initializer}
        self.stored |= {
            node.output[0]: tensor for node in graph.node if (tensor := constant_tensor(node)) is not None
        }

    @cached_property
    def shapes(self) -> Mapping[str, Sequence[int | str]]:
        """Extents by tensor, as far as shape inference knows them."""
        return infer_shapes(self.model)

    @cached_property
    def _weighted(self) -> list[onnx.NodeProto]:
        return [node for node in self.graph.node if node.op_type in WEIGHTED and node.domain in ONNX_DOMAINS]

    @cached_property
    def _constants(self) -> set[str]:
        return constant_names(self.model) | self.stored.keys()

    def merged_biases(self, *, shaped: bool) -> list[str]:
        names: list[str] = []
        for node in self._dynamic():
            last, tensors, biased = self._with_constants(node)
            reads_integers = self._reads_integers(node)
            scaled = node.op_type == "Conv" and reads_integers and not biased
            scaled &= last.op_type not in ("Add", "Sub")
            shared = any(self._is_shared(tensor) for tensor in (tensors if scaled else tensors[:-1]))
            elsewhere = shaped and (biased or len(tensors) > 1)
            elsewhere &= node.op_type in _CONVOLUTIONS or not reads_integers
            if (shared or elsewhere) and _is_quantized(last.output[0], self.read_by, _PASSED):
                names += dict.fromkeys([node_name(node), node_name(last)] if scaled else [node_name(last)])
            elif scaled and shared:
                names.append(node_name(node))
        return names

    def moved_scales(self) -> list[str]:
        return [node_name(node) for node in self._dynamic() if self._is_moved(node)]

    def gathered_scales(self) -> list[str]:
        return [
            node_name(node)
            for node in self._weighted
            if self._reads_integers(node) and not self._bias(node)
            if any(self._takes_one(reader) for reader in reached(node.output[0], self.read_by, _KEPT_AXES))
        ]

    def has_loose_scale(self, tensor: str) -> bool:
        """Whether a tensor is an int8 convolution's without bias, or behind one and factors of channels."""
        waiting, seen, factors = [tensor], {tensor}, False
        while waiting:
            node = self.made_by.get(waiting.pop())
            if node is None or node.name.endswith(_APART):
                continue
            if node.op_type == "Conv" and self._reads_integers(node):
                return factors or not self._bias(node)
            rows = [self.stored[name] for name in node.input if name in self.stored]
            factors |= any(np.prod(tensor.dims) > 1 for tensor in rows)
            if node.op_type in (*_LINEAR, *_MOVED, "BatchNormalization", "Sigmoid"):
                waiting += [name for name in node.input if name not in seen]
                seen.update(node.input)
        return False

    def _is_moved(self, node: onnx.NodeProto) -> bool:
        matrix = self.shapes.get(node.output[0], ()) if node.op_type in ("MatMul", "Gemm") else ()
        if len(matrix) > 2 or not self._reads_integers(node) or self._bias(node):
            return False
        readers = reached(node.output[0], self.read_by, _MOVED)
        return any(self._mixes_batch(reader, matrix) for reader in readers)

    def _dynamic(self) -> Iterator[onnx.NodeProto]:
        """Products of which not every extent is known to be fixed."""
        if not self._weighted or not {"QuantizeLinear", "DequantizeLinear"} & {
            n.op_type for n in self.graph.node
        }:
            return
        fed = any(_is_dynamic(self.shapes.get(value.name, ())) for value in self.model.graph.input)
        yield from (
            node for node in self._weighted if _is_dynamic(self.shapes.get(node.output[0], [""] * fed))
        )

    def _with_constants(self, node: onnx.NodeProto) -> tuple[onnx.NodeProto, Sequence[str], bool]:
        """The last of a product and its constant Adds and Muls, the results of all, if there is a bias."""
        biased, tensors = self._bias(node), [node.output[0]]
        while True:
            readers = self.read_by.get(tensors[-1], ())
            linear = [reader for reader in readers if reader.op_type in _LINEAR]
            behind = [reader for reader in linear if self._constants & {*reader.input}]
            if len(behind) != 1:
                return node, tensors, biased
            node = behind[0]
            tensors.append(node.output[0])

    def _bias(self, node: onnx.NodeProto) -> bool:
        """Whether a product has a bias in itself that OpenVINO does not remove, as it does zeros."""
        if len(node.input) < 3 or not node.input[2]:
            return False
        tensor = self.stored.get(node.input[2])
        return tensor is None or bool(tensor.external_data) or bool(np.any(tensor_values(tensor)))

    def _takes_one(self, node: onnx.NodeProto) -> bool:
        """Whether a node is a Gather whose index is a scalar, as far as is known."""
        if node.op_type != "Gather":
            return False
        tensor = self.stored.get(node.input[1])
        return not tensor.dims if tensor is not None else not self.shapes.get(node.input[1])

    def _reads_integers(self, node: onnx.NodeProto) -> bool:
        makers = [self.made_by.get(name) for name in node.input[:2]]
        return all(maker is not None and maker.op_type == "DequantizeLinear" for maker in makers)

    def _is_shared(self, tensor: str) -> bool:
        readers = [reader for reader in self.read_by.get(tensor, ()) if reader.op_type != "Shape"]
        return len(readers) + (tensor in self.results) > 1

    def _mixes_batch(self, node: onnx.NodeProto, matrix: Sequence[int | str]) -> bool:
        """Whether a node is a Reshape that does not keep the first axis, as far as is known.

        Of a product [N, C], `matrix`, OpenVINO takes a second axis of a multiple of C for the channels.
        """
        if node.op_type != "Reshape":
            return False
        shape = self.stored.get(node.input[1])
        if shape is None or shape.external_data:
            return True
        extents = tensor_values(shape).reshape(-1).tolist()
        if extents[:1] == [0]:
            return False
        if len(matrix) == 2 and isinstance(matrix[1], int) and matrix[1]:
            return len(extents) > 2 and (extents[1] < 0 or extents[1] % matrix[1] == 0)
        return True


def _is_dynamic(shape: Sequence[int | str]) -> bool:
    return any(not isinstance(extent, int) for extent in shape)
