"""Insert a Max where OpenVINO's optimizer would otherwise fuse operators into a kernel with wrong results.

    Conv ─ QuantizeLinear        becomes        Conv ─ Max(·, -1e30) ─ QuantizeLinear

No layer returns less than -1e30, so Max returns its operand; for integers the bound is the type's minimum.
OpenVINO fuses Max with neither side. These fusions are wrong (2026.4.1, on every processor):

1. A QuantizeLinear reads a ReduceMax or ReduceMin, directly or through other operators: it becomes part of
   the reduction's kernel, which first rounds the values that it reduces to integers of 0 to 255.
2. A QuantizeLinear reads a reduction without keepdims through per-channel operands, such as the factors of
   balanced channels: these become part of the kernel, which indexes channels along another axis.
3. A QuantizeLinear reads an int8 product of two axes through per-channel factors or offsets, such as the
   factors of balanced channels, and feeds another such product: batches of 4, 6 and 8 are wrong.
4. A QuantizeLinear reads a biased product of dynamic shape that has another consumer: the bias becomes part
   of the quantization, which applies the bias of channel 0 to all channels. OpenVINO may add this consumer
   itself: for a Shape, it can take an extent from another tensor of that extent. In an int8 convolution
   without bias, the scale of the weights has the role of the bias. Without a QuantizeLinear behind it, this
   scale is lost if the result has two consumers.
5. A Reshape adds or changes axes of an int8 product without bias and with a dynamic batch: the scale of the
   weights moves behind the Reshape, where it scales another axis.
6. A reduction reads a Reshape that joins the positions of an int8 convolution, [N, C, H, W] to [N, C, H W]:
   the scale of the weights, or per-channel factors behind the convolution, move behind the reduction, where
   they scale other channels.
7. A Gather with a scalar index reads an int8 product without bias: the scale of the weights moves behind the
   Gather with the axis that the Gather removes. The result has an extra axis, or cannot be computed.
8. An integer reduction over the second or third of three axes is negated, or shifted or scaled by a constant,
   also behind a Reshape: this becomes part of the reduction's kernel, which reads one value for all channels
   as if it were one per channel. All values behind the first vector are wrong, in float graphs too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx

from ...model.graph.graph import ONNX_DOMAINS, WEIGHTED, attribute, every_graph, opset, tensor_values
from .scope import (
    Chain,
    Links,
    Scope,
    every_scope,
    find_nodes,
    find_producer_chain,
    iterate_consumers,
    nearest_producer,
    node_name,
    node_query,
)

_LOWEST = {
    "tensor(float16)": np.float16(-65504),
    "tensor(int32)": np.int32(np.iinfo(np.int32).min),
    "tensor(int64)": np.int64(np.iinfo(np.int64).min),
}
_APART = "/apart"  # in the name of each Max that this module inserts; a number may follow
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_FUSED = frozenset(
    """
    Abs Add Cast Clip Concat Div Elu Erf Exp Expand Flatten Gather Gelu HardSigmoid HardSwish Identity
    LeakyRelu Max Min Mish Mul Neg PRelu Pow Relu Reshape Selu Sigmoid Slice Softplus Split Sqrt Squeeze Sub
    Swish Tanh Tile Transpose Unsqueeze
    """.split()
)
"""Operators that OpenVINO fuses into a reduction's kernel with a QuantizeLinear, or moves it through."""
_LINEAR = ("Add", "Sub", "Mul", "Div")
_REDUCTIONS = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum")
_ALL_REDUCTIONS = (
    f"{' '.join(_REDUCTIONS)} ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceProd ReduceSumSquare"
)
_PRODUCTS = " ".join(WEIGHTED)
_PLACES = frozenset("Identity Reshape Transpose Squeeze Unsqueeze Flatten".split())
_BOUNDS = ("Relu", "LeakyRelu", "PRelu", "Clip", "Max", "Min")
_PASSED = ("Relu", "Clip", "Transpose", "Concat", "Identity")  # a quantization moves through these to a bias
_SHAPED = frozenset(["Shape", "EyeLike", "LSTM", "GRU", "RNN"])
"""Operators for which OpenVINO reads an extent of a tensor: recurrent layers need it for the first state."""
_MOVED = frozenset(
    """
    Relu LeakyRelu PRelu Clip Mul Div Identity Transpose Squeeze Unsqueeze Flatten
    MaxPool AveragePool GlobalMaxPool GlobalAveragePool
    """.split()
)
"""Operators behind which OpenVINO moves the scale of a product."""
_TO_GATHER = _MOVED - {"Relu", "LeakyRelu", "PRelu", "Clip", "Transpose", "Squeeze", "Unsqueeze"}
"""Those of `_MOVED` that may stand between a product and a Gather."""


