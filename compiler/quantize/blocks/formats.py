"""Weights in NVFP4 and MXFP8: the values of a block share a scale, blocks lie along the last axis.

| format | a value is                   | block | scale of a block       | scale of the tensor          |
|--------|------------------------------|-------|------------------------|------------------------------|
| nvfp4  | E2M1: 0, 0.5, 1 ... 4, 6     | 16    | E4M3, amax / 6         | float32, amax / (6 * 448)    |
| mxfp8  | E4M3, at most 448            | 32    | E8M0: 2^n >= amax / 448| none                         |

NVFP4 quantizes its scales, too ("double quantization"): a value is `E2M1 * (E4M3 * float32)`. A scale of
MXFP8 is a power of two, rounded up, so that nothing is clipped (NVIDIA/Model-Optimizer, onnx/quantization/
quant_utils.py: `get_weights_scaling_factor_2`, `get_weights_scaling_factor`, `compute_e8m0`). Halves are
rounded to the even number.

`simulated` writes the same roundings in ONNX's own operators, for ONNX Runtime: a weight becomes the float32
that its codes stand for, and an activation is rounded by arithmetic:

    NVFP4   s = E4M3(amax / 6 / scale) * scale          x' = E2M1(x / s) * s
    MXFP8   s = 2^n, the least that is >= amax / 448    x' = E4M3(x / s) * s

amax is that of 16 or 32 values. TensorRT's kernels may sum in another order; the roundings are these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, parser

from ....model.graph import attribute, producers, tensor_values
from ....model.graph_edits import drop_unread, drop_unused_initializers, refill, set_nodes, store
from ....model.graph_names import Names
from ....model.onnx_file import copy_model
from ....spec.words import BlockFormat

DOMAIN = "trt"
BLOCK_SIZE = {"nvfp4": 16, "mxfp8": 32}
E2M1_MAX = 6.0
E4M3_MAX = 448.0
E8M0_BIAS = 127
_E4M3_TINY = 2.0**-9
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False)
class BlockWeight:
    """A weight as it is stored."""

    values: NDArray[Any]  # float4_e2m1fn or float8_e4m3fn [rows, columns]
    # float8_e4m3fn, or uint8 exponents with a bias of 127, [rows, columns / block]
    block_scales: NDArray[Any]
    scale: np.float32  # of the block scales, float32; 1 for MXFP8

    def dequantized(self) -> NDArray[np.float32]:
        """Return the weight that is multiplied, float32 [rows, columns]."""
        if self.block_scales.dtype == np.uint8:
            scales = np.exp2(self.block_scales.astype(np.float32) - E8M0_BIAS)
        else:
            scales = self.block_scales.astype(np.float32) * self.scale
        block = self.values.shape[1] // self.block_scales.shape[1]
        found: NDArray[np.float32] = self.values.astype(np.float32) * np.repeat(scales, block, axis=1)
        return found


def quantize_weight(weight: NDArray[Any], kind: BlockFormat) -> BlockWeight:
    """Round a weight [rows, columns] to a block format; the columns are a multiple of the block."""
    weight = np.asarray(weight, np.float32)
    blocks = weight.reshape(len(weight), -1, BLOCK_SIZE[kind])
    amax = np.abs(blocks).max(-1)
    if kind == "nvfp4":
        scale = tensor_scale(float(np.abs(weight).max(initial=0)))
        scales = np.clip(amax / np.float32(E2M1_MAX) / scale, _E4M3_TINY, E4M3_MAX)
        block_scales = scales.astype(ml_dtypes.float8_e4m3fn)
        steps = blocks / (block_scales.astype(np.float32) * scale)[..., None]
        steps = np.clip(steps, -E2M1_MAX, E2M1_MAX).reshape(weight.shape)
        return BlockWeight(steps.astype(ml_dtypes.float4_e2m1fn), block_scales, scale)
    mantissa, exponent = np.frexp(amax.astype(np.float64) / E4M3_MAX)
    exponent = np.where(mantissa > 0.5, exponent, exponent - 1)  # 2^exponent is no smaller than amax / 448
    exponent = np.clip(np.where(mantissa > 0, exponent, 0), -E8M0_BIAS, E8M0_BIAS)
    steps = blocks.astype(np.float64) / np.exp2(exponent.astype(np.float64))[..., None]
    values = steps.astype(np.float32).reshape(weight.shape).astype(ml_dtypes.float8_e4m3fn)
    return BlockWeight(values, (exponent + E8M0_BIAS).astype(np.uint8), np.float32(1))


def tensor_scale(amax: float) -> np.float32:
    """Return NVFP4's scale of a tensor: with it the largest block scale is E4M3's largest number.

    1 where the scale would have fewer bits than a normal float32.
    """
    scale = float(np.float32(amax / (E2M1_MAX * E4M3_MAX)))
    rounded: np.float32 = np.float32(scale if scale >= _TINY else 1)
    return rounded


# E2M1: steps of 0.5 below 2, of 1 below 4, of 2 up to 6. Round takes halves to the even step, as E2M1 does.
_BLOCKS = """
    as_float = Cast <to = 1> (x)
    shape = Shape(as_float)
    blocks = Reshape(as_float, blocked)
    magnitudes = Abs(blocks)
    amax = ReduceMax <keepdims = 1> (magnitudes, last)
