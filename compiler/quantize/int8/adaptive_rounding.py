"""Round the weights of static INT8 against the samples (GPTQ) instead of to the nearest step.

Scales stay those of the plan, one per output channel; which of the two steps next to a weight is taken is
chosen so that the layer's output changes least on what it reads: `weight_only.rounding.gptq`, by the Hessian
`2 X Xᵀ` of the float model's activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ....model.graph import attribute, consumers, producers, tensor_values, weighted_nodes
from ....model.graph_edits import set_values
from ....model.onnx_file import load_onnx
from ....progress import Progress, silent
from ..prepare import prepare_graph
from ..weights.hessians import collect_hessians, hessian_key, hessian_of
from ..weights.rounding import gptq
from .pair_limits import PairLimits

if TYPE_CHECKING:
    import onnx

    from ....data.batches import Data

_MIDDLE = 128
_ROUNDED = frozenset(["Conv", "Gemm", "MatMul"])


def round_weights(
    float_model_path: Path,
    quantized: onnx.ModelProto,
    data: Data,
    limit: int,
    progress: Progress = silent,
    *,
    pairs: Mapping[str, PairLimits] = MappingProxyType({}),
) -> int:
    """Round the weights of a quantized model anew, in place; return how many.

    Weights of grouped convolutions, transposed ones and those behind no scale per output channel stay
    rounded to nearest.

    Args:
        float_model_path: The model that was quantized.
        quantized: From `static.quantize_static`.
        data: Samples.
        limit: Use at most this many.
        progress: Told of every sample.
        pairs: Weight of the float model to its limits, where two of its products are added in 16 bits.

    Raises:
        DataError, CalibrationError: If samples do not fit, or a tensor becomes NaN or infinite.
        QuantizationError: If a Hessian is not positive.
    """
    reference = prepare_graph(load_onnx(float_model_path))
    float_nodes = {node.name: node for node in reference.graph.node if node.op_type in _ROUNDED}
    weights = {t.name: t for t in reference.graph.initializer}
    readers = consumers(reference.graph)
    plan = {
        node.name: node
        for node in weighted_nodes(quantized)["int8"]
        if node.name in float_nodes and _fits(float_nodes[node.name], weights, readers)
    }
    keys = {hessian_key(float_nodes[name]) for name in plan}
    hessians = collect_hessians(float_model_path, keys, data, limit, progress)
    progress("round the weights")
    stored = {tensor.name: tensor for tensor in quantized.graph.initializer}
    made_by = producers(quantized.graph)
    done: set[str] = set()
    for name, node in plan.items():
        float_node = float_nodes[name]
        dequantize = made_by[node.input[1]]
        tensor = _integers(dequantize, made_by, stored)
        scales = stored.get(dequantize.input[1])
        if tensor is None or scales is None or list(scales.dims) in ([], [1]) or tensor.name in done:
            continue
        values = _rows(tensor_values(weights[float_node.input[1]]), float_node)
        hessian = hessian_of([float_node], hessians)
        if hessian is None or tensor_values(scales).shape != (len(values),):
            continue
        limits = pairs.get(float_node.input[1])
        rounded = gptq(
            values,
            hessian,
            bits=8,
            block_size=0,
            symmetric=True,
            scales=tensor_values(scales),
            name=tensor.name,
            room=limits.room(tuple(tensor.dims), _MIDDLE) if limits else None,
        )
        codes = rounded.codes.astype(np.int16) - _MIDDLE
        _store(tensor, codes, tensor_values(scales), float_node)
        done.add(tensor.name)
    return len(done)


def _fits(node: onnx.NodeProto, weights: dict[str, Any], readers: dict[str, list[onnx.NodeProto]]) -> bool:
    return bool(hessian_key(node)) and node.input[1] in weights and len(readers[node.input[1]]) == 1


def _integers(
    dequantize: onnx.NodeProto, made_by: dict[str, onnx.NodeProto], stored: dict[str, onnx.TensorProto]
) -> onnx.TensorProto | None:
    """The stored weight: int8, or float in front of a pair."""
    name = dequantize.input[0]
    if name in made_by and made_by[name].op_type == "QuantizeLinear":
        name = made_by[name].input[0]
    return stored.get(name)


def _rows(values: NDArray[Any], node: onnx.NodeProto) -> NDArray[np.float32]:
    """[N, K]: a row per output channel."""
    rows = values.reshape(len(values), -1) if _by_output(node) else values.T
    return np.ascontiguousarray(rows, np.float32)


def _by_output(node: onnx.NodeProto) -> bool:
    return node.op_type == "Conv" or (node.op_type == "Gemm" and bool(attribute(node, "transB", 0)))


def _store(
    tensor: onnx.TensorProto, codes: NDArray[np.int16], scales: NDArray[Any], node: onnx.NodeProto
) -> None:
    """Write the rows back in the weight's own layout."""
    from onnx import TensorProto

    before = tensor_values(tensor)
    integer = tensor.data_type == TensorProto.INT8
    rows: NDArray[Any] = np.clip(codes, -127, 127)
    if not integer:
        rows = rows * scales.astype(np.float32)[:, None]
    values = rows.reshape(before.shape) if _by_output(node) else rows.T
    set_values(tensor, np.ascontiguousarray(values).astype(before.dtype))