@node_query("ReduceMax ReduceMin")
def find_quantized_extrema(node: onnx.NodeProto, links: Links) -> bool:
    """Match a ReduceMax or ReduceMin with a QuantizeLinear behind it (case 1)."""
    return not _has_max(node, links) and _is_quantized(node, links, _FUSED)


@node_query(_ALL_REDUCTIONS)
def find_reduced_channels(node: onnx.NodeProto, links: Links) -> bool:
    """Match a reduction without keepdims in front of a per-channel operand and a QuantizeLinear (case 2)."""
    if attribute(node, "keepdims", 1) or _has_max(node, links):
        return False
    return any(
        reader.op_type in _FUSED and _has_row(reader, links) and _is_quantized(reader, links, _FUSED)
        for reader in iterate_consumers(node.output[0], links.consumers, _FUSED)
    )


@node_query(" ".join(_LINEAR))
def find_quantized_factors(node: onnx.NodeProto, links: Links) -> bool:
    """Match per-channel factors or offsets between an int8 product and a QuantizeLinear (case 3)."""
    readers = links.consumers.get(node.output[0], ())
    varying = [name for name in node.input if name not in links.stored]
    is_read = any(reader.op_type == "QuantizeLinear" for reader in readers)
    if not is_read or not _has_row(node, links) or len(varying) != 1:
        return False
    product = nearest_producer(varying[0], links.producers, (*_LINEAR, *_BOUNDS), links.stored)
    if product is None or product.op_type not in ("Gemm", "MatMul"):
        return False
    is_int8 = find_producer_chain(product.input[0], links.producers, "DequantizeLinear") is not None
    is_bias = node.op_type == "Add" and len(product.input) < 3 and varying[0] == product.output[0]
    return is_int8 and not is_bias and len(links.shapes.get(product.output[0], "nc")) == 2


@node_query("Reshape")
def find_reduced_scales(node: onnx.NodeProto, links: Links) -> bool:
    """Match a Reshape between an int8 convolution with a scale that may move and a reduction (case 6)."""
    readers = iterate_consumers(node.output[0], links.consumers, _MOVED)
    return any(reader.op_type in _REDUCTIONS for reader in readers) and _has_free_scale(node.input[0], links)


@node_query(_PRODUCTS)
def find_gathered_scales(node: onnx.NodeProto, links: Links) -> bool:
    """Match an int8 product without bias in front of a Gather with a scalar index (case 7)."""
    if not _reads_integers(node, links) or _has_bias(node, links):
        return False
    return any(
        _takes_index(reader, links)
        for reader in iterate_consumers(node.output[0], links.consumers, _TO_GATHER)
    )


def find_shifted_counts(model: onnx.ModelProto) -> list[str]:
    """Return the integer reductions of case 8."""

    def is_shifted(node: onnx.NodeProto, links: Links) -> bool:
        return any(
            reader.op_type == "Neg" or (reader.op_type in _LINEAR and links.constants & {*reader.input})
            for reader in iterate_consumers(node.output[0], links.consumers, _PLACES)
        )

    names = find_nodes(model, _ALL_REDUCTIONS, is_shifted)
    return [
        node_name(node)
        for scope in (every_scope(model, opset(model)) if names else ())
        for node in scope.graph.node
        if node_name(node) in names and _counts_within(node, scope)
    ]


