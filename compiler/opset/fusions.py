"""Insert a Max where OpenVINO's optimizer would otherwise fuse operators into a kernel with wrong results.

    Conv ─ QuantizeLinear        becomes        Conv ─ Max(·, -1e30) ─ QuantizeLinear

No layer returns less than -1e30, so Max returns its operand; for float16, int32 and int64, the bound is the
least value of the type. OpenVINO fuses a Max with neither of its neighbours. A product is a Conv,
ConvTranspose, MatMul or Gemm; it is int8 if DequantizeLinears make its operands. Factors behind a product may
come from equalized channels. These fusions are wrong (OpenVINO 2026.4.1, on every processor):

1. A QuantizeLinear reads a ReduceMax or ReduceMin, directly or through other operators: the QuantizeLinear
   becomes part of the reduction's kernel, which first rounds its input to integers of 0 to 255.
2. A QuantizeLinear reads a reduction without keepdims through per-channel operands, such as factors: these
   operands become part of the kernel, which indexes channels along another axis.
3. A QuantizeLinear reads an int8 product of two axes through per-channel factors or offsets, and feeds
   another int8 product of two axes: batches of 4, 6 and 8 are wrong.
4. A QuantizeLinear reads a biased product of dynamic shape, and the product has another consumer: the bias
   becomes part of the quantization, which applies the bias of channel 0 to all channels. OpenVINO may add the
   other consumer itself: for a Shape, it can take an extent from another tensor of equal extent. In an int8
   convolution without bias, the scale of the weights has the role of the bias. If no QuantizeLinear follows
   and the result has two consumers, this scale is lost.
5. A Reshape adds or changes axes of an int8 product without bias and with a dynamic batch: the scale of the
   weights moves behind the Reshape, where it scales another axis.
6. A reduction reads a Reshape that joins the positions of an int8 convolution, [N, C, H, W] to [N, C, H W]:
   the scale of the weights, or factors per channel behind the convolution, move behind the reduction and
   scale other channels.
7. A Gather with a scalar index reads an int8 product without bias: the scale of the weights moves behind the
   Gather with the axis that the Gather removes. The result has an extra axis, or cannot be computed.
8. An integer reduction over the second or third of three axes is negated, or shifted or scaled by a constant,
   directly or behind a Reshape: the second operation becomes part of the reduction's kernel, which reads one
   value for all channels as one per channel. Only the first vector of values is right, in float graphs too.
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
"""Operators that OpenVINO fuses with a QuantizeLinear into a reduction, or moves a QuantizeLinear through."""
_LINEAR = ("Add", "Sub", "Mul", "Div")
_REDUCTIONS = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum")
_ALL_REDUCTIONS = (
    f"{' '.join(_REDUCTIONS)} ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceProd ReduceSumSquare"
)
_PRODUCTS = " ".join(WEIGHTED)
_PLACES = frozenset("Identity Reshape Transpose Squeeze Unsqueeze Flatten".split())
_BOUNDS = ("Relu", "LeakyRelu", "PRelu", "Clip", "Max", "Min")
_PASSED = ("Relu", "Clip", "Transpose", "Concat", "Identity")  # OpenVINO moves a QuantizeLinear through these
_SHAPED = frozenset(["Shape", "EyeLike", "LSTM", "GRU", "RNN"])
"""Operators for which OpenVINO reads an extent of a tensor; recurrent layers need the batch size."""
_MOVED = frozenset(
    """
    Relu LeakyRelu PRelu Clip Mul Div Identity Transpose Squeeze Unsqueeze Flatten
    MaxPool AveragePool GlobalMaxPool GlobalAveragePool
    """.split()
)
"""Operators behind which OpenVINO moves the scale of a product."""
_TO_GATHER = _MOVED - {"Relu", "LeakyRelu", "PRelu", "Clip", "Transpose", "Squeeze", "Unsqueeze"}
"""Operators of `_MOVED` that may stand between a product and a Gather."""


@node_query("ReduceMax ReduceMin")
def find_quantized_extrema(node: onnx.NodeProto, links: Links) -> bool:
    """Match the reduction of case 1."""
    return not _has_max(node, links) and _is_quantized(node, links, _FUSED)


@node_query(_ALL_REDUCTIONS)
def find_reduced_channels(node: onnx.NodeProto, links: Links) -> bool:
    """Match the reduction of case 2."""
    if attribute(node, "keepdims", 1) or _has_max(node, links):
        return False
    return any(
        reader.op_type in _FUSED and _has_vector(reader, links) and _is_quantized(reader, links, _FUSED)
        for reader in iterate_consumers(node.output[0], links.consumers, _FUSED)
    )


@node_query(" ".join(_LINEAR))
def find_quantized_factors(node: onnx.NodeProto, links: Links) -> bool:
    """Match the factors or offsets of case 3."""
    readers = links.consumers.get(node.output[0], ())
    varying = [name for name in node.input if name not in links.stored]
    is_read = any(reader.op_type == "QuantizeLinear" for reader in readers)
    if not is_read or not _has_vector(node, links) or len(varying) != 1:
        return False
    product = nearest_producer(varying[0], links.producers, (*_LINEAR, *_BOUNDS), links.stored)
    if product is None or product.op_type not in ("Gemm", "MatMul"):
        return False
    is_int8 = find_producer_chain(product.input[0], links.producers, "DequantizeLinear") is not None
    is_bias = node.op_type == "Add" and len(product.input) < 3 and varying[0] == product.output[0]
    return is_int8 and not is_bias and len(links.shapes.get(product.output[0], "nc")) == 2


@node_query("Reshape")
def find_reduced_scales(node: onnx.NodeProto, links: Links) -> bool:
    """Match the Reshape of case 6."""
    readers = iterate_consumers(node.output[0], links.consumers, _MOVED)
    return any(reader.op_type in _REDUCTIONS for reader in readers) and _has_free_scale(node.input[0], links)


@node_query(_PRODUCTS)
def find_gathered_scales(node: onnx.NodeProto, links: Links) -> bool:
    """Match the product of case 7."""
    if not _reads_integers(node, links) or _has_bias(node, links):
        return False
    return any(
        _takes_index(reader, links)
        for reader in iterate_consumers(node.output[0], links.consumers, _TO_GATHER)
    )


def find_shifted_counts(model: onnx.ModelProto) -> list[str]:
    """Return the names of the integer reductions of case 8."""

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
    """Return whether a node reduces integers of three (or unknown) axes, but not over the first axis."""
    shape = scope.shape(node.input[0])
    if scope.type(node.output[0]) not in ("tensor(int32)", "tensor(int64)") or len(shape or "nlc") != 3:
        return False
    axes = scope.constant(node.input[1]) if len(node.input) > 1 else attribute(node, "axes")
    return axes is None or {0, -3}.isdisjoint(np.asarray(axes).reshape(-1).tolist())


def find_merged_biases(model: onnx.ModelProto) -> list[str]:
    """Return names for case 4: of a product, or of the last operator with a constant behind the product."""
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
    """Match the product of case 5."""
    if not _reads_integers(node, links) or _has_bias(node, links) or not _is_dynamic(node, links):
        return False
    matrix = links.shapes.get(node.output[0], ()) if node.op_type in ("MatMul", "Gemm") else ()
    readers = iterate_consumers(node.output[0], links.consumers, _MOVED)
    return len(matrix) < 3 and any(_mixes_batch(reader, matrix, links) for reader in readers)


def with_max(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    chain = Chain(node, scope)
    lowest = scope.store(_LOWEST.get(scope.type(chain.output), np.float32(-1e30)), f"{chain.output}/lowest")
    node.output[0] = scope.fresh(f"{chain.output}{_APART}")
    chain.nodes.append(node)
    largest = chain.add("Max", [node.output[0], lowest])
    chain.nodes[-1].name = scope.fresh(f"{chain.name}{_APART}")
    return chain.result(largest)


def _has_max(node: onnx.NodeProto, links: Links) -> bool:
    return any(map(_is_inserted_max, links.consumers.get(node.output[0], ())))


def _is_inserted_max(node: onnx.NodeProto) -> bool:
    return node.op_type == "Max" and _APART in node.name


def _is_quantized(node: onnx.NodeProto, links: Links, passed: Collection[str]) -> bool:
    readers = iterate_consumers(node.output[0], links.consumers, passed)
    return any(reader.op_type == "QuantizeLinear" for reader in readers)


def _has_vector(node: onnx.NodeProto, links: Links) -> bool:
    """Return whether a node reads a constant of several values."""
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
        factors |= _has_vector(node, links)
        if node.op_type in (*_LINEAR, *_MOVED, "BatchNormalization", "Sigmoid"):
            pending += [name for name in node.input if name not in seen]
            seen.update(node.input)
    return False


def _is_dynamic(node: onnx.NodeProto, links: Links) -> bool:
    """Return whether a product has a dynamic shape; if that is unknown, whether a model input has one."""

    def is_open(shape: Sequence[int | str]) -> bool:
        return any(not isinstance(extent, int) for extent in shape)

    shape = links.shapes.get(node.output[0])
    if shape is None:
        return any(is_open(links.shapes.get(value.name, ())) for value in links.model.graph.input)
    return is_open(shape)


def _with_constants(node: onnx.NodeProto, links: Links) -> tuple[onnx.NodeProto, Sequence[str], bool]:
    """Return the last constant operator behind a product, the outputs so far, and if there is a bias."""
    biased, tensors = _has_bias(node, links), [node.output[0]]
    while True:
        linear = [reader for reader in links.consumers.get(tensors[-1], ()) if reader.op_type in _LINEAR]
        constant_readers = [reader for reader in linear if links.constants & {*reader.input}]
        if len(constant_readers) != 1:
            return node, tensors, biased
        node = constant_readers[0]
        tensors.append(node.output[0])


def _has_bias(node: onnx.NodeProto, links: Links) -> bool:
    """Return whether a product has a bias that is not all zeros, which OpenVINO would remove."""
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
    # For a product [N, C], OpenVINO takes a new second axis for the channels if it is a multiple of C.
    if len(matrix) == 2 and isinstance(matrix[1], int) and matrix[1]:
        return len(extents) > 2 and (extents[1] < 0 or extents[1] % matrix[1] == 0)
    return True
