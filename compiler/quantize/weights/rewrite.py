"""Weight-only quantization: weights of 4 or 8 bits, activations in floating point. It saves memory.

| consumer of a float32 weight | form "nbits", for ONNX Runtime | form "qdq", standard ONNX, for TensorRT  |
|------------------------------|--------------------------------|------------------------------------------|
| MatMul, Gemm                 | MatMulNBits                    | DequantizeLinear in front                |
| Gather, of rows of a table   | GatherBlockQuantized           | DequantizeLinear in front                |
| Conv                         | unchanged                      | DequantizeLinear of [N, K], then Reshape |

Each output channel (a row of a table) is divided into blocks with a float32 scale each. The default block of
64 makes 4-bit weights 7.0 times smaller than float32; blocks of 32 would give 6.2 with zero points and 6.4
without. The form decides on zero points:

- "nbits" has them: with 4 bits and blocks of 64 they add 1/16 bit per value, and raise the SQNR of normal
  weights from 20.5 to 21.2 dB, of Laplace weights from 18.1 to 19.3 dB. Smaller blocks gain 1.7 dB per bit.
- "qdq" does not: TensorRT supports INT4 only with zero point 0. Its blocks divide K (48 for K = 288), because
  TensorRT would misread others; if that results in blocks below 16, each channel has one scale.

ONNX Runtime also runs "qdq", but fuses blocks and MatMul to a product with 8-bit activations (its option
`session.qdq_matmulnbits_accuracy_level`), and dequantizes other weights at every inference. TensorRT-RTX
rejects a Gather of integers, so a table's DequantizeLinear is in front; the engine stores the integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.helper import make_node

from ....errors import InvalidOption, QuantizationError
from ....model.graph.graph import attribute, opset, tensor_bytes
from ....model.graph.graph_edits import drop_unused_initializers, set_nodes
from ....model.graph.graph_names import Names
from ....spec.opsets import INT4
from ...opset.fit import upgrade_in_place
from ..prepare import outputs_first
from ..request import nothing_to_quantize, require_reached
from .hessians import hessian_key, hessian_of
from .rounding import (
    RoundedWeight,
    dividing_block,
    gptq,
    nbits_arrays,
    nbits_block,
    qdq_arrays,
    qdq_row_bytes,
    round_to_nearest,
)

DEFAULT_BLOCK = 64
_PRODUCTS = ("MatMul", "Gemm")
_WEIGHTED = (*_PRODUCTS, "Gather", "Conv", "ConvTranspose")
_SMALLEST_BLOCK, _LARGEST_NBITS_BLOCK = 16, 256  # limits of ONNX Runtime 1.31's CPU kernels


@dataclass(frozen=True)
class _Weight:
    """A stored weight and its layout: axis 1 for [N, K] (K may be several axes), 0 for [K, N]."""

    name: str
    axis: int  # axis of the blocks


def quantize_weights(
    model: onnx.ModelProto,
    *,
    bits: int,
    block_size: int = DEFAULT_BLOCK,
    quant_format: str = "nbits",
    excluded: Mapping[str, str] = MappingProxyType({}),
    hessians: Callable[[set[str]], Mapping[str, NDArray[Any]]] | None = None,
) -> tuple[onnx.ModelProto, dict[str, object]]:
    """Store the large weights of a model as integers, in place.

    Args:
        block_size: Values that share a scale: a power of two, at least 16 (for "nbits", at most 256); 0 for
            one scale per output channel.
        quant_format: "nbits" or "qdq", as in the table above.
        excluded: Node name to reason, for nodes that remain in floating point.
        hessians: Returns the Hessians of a set of `hessian_key` values; GPTQ then compensates for errors in
            products. Without them, and for grouped Conv and tables that only Gather reads, weights are
            rounded to nearest, with a search over clipping.

    Returns:
        The model, and its verification: "planned" and "quantized" (operator to number of nodes),
        "left_in_float" (name to reason), "weight_bytes" ("before" and "after", of these weights).
    """
    power = block_size >= _SMALLEST_BLOCK and not block_size & (block_size - 1)
    if block_size and (not power or (quant_format == "nbits" and block_size > _LARGEST_NBITS_BLOCK)):
        raise InvalidOption(f"block size: {block_size}; 0 or a power of two, 16 to 256 in nbits, is required")
    planned, reasons = _plan(model, excluded, form=quant_format, bits=bits, block_size=block_size)
    if not planned:
        absent = "no MatMul, Gemm, Conv or Gather reads a stored weight"
        hint = "simplify first, which stores constants; or keep the model in float"
        raise nothing_to_quantize(reasons, absent, hint)
    nodes = {node.name: node for node in model.graph.node}
    keys = {hessian_key(nodes[name]) for name in planned} - {""}
    observed = None if hessians is None else hessians(keys)
    operators = dict(Counter(nodes[name].op_type for name in planned))
    if quant_format == "qdq":
        upgrade_in_place(model, INT4)
    elif not opset(model, "com.microsoft"):
        model.opset_import.add(domain="com.microsoft", version=1)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    names = {weight.name for weight in planned.values()}
    before = sum(tensor_bytes(stored[name]) for name in names)
    writer = _Writer(model.graph)
    for weight in dict.fromkeys(planned.values()):
        readers = [nodes[name] for name, read in planned.items() if read == weight]
        hessian = None if observed is None else hessian_of(readers, observed)
        values = numpy_helper.to_array(stored[weight.name])
        if not np.isfinite(values).all():
            raise QuantizationError(f"weight {weight.name!r} holds NaN or infinity", hint="repair the model")
        array = values.reshape(len(values), -1) if weight.axis else np.ascontiguousarray(values.T)
        size = dividing_block(array.shape[1], block_size) if quant_format == "qdq" else block_size
        options: Any = {"bits": bits, "block_size": size, "symmetric": quant_format == "qdq"}
        if hessian is None:
            rounded = round_to_nearest(array, **options)
        else:
            rounded = gptq(array, hessian, name=weight.name, **options)
        if quant_format == "nbits":
            writer.store_nbits(weight, rounded, readers)
        else:
            writer.store_qdq(weight, rounded)
    require_reached(planned, writer.replace(planned))
    drop_unused_initializers(model.graph)
    remaining = [tensor for tensor in model.graph.initializer if tensor.name in names]
    return model, {
        "planned": operators,
        "quantized": operators,
        "left_in_float": reasons,
        "weight_bytes": {
            "before": before,
            "after": writer.bytes + sum(map(tensor_bytes, remaining)),
        },
    }


def _plan(
    model: onnx.ModelProto, excluded: Mapping[str, str], *, form: str, bits: int, block_size: int
) -> tuple[dict[str, _Weight], dict[str, str]]:
    """Return node name to the weight to quantize, and node name to the reason for other nodes."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    floats = {name for name, tensor in stored.items() if tensor.data_type == 1}
    planned: dict[str, _Weight] = {}
    reasons: dict[str, str] = {}
    for node in model.graph.node:
        if node.op_type not in _WEIGHTED or node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type == "Gather" and node.input[0] not in floats:
            continue  # its table is a shape or an activation
        reason = excluded.get(node.name) or _reason_unsupported(node, stored, form)
        if not reason:
            rows_first = node.op_type == "Gather" or outputs_first(node)
            weight = _Weight(node.input[0 if node.op_type == "Gather" else 1], int(rows_first))
            reason = _skip_reason(stored[weight.name], weight, form=form, bits=bits, block_size=block_size)
            if node.op_type == "Gather" and form == "nbits" and bits == 4 and stored[weight.name].dims[1] % 2:
                reason = "its rows have an odd number of values, and two share a byte"
            planned |= {} if reason else {node.name: weight}
        reasons |= {node.name: reason} if reason else {}
    return planned, reasons