def _counts_within(node: onnx.NodeProto, scope: Scope) -> bool:
    """Return whether a reduction is of integers, may have three axes, and may leave out the first of them."""
    shape = scope.shape(node.input[0])
    if scope.type(node.output[0]) not in ("tensor(int32)", "tensor(int64)") or len(shape or "nlc") != 3:
        return False
    axes = scope.constant(node.input[1]) if len(node.input) > 1 else attribute(node, "axes")
    return axes is None or {0, -3}.isdisjoint(np.asarray(axes).reshape(-1).tolist())


def find_merged_biases(model: onnx.ModelProto) -> list[str]:
    """Return the nodes of case 4: products, and the last constant Add or Mul behind a product."""
    graphs = [Links(model, graph) for graph in every_graph(model.graph)]
    shaped = any(node.op_type in _SHAPED for links in graphs for node in links.graph.node)
    return [
        name
        for links in graphs
        for node in links.graph.node
        if node.op_type in WEIGHTED and node.domain in ONNX_DOMAINS
        for name in _merged_biases(node, links, shaped=shaped)
    ]


def _merged_biases(node: onnx.NodeProto, links: Links, *, shaped: bool) -> Sequence[str]:
    last, tensors, biased = _with_constants(node, links)
    reads_integers = _reads_integers(node, links)
    scaled = node.op_type == "Conv" and reads_integers and not biased
    scaled &= last.op_type not in ("Add", "Sub")
    shared = any(_is_shared(tensor, links) for tensor in (tensors if scaled else tensors[:-1]))
    elsewhere = shaped and (biased or len(tensors) > 1)
    elsewhere &= node.op_type in _CONVOLUTIONS or not reads_integers
    names: dict[str, None] = {}
    if (shared or elsewhere) and _is_quantized(last, links, _PASSED):
        names = dict.fromkeys([node_name(node), node_name(last)] if scaled else [node_name(last)])
    elif scaled and shared:
        names = {node_name(node): None}
    return [*names] if names and _is_dynamic(node, links) else []


@node_query(_PRODUCTS)
def find_moved_scales(node: onnx.NodeProto, links: Links) -> bool:
    """Match an int8 product without bias in front of a Reshape of its dynamic batch (case 5)."""
    if not _reads_integers(node, links) or _has_bias(node, links) or not _is_dynamic(node, links):
        return False
    matrix = links.shapes.get(node.output[0], ()) if node.op_type in ("MatMul", "Gemm") else ()
    readers = iterate_consumers(node.output[0], links.consumers, _MOVED)
    return len(matrix) < 3 and any(_mixes_batch(reader, matrix, links) for reader in readers)


