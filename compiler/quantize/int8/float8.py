"""FP8 for TensorRT: the Q/DQ of its INT8 graph, with E4M3 floats in place of integers.

    x ─ Q(s, 0: int8) ─ DQ        becomes    x ─ Q(s', 0: float8) ─ DQ      s' = amax / 448
    w ─ Q(s, 0: int8) ─ DQ        becomes    float8 values ─ DQ

E4M3 has a sign, four bits of exponent and three of mantissa, and no infinity; its largest number is 448
(Micikevicius et al. 2022, arXiv 2209.05433). Weights have a scale per output channel and are stored as
float8: what reads FP8 at all reads weights that are quantized already.

TensorRT builds it for compute capability 8.9 and newer; for an older GPU it refuses. Some convolutions have
no FP8 kernel, and building them fails or gains nothing (NVIDIA Model Optimizer, modelopt/onnx/quantization/
fp8.py; NVIDIA/TensorRT issues 3987 and 4524): they stay in float.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ....calibration.qparams import FLOAT8_E4M3, INT8, channel_amax, per_channel, scale_and_zero_point
from ....model.graph import attribute
from ....model.graph_edits import drop_unused_initializers

if TYPE_CHECKING:
    import onnx

LOWEST_OPSET = 19
"""The first opset whose QuantizeLinear makes float8."""

_MULTIPLE = 16  # of channels, in the kernels of convolutions
_LARGEST_KERNEL = 32  # elements of one filter and channel


def unfit_for_float8(node: onnx.NodeProto, stored: Mapping[str, onnx.TensorProto]) -> str | None:
    """Return why a node with weights has no FP8 kernel; None where it has."""
    if node.op_type == "ConvTranspose":
        return "TensorRT has no FP8 kernel for ConvTranspose"
    if node.op_type != "Conv" or node.input[1] not in stored:
        return None
    outputs, inputs, *kernel = stored[node.input[1]].dims
    if attribute(node, "group", 1) != 1:
        return "TensorRT has no FP8 kernel for convolutions of groups"
    if min(inputs, outputs) < _MULTIPLE or inputs % _MULTIPLE != outputs % _MULTIPLE:
        return f"its {inputs} and {outputs} channels fit no FP8 kernel, which takes multiples of {_MULTIPLE}"
    if math.prod(kernel) > _LARGEST_KERNEL:
        return f"its filter of {math.prod(kernel)} elements is above the {_LARGEST_KERNEL} of FP8 kernels"
    return None


def to_float8(model: onnx.ModelProto, *, half_scales: bool = False) -> None:
    """Make float8 of the int8 in a model for TensorRT, in place.

    Args:
        model: From `static.quantize_static` for "tensorrt", of opset 19 or newer.
        half_scales: Whether to round scales up to float16, which they will become: small ones would lose
            precision, and weights must be quantized by what their scales will be.
    """
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for name in dict.fromkeys(n.input[2] for n in graph.node if _is_int8(n, stored)):
        dims = list(stored[name].dims)
        zeros = bytes(math.prod(dims))
        stored[name].CopyFrom(helper.make_tensor(name, TensorProto.FLOAT8E4M3FN, dims, zeros, raw=True))
    scaled: set[str] = set()
    for node in [node for node in graph.node if _is_float8(node, stored)]:
        values, scale = node.input[0], stored[node.input[1]]
        if node.op_type == "QuantizeLinear" and values in stored:
            weight = numpy_helper.to_array(stored[values])
            axis = attribute(node, "axis", 1) if scale.dims else None
            scales = weight_scales(weight, axis, half=half_scales)
            graph.initializer.append(_float8_tensor(round_to_float8(weight, scales, axis), node.output[0]))
            scale.CopyFrom(numpy_helper.from_array(scales, scale.name))
            scaled.add(scale.name)
            graph.node.remove(node)
        elif scale.name not in scaled:
            scales = numpy_helper.to_array(scale).astype(np.float64) * (INT8.qmax / FLOAT8_E4M3.qmax)
            scale.CopyFrom(numpy_helper.from_array(_rounded_up(scales, half=half_scales), scale.name))
            scaled.add(scale.name)
    del graph.value_info[:]  # they say int8
    drop_unused_initializers(graph)


def weight_scales(weight: NDArray[Any], axis: int | None, *, half: bool = False) -> NDArray[np.float32]:
    """Return `amax / 448` of each channel, or of the whole weight where axis is None.

    It is 1 where all is zero, or so small that float32 would hold the scale with fewer bits.

    Args:
        weight: float32 of any shape.
        half: Whether to round up to the next float16.

    Returns:
        float32 [weight.shape[axis]], or a scalar.
    """
    amax = channel_amax(weight, axis)
    scales, _ = scale_and_zero_point(-amax, amax, FLOAT8_E4M3)
    return _rounded_up(scales, half=half)


def _rounded_up(scales: NDArray[Any], *, half: bool) -> NDArray[np.float32]:
    """Scales as float32; as the next float16 where they are to be of it, and it reaches that far."""
    rounded: NDArray[np.float32] = np.asarray(scales, np.float32)
    if half and (scales <= np.finfo(np.float16).max).all():
        near = scales.astype(np.float16)
        up = np.where(near < scales, np.nextafter(near, np.float16(np.inf)), near)
        rounded = np.asarray(up, np.float32)
    return rounded


def round_to_float8(weight: NDArray[Any], scales: NDArray[Any], axis: int | None) -> NDArray[Any]:
    """Return `weight / scale` as the nearest E4M3 numbers, halves to the even one, at most 448."""
    import ml_dtypes

    steps = weight / per_channel(scales, axis, weight.ndim)
    rounded: NDArray[Any] = np.clip(steps, FLOAT8_E4M3.qmin, FLOAT8_E4M3.qmax).astype(ml_dtypes.float8_e4m3fn)
    return rounded


def stored_weight(node: onnx.NodeProto, stored: Mapping[str, onnx.TensorProto]) -> NDArray[np.float32] | None:
    """Return what a DequantizeLinear makes of a stored float8 weight; None where there is none.

    ONNX Runtime takes it for an integer otherwise: it fuses the node into a product of integers, and then
    refuses the model (1.31.1).
    """
    from onnx import TensorProto, numpy_helper

    tensor = stored.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
    if tensor is None or tensor.data_type != TensorProto.FLOAT8E4M3FN:
        return None
    values = numpy_helper.to_array(tensor).astype(np.float32)
    scales = numpy_helper.to_array(stored[node.input[1]])
    weight: NDArray[np.float32] = values * per_channel(scales, attribute(node, "axis", 1), values.ndim)
    return weight


def _float8_tensor(values: NDArray[Any], name: str) -> onnx.TensorProto:
    from onnx import TensorProto, helper

    return helper.make_tensor(name, TensorProto.FLOAT8E4M3FN, values.shape, values.tobytes(), raw=True)


def _is_int8(node: onnx.NodeProto, stored: Mapping[str, onnx.TensorProto]) -> bool:
    from onnx import TensorProto

    return _is_pair(node) and node.input[2] in stored and stored[node.input[2]].data_type == TensorProto.INT8


def _is_float8(node: onnx.NodeProto, stored: Mapping[str, onnx.TensorProto]) -> bool:
    from onnx import TensorProto

    return _is_pair(node) and stored[node.input[2]].data_type == TensorProto.FLOAT8E4M3FN


def _is_pair(node: onnx.NodeProto) -> bool:
    return node.op_type in ("QuantizeLinear", "DequantizeLinear") and len(node.input) == 3