def _reason_unsupported(node: onnx.NodeProto, stored: Mapping[str, onnx.TensorProto], form: str) -> str:
    """Return why a node's weight cannot be quantized, or ""."""
    if node.op_type == "ConvTranspose" or (node.op_type == "Conv" and form == "nbits"):
        return f"the form {form!r} has no {node.op_type}"
    data_index, name = (1, node.input[0]) if node.op_type == "Gather" else (0, node.input[1])
    weight = stored.get(name)
    if weight is None:
        is_left = node.input[data_index] in stored
        return "its constant is the left operand" if is_left else "its weight is computed at run time"
    if node.input[data_index] in stored:
        return "all its inputs are constant"
    if weight.data_type != 1:
        return "its weight is not float32"
    if node.op_type != "Conv" and len(weight.dims) != 2:
        return f"its weight has {len(weight.dims)} axes; 2 are required"
    if node.op_type == "Gather" and attribute(node, "axis", 0) not in (0, -2):
        return "it picks columns of its table"
    if attribute(node, "transA", 0):
        return "its activation is transposed"
    if any(attribute(node, name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return "its alpha or beta is not folded"
    return ""


def _skip_reason(tensor: onnx.TensorProto, weight: _Weight, *, form: str, bits: int, block_size: int) -> str:
    """Return why a weight of this many bits saves no memory or is not supported, or ""."""
    rows, columns = int(tensor.dims[0]), int(np.prod(tensor.dims[1:]))
    rows, columns = (rows, columns) if weight.axis else (columns, rows)
    if not rows or not columns:
        return "its weight is empty"
    if form == "qdq" and bits == 4 and rows * columns % 2:
        return "its weight has an odd number of values, which TensorRT refuses in 4 bits"
    row_bytes = qdq_row_bytes(columns, bits, block_size)
    after = rows * (row_bytes if form == "qdq" else nbits_block(columns, bits, block_size)[1])
    if after >= rows * columns * 4:
        return f"its weight of {rows * columns * 4} bytes would take {after}"
    return ""


class _Writer:
    """Replaces weights by integers."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph, self.names = graph, Names(graph)
        self.prefixes: dict[_Weight, str] = {}  # prefix of the names of the tensors in its place
        self.extents = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        self.bytes = 0
        self.settings: dict[_Weight, dict[str, int]] = {}  # attributes of ONNX Runtime's operators
        self.dequantizers: list[onnx.NodeProto] = []

    def _add(self, name: str, kind: int, shape: Sequence[int], array: NDArray[Any]) -> str:
        content = np.ascontiguousarray(array).tobytes()
        self.graph.initializer.append(onnx.helper.make_tensor(name, kind, shape, content, raw=True))
        self.bytes += len(content)
        return name

    def _prefix(self, weight: _Weight) -> str:
        self.prefixes[weight] = self.names.stem(f"{weight.name}/axis{weight.axis}")
        return self.prefixes[weight]

    def store_nbits(self, weight: _Weight, rounded: RoundedWeight, readers: Sequence[onnx.NodeProto]) -> None:
        """Add the initializers of the ONNX Runtime operators that replace the readers."""
        arrays, size = nbits_arrays(rounded)
        prefix = self._prefix(weight)
        self.settings[weight] = {"bits": rounded.bits, "block_size": size}
        looked_up = [node.op_type == "Gather" for node in readers]
        used = {"rows": any(looked_up), "blocks": not all(looked_up)}
        for name, array in arrays.items():
            if used.get(name, True):
                kind = 1 if array.dtype == np.float32 else 2
                self._add(f"{prefix}/{name}", kind, array.shape, array)

    def store_qdq(self, weight: _Weight, rounded: RoundedWeight) -> None:
        """Add a DequantizeLinear and its operands."""
        codes, scales = qdq_arrays(rounded, weight.axis)
        prefix = self._prefix(weight)
        dims = shape = self.extents[weight.name]
        settings = {"axis": 1 - weight.axis}
        if scales.ndim > 1:
            shape = rounded.codes.shape[:: 1 if weight.axis else -1]
            settings = {"axis": weight.axis, "block_size": rounded.block_size}
        kind = TensorProto.INT4 if rounded.bits == 4 else TensorProto.INT8
        operands = [
            self._add(f"{prefix}/int{rounded.bits}", kind, shape, codes),
            self._add(f"{prefix}/scale", TensorProto.FLOAT, scales.shape, scales),
        ]
        dequantized = f"{prefix}/dequantized"
        flat = dequantized if shape == dims else f"{dequantized}/flat"
        name = self.names.fresh(f"dequantize/{prefix}")
        self.dequantizers.append(make_node("DequantizeLinear", operands, [flat], name, **settings))
        if shape != dims:
            target = self._add(f"{prefix}/shape", TensorProto.INT64, [len(dims)], np.asarray(dims))
            name = self.names.fresh(f"reshape/{prefix}")
            reshape = make_node("Reshape", [flat, target], [dequantized], name)
            self.dequantizers.append(reshape)

    def replace(self, planned: Mapping[str, _Weight]) -> set[str]:
        """Connect the planned nodes to the stored integers; return their names."""
        nodes, replaced = list(self.dequantizers), set[str]()
        for node in self.graph.node:
            weight = planned.get(node.name)
            replaced |= set() if weight is None else {node.name}
            if weight in self.settings:
                nodes += self._nbits(node, weight)
                continue
            if weight is not None:
                node.input[0 if node.op_type == "Gather" else 1] = f"{self.prefixes[weight]}/dequantized"
            nodes.append(node)
        set_nodes(self.graph, nodes)
        return replaced

    def _nbits(self, node: onnx.NodeProto, weight: _Weight) -> list[onnx.NodeProto]:
        attributes: dict[str, Any] = {"name": node.name, "domain": "com.microsoft", **self.settings[weight]}
        prefix = self.prefixes[weight]
        shared = [f"{prefix}/scale", f"{prefix}/zero_point"]
        if node.op_type == "Gather":
            operands = [f"{prefix}/rows", node.input[1], *shared]
            attributes |= {"gather_axis": 0, "quantize_axis": 1}
            return [make_node("GatherBlockQuantized", operands, list(node.output), **attributes)]
        rows, columns = self.extents[weight.name][:: 1 if weight.axis else -1]
        operands = [node.input[0], f"{prefix}/blocks", *shared]
        bias = node.input[2] if len(node.input) > 2 else ""
        fused = bias and self.extents.get(bias) == (rows,)
        operands += ["", bias] if fused else []
        product = node.output[0] if fused or not bias else self.names.fresh(f"{node.output[0]}/product")
        nodes = [make_node("MatMulNBits", operands, [product], K=columns, N=rows, **attributes)]
        if product != node.output[0]:
            name = self.names.fresh(f"{node.name}/bias")
            nodes.append(make_node("Add", [product, bias], list(node.output), name))
        return nodes