def with_max(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Return a node with Max(·, -1e30) behind it."""
    chain = Chain(node, scope)
    lowest = scope.store(_LOWEST.get(scope.type(chain.output), np.float32(-1e30)), f"{chain.output}/lowest")
    node.output[0] = scope.fresh(f"{chain.output}{_APART}")
    chain.nodes.append(node)
    largest = chain.add("Max", [node.output[0], lowest])
    chain.nodes[-1].name = scope.fresh(f"{chain.name}{_APART}")
    return chain.result(largest)


def _has_max(node: onnx.NodeProto, links: Links) -> bool:
    """Return whether `with_max` has inserted a Max behind a node."""
    return any(map(_is_inserted_max, links.consumers.get(node.output[0], ())))


def _is_inserted_max(node: onnx.NodeProto) -> bool:
    return node.op_type == "Max" and _APART in node.name


def _is_quantized(node: onnx.NodeProto, links: Links, passed: Collection[str]) -> bool:
    readers = iterate_consumers(node.output[0], links.consumers, passed)
    return any(reader.op_type == "QuantizeLinear" for reader in readers)


def _has_row(node: onnx.NodeProto, links: Links) -> bool:
    """Return whether a node reads a constant of several values, such as per-channel factors."""
    return any(np.prod(links.stored[name].dims) > 1 for name in node.input if name in links.stored)


def _has_free_scale(tensor: str, links: Links) -> bool:
    """Return whether a tensor comes from an int8 convolution without bias, or through per-channel factors."""
    pending, seen, factors = [tensor], {tensor}, False
    while pending:
        node = links.producers.get(pending.pop())
        if node is None or _is_inserted_max(node):
            continue
        if node.op_type == "Conv" and _reads_integers(node, links):
            return factors or not _has_bias(node, links)
        factors |= _has_row(node, links)
        if node.op_type in (*_LINEAR, *_MOVED, "BatchNormalization", "Sigmoid"):
            pending += [name for name in node.input if name not in seen]
            seen.update(node.input)
    return False


def _is_dynamic(node: onnx.NodeProto, links: Links) -> bool:
    """Return whether a product has a dynamic shape; if its shape is unknown, whether a model input has."""

    def is_open(shape: Sequence[int | str]) -> bool:
        return any(not isinstance(extent, int) for extent in shape)

    shape = links.shapes.get(node.output[0])
    if shape is None:
        return any(is_open(links.shapes.get(value.name, ())) for value in links.model.graph.input)
    return is_open(shape)


def _with_constants(node: onnx.NodeProto, links: Links) -> tuple[onnx.NodeProto, Sequence[str], bool]:
    """Return the last constant operator behind a product, all outputs so far, and whether it has a bias."""
    biased, tensors = _has_bias(node, links), [node.output[0]]
    while True:
        linear = [reader for reader in links.consumers.get(tensors[-1], ()) if reader.op_type in _LINEAR]
        constant_readers = [reader for reader in linear if links.constants & {*reader.input}]
        if len(constant_readers) != 1:
            return node, tensors, biased
        node = constant_readers[0]
        tensors.append(node.output[0])


def _has_bias(node: onnx.NodeProto, links: Links) -> bool:
    """Return whether a product has a bias operand, apart from zeros, which OpenVINO removes."""
    if len(node.input) < 3 or not node.input[2]:
        return False
    tensor = links.stored.get(node.input[2])
    return tensor is None or bool(tensor.external_data) or bool(np.any(tensor_values(tensor)))


def _takes_index(node: onnx.NodeProto, links: Links) -> bool:
    """Return whether a node is a Gather with a scalar index, or with an index of unknown rank."""
    if node.op_type != "Gather":
        return False
    tensor = links.stored.get(node.input[1])
    return not tensor.dims if tensor is not None else not links.shapes.get(node.input[1])


def _reads_integers(node: onnx.NodeProto, links: Links) -> bool:
    makers = [links.producers.get(name) for name in node.input[:2]]
    return all(maker is not None and maker.op_type == "DequantizeLinear" for maker in makers)


def _is_shared(tensor: str, links: Links) -> bool:
    readers = [reader for reader in links.consumers.get(tensor, ()) if reader.op_type != "Shape"]
    return len(readers) + any(value.name == tensor for value in links.graph.output) > 1


def _mixes_batch(node: onnx.NodeProto, matrix: Sequence[int | str], links: Links) -> bool:
    """Return whether a node is a Reshape that may change the first axis of a product of shape `matrix`."""
    if node.op_type != "Reshape":
        return False
    shape = links.stored.get(node.input[1])
    if shape is None or shape.external_data:
        return True
    extents = tensor_values(shape).reshape(-1).tolist()
    if extents[:1] == [0]:
        return False
    # Of a product [N, C], OpenVINO takes a second axis of a multiple of C for the channels.
    if len(matrix) == 2 and isinstance(matrix[1], int) and matrix[1]:
        return len(extents) > 2 and (extents[1] < 0 or extents[1] % matrix[1] == 0)
    return True