"""
_NVFP4 = f"""{_BLOCKS}
    largest_step = Div(amax, six)
    wanted = Div(largest_step, scale)
    clipped = Min(wanted, largest)
    e4m3 = Cast <to = 17> (clipped)
    scale_steps = Cast <to = 1> (e4m3)
    scales = Mul(scale_steps, scale)
    empty = Equal(scales, zero)
    divisors = Where(empty, one, scales)
    steps = Div(blocks, divisors)
    magnitude = Abs(steps)
    below_two = Less(magnitude, two)
    below_four = Less(magnitude, four)
    coarse = Where(below_four, one, two)
    step = Where(below_two, half, coarse)
    count = Div(steps, step)
    even = Round(count)
    unlimited = Mul(even, step)
    limited = Min(unlimited, six)
    rounded = Max(limited, least)
    values = Mul(rounded, scales)
    y = Reshape(values, shape)
"""
_MXFP8 = f"""{_BLOCKS}
    any_ratio = Div(amax, largest)
    ratio = Max(any_ratio, tiny)
    log = Log(ratio)
    exponent = Div(log, ln_two)
    whole = Floor(exponent)
    near = Pow(two, whole)
    above = Mul(near, two)
    too_small = Less(near, ratio)
    scales = Where(too_small, above, near)
    steps = Div(blocks, scales)
    e4m3 = Cast <to = 17> (steps)
    rounded = Cast <to = 1> (e4m3)
    values = Mul(rounded, scales)
    floats = Reshape(values, shape)
    y = CastLike(floats, x)
"""
_NUMBERS = {
    "zero": 0.0, "half": 0.5, "one": 1.0, "two": 2.0, "four": 4.0, "six": E2M1_MAX, "least": -E2M1_MAX,
    "largest": E4M3_MAX, "tiny": 2.0**-126, "ln_two": np.log(2.0),
}  # fmt: skip


def simulated(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a graph of `to_blocks`, or of Model-Optimizer, without operators of TensorRT."""
    copy = copy_model(model)
    graph = copy.graph
    made_by = producers(graph)
    stored = {tensor.name: tensor for tensor in graph.initializer}
    nodes, new = list[onnx.NodeProto](), Names(graph)
    for node in graph.node:
        maker = made_by.get(node.input[0]) if node.input else None
        dequantizes = node.op_type == "DequantizeLinear"
        if dequantizes and maker is not None:
            in_blocks = maker.op_type == "TRT_FP4DynamicQuantize" and maker.output[0] == node.input[0]
        elif dequantizes and node.input[0] in stored:
            in_blocks = stored[node.input[0]].data_type == TensorProto.FLOAT4E2M1
        else:
            in_blocks = node.op_type == "TRT_MXFP8DequantizeLinear"
        if in_blocks:
            if maker is not None:
                nodes += _rounded(graph, maker, node.output[0], new.stem(node.output[0]))
                continue
            of_scales = made_by.get(node.input[1])
            names = [node.input[1]] if of_scales is None else list(of_scales.input[:2])
            scales = [tensor_values(stored[name]) for name in names]
            scale = np.float32(1) if of_scales is None else np.float32(scales[1])
            weight = BlockWeight(tensor_values(stored[node.input[0]]), scales[0], scale).dequantized()
            dtype = helper.tensor_dtype_to_np_dtype(attribute(node, "output_dtype", 1))
            store(graph, node.output[0], weight.astype(dtype))
        elif node.domain != DOMAIN:
            nodes.append(node)
    set_nodes(graph, nodes)
    drop_unread(graph, ("DequantizeLinear",))
    drop_unused_initializers(graph)
    refill(copy.opset_import, (entry for entry in copy.opset_import if entry.domain != DOMAIN))
    return copy


def _rounded(
    graph: onnx.GraphProto, quantize: onnx.NodeProto, output: str, stem: str
) -> list[onnx.NodeProto]:
    """The nodes that round what an operator of TensorRT would quantize; their names begin with `stem`."""
    kind = "nvfp4" if quantize.op_type == "TRT_FP4DynamicQuantize" else "mxfp8"
    body = _NVFP4 if kind == "nvfp4" else _MXFP8
    text = f'<ir_version: 9, opset_import: ["" : 19]> g (float[n] x) => (float[n] y) {{ {body} }}'
    nodes = list(parser.parse_model(text).graph.node)
    outer = {"x": quantize.input[0], "y": output}
    if kind == "nvfp4":
        outer["scale"] = quantize.input[1]
    numbers = {name: np.float32(number) for name, number in _NUMBERS.items()}
    constants = numbers | {"last": np.array([-1]), "blocked": np.array([-1, BLOCK_SIZE[kind]])}
    made = {name for node in nodes for name in node.output}
    for name in {name for node in nodes for name in node.input} - made - outer.keys():
        outer[name] = store(graph, f"{stem}/{name}", np.asarray(constants[name]))
    for node in nodes:
        node.input[:] = [outer.get(name, f"{stem}/{name}") for name in node.input]
        node.output[:] = [outer.get(name, f"{stem}/{name}") for name in node.output]
        node.name = node.output[0]
    return nodes
