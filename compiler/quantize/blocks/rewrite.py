"""Write matrix products with NVFP4 or MXFP8 operands, as TensorRT's ONNX parser reads them.

    NVFP4   x ─ TRT_FP4DynamicQuantize ─┬─ values ────────────────── DQ ─ Cast ─┐
                        s ──────────────┴─ E4M3 scales ─ DQ(s) ─ float32 ─┘     ├─ MatMul
            w, E2M1 [N, K] ─────────────────────────── DQ ─ Cast ─ Transpose ───┘
                        E4M3 scales ─ DQ(s) ─ float32 ─┘

    MXFP8   x ─ TRT_MXFP8DynamicQuantize ─┬─ values ─── TRT_MXFP8DequantizeLinear ─┐
                                          └─ E8M0 scales ─┘                        ├─ MatMul
            w, E4M3 [N, K] ─ TRT_MXFP8DequantizeLinear ─ Transpose ────────────────┘
                E8M0 scales ─┘

The form is Model-Optimizer's (modelopt/torch/quantization/export_onnx.py: `export_fp4`, `export_mxfp8`;
modelopt/onnx/export/nvfp4_exporter.py, mxfp8_exporter.py). The scales of an activation's blocks are computed
at run time; the scale of NVFP4's scales is calibrated. E8M0 is stored as uint8: TensorRT-RTX 1.7 refuses
ONNX's FLOAT8E8M0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import onnx
from onnx import TensorProto, helper

from ....calibration import parse_method
from ....model.graph import (
    ONNX_DOMAINS,
    WEIGHTED,
    attribute,
    count_weighted,
    infer_shapes,
    tensor_values,
    weighted_nodes,
)
from ....model.graph_edits import drop_attributes, drop_unused_initializers, set_nodes, store
from ....model.graph_names import Names
from ....spec.opsets import FLOAT4, FLOAT8
from ....spec.words import BlockFormat
from ...opset.fit import in_newer_opset
from ..half.precision import in_mixed_precision, layer_precisions
from ..prepare import prepare_graph, products_of_places
from ..request import Outcome, QuantizeRequest, match_nodes, no_range, nothing_to_quantize, require_reached
from .formats import BLOCK_SIZE, DOMAIN, quantize_weight, tensor_scale


def _unfit(
    node: onnx.NodeProto,
    kind: BlockFormat,
    stored: Mapping[str, onnx.TensorProto],
    shapes: Mapping[str, tuple[int | str, ...]],
) -> str | None:
    """Why a weighted node stays in float; None where it is quantized.

    TensorRT quantizes activations of two or three axes along the last one, in whole blocks
    (`IDynamicQuantizeLayer` of NvInfer.h, release/10.12; TensorRT-RTX 1.7 refuses others by name).
    """
    if node.op_type not in ("MatMul", "Gemm"):
        return f"TensorRT computes matrix products in {kind}, and no {node.op_type}"
    if node.input[0] in stored:
        return "its constant is the left operand"
    if node.input[1] not in stored:
        return "its weight is computed at run time"
    if attribute(node, "transA", 0):
        return "its activation is transposed"
    dims = stored[node.input[1]].dims
    if len(dims) != 2:
        return f"its weight has {len(dims)} axes; blocks need 2"
    axes = len(shapes.get(node.input[0], ()))
    if axes not in (2, 3):
        return f"its activation has {axes or 'an unknown number of'} axes; TensorRT takes 2 or 3"
    summed, block = dims[1 if attribute(node, "transB", 0) else 0], BLOCK_SIZE[kind]
    if summed % block:
        return f"it sums over {summed} values, which blocks of {block} do not divide"
    return None


LOWEST_OPSET = {"nvfp4": FLOAT4, "mxfp8": FLOAT8}
_IR_VERSION = {"nvfp4": 11, "mxfp8": 9}


def to_blocks(model: onnx.ModelProto, kind: BlockFormat, amax: Mapping[str, float]) -> None:
    """Quantize the operands of products, in place.

    Args:
        model: Float graph, or one converted to float16 or bfloat16, of opset `LOWEST_OPSET` or newer.
        amax: Name of a planned node to its activation's largest magnitude.
    """
    writer = _Writer(model.graph, kind)
    for node in model.graph.node:
        if node.name in amax:
            weight = writer.stored[node.input[1]]
            activation = writer.activation(node.input[0], weight.data_type, amax[node.name])
            node.input[:2] = [activation, writer.weight(node, weight)]
        writer.nodes.append(node)
    set_nodes(model.graph, writer.nodes)
    del model.graph.value_info[:]
    drop_unused_initializers(model.graph)
    if DOMAIN not in {entry.domain for entry in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    model.ir_version = max(model.ir_version, _IR_VERSION[kind])


class _Writer:
    """One walk over the graph; operands that several products share are quantized once."""

    def __init__(self, graph: onnx.GraphProto, kind: BlockFormat) -> None:
        self.graph, self.kind = graph, kind
        self.block = {"axis": -1, "block_size": BLOCK_SIZE[kind]}
        self.stored = {tensor.name: tensor for tensor in graph.initializer}
        self.nodes: list[onnx.NodeProto] = []
        self.made: dict[tuple[object, ...], str] = {}
        self.names = Names(graph)

    def activation(self, name: str, dtype: int, amax: float) -> str:
        key = (name, dtype, amax)
        if key not in self.made:
            prefix, e4m3 = self.names.stem(f"{name}/{self.kind}"), int(TensorProto.FLOAT8E4M3FN)
            values, scales, scale = f"{prefix}/values", f"{prefix}/scales", ""
            options = {"domain": DOMAIN, **self.block}
            if self.kind == "nvfp4":
                scale = store(self.graph, f"{prefix}/scale", np.asarray(tensor_scale(amax)))
                self._node(
                    "TRT_FP4DynamicQuantize", [name, scale], [values, scales], scale_type=e4m3, **options
                )
            else:
                self._node("TRT_MXFP8DynamicQuantize", [name], [values, scales], output_dtype=e4m3, **options)
            self.made[key] = self._value(values, scales, scale, prefix, dtype)
        return self.made[key]

    def _value(self, values: str, scales: str, scale: str, prefix: str, dtype: int) -> str:
        """Write what makes floats of quantized values; return their name."""
        if self.kind == "mxfp8":
            options = {"domain": DOMAIN, "output_dtype": dtype, **self.block}
            self._node("TRT_MXFP8DequantizeLinear", [values, scales], [f"{prefix}/float"], **options)
            return f"{prefix}/float"
        self._node("DequantizeLinear", [scales, scale], [f"{prefix}/block_scales"])
        self._node("DequantizeLinear", [values, f"{prefix}/block_scales"], [f"{prefix}/float"], **self.block)
        if dtype == TensorProto.FLOAT:
            return f"{prefix}/float"
        self._node("Cast", [f"{prefix}/float"], [f"{prefix}/half"], to=dtype)
        return f"{prefix}/half"

    def weight(self, node: onnx.NodeProto, tensor: onnx.TensorProto) -> str:
        """Return the weight that the product reads, and let a Gemm read it as [N, K]."""
        rows_first = bool(attribute(node, "transB", 0))
        key = (tensor.name, rows_first)
        if key not in self.made:
            prefix = self.names.stem(f"{tensor.name}/{self.kind}")
            weight = tensor_values(tensor).astype(np.float32)
            rounded = quantize_weight(weight if rows_first else weight.T, self.kind)
            values = store(self.graph, f"{prefix}/values", rounded.values)
            scales, scale = store(self.graph, f"{prefix}/scales", rounded.block_scales), ""
            if self.kind == "nvfp4":
                scale = store(self.graph, f"{prefix}/scale", np.asarray(rounded.scale))
            self.made[key] = self._value(values, scales, scale, prefix, tensor.data_type)
        if node.op_type == "Gemm":
            drop_attributes(node, "transB")
            node.attribute.append(helper.make_attribute("transB", 1))
            return self.made[key]
        turned = (*key, "turned")
        if turned not in self.made:
            self.made[turned] = f"{self.made[key]}/turned"
            self._node("Transpose", [self.made[key]], [self.made[turned]], perm=[1, 0])
        return self.made[turned]

    def _node(self, operator: str, inputs: list[str], outputs: list[str], **options: Any) -> None:
        self.nodes.append(helper.make_node(operator, inputs, outputs, outputs[0], **options))


def quantize_in_blocks(request: QuantizeRequest) -> Outcome:
    """Quantize the products of stored weights; what they leave in float may become float16 or bfloat16."""
    kind = cast("BlockFormat", request.spec.precision)
    model = in_newer_opset(request.graph, LOWEST_OPSET[kind], data=request.spec.data)
    ready = prepare_graph(model)
    layers = layer_precisions(request, ready.graph)
    excluded = {name: layer.reason for name, layer in layers.items()}
    excluded |= match_nodes(ready.graph, request.spec.exclude, only=request.spec.only)
    excluded |= products_of_places(ready.graph)
    shapes = infer_shapes(ready)
    stored = {tensor.name: tensor for tensor in ready.graph.initializer}
    planned, left = list[str](), dict[str, str]()
    for node in ready.graph.node:
        if node.op_type in WEIGHTED and node.domain in ONNX_DOMAINS:
            reason = excluded.get(node.name) or _unfit(node, kind, stored, shapes)
            planned += [] if reason else [node.name]
            left |= {node.name: reason} if reason else {}
    if not planned:
        other = "choose `precision` int8 or fp8, or keep it in float"
        raise nothing_to_quantize(left, "no MatMul or Gemm", other if left else "simplify first")
    amax = _amax(ready, planned, request) if kind == "nvfp4" else dict.fromkeys(planned, 0.0)
    graph, kept, missed = in_mixed_precision(request, ready, layers)
    to_blocks(graph, kind, amax)
    require_reached(planned, [node.name for node in weighted_nodes(graph).get(kind, ())])
    proof: dict[str, object] = {
        "nodes_by_precision": count_weighted(graph),
        "left_in_float": left,
        "left_in_fp32": kept,
        "block_size": BLOCK_SIZE[kind],
    }
    return Outcome(graph, proof, missed)


def _amax(model: onnx.ModelProto, planned: list[str], request: QuantizeRequest) -> dict[str, float]:
    """Node to the largest magnitude of its activation, by the method that was asked for."""
    assert request.ranges is not None, "check_ranges comes first"
    method = parse_method(request.spec.method) if request.spec.method else None
    read = {node.name: node.input[0] for node in model.graph.node if node.name in set(planned)}
    if missing := [tensor for tensor in read.values() if tensor not in {*request.ranges.names()}]:
        raise no_range(missing[0])
    return {name: request.ranges.amax(tensor, method) for name, tensor in read.items()}
