"""Data: the operators that each version of TensorRT's ONNX parser reads.

`_ADDED` lists the operators that each version adds, from onnx/onnx-tensorrt:

- 8.5 to 10.1: importers and docs/operators.md of 8.5-GA to 10.1-GA.
- 10.2 to 10.13: docs/Changelog.md of 10.15; the opset is that of the ONNX release used to build the parser.
- 10.14 and newer: docs/operators.md at the commits that NVIDIA/TensorRT's branches name for parsers/onnx
  (c7272770, fa5aa9f6, 6bde6596; 11.1: 7c51a63a). 11.0 counts as 10.16.

Other versions are unknown: `parser_of` returns None. TensorRT 8.5 reads opset 17 except LayerNormalization,
which is new in opset 17. Its opset is therefore 16 here, and LayerNormalization is written in primitives.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ...model import onnx
from ..words import version_numbers
from .log import make_log

_8_5 = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast Ceil Celu
    Clip Concat Constant ConstantOfShape Conv ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear Div
    Dropout Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements GatherND Gemm
    GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample HardSigmoid HardSwish
    Identity If ImageScaler InstanceNormalization IsNaN LRN LSTM LeakyRelu Less LessOrEqual Log LogSoftmax
    Loop LpNormalization LpPool MatMul Max MaxPool Mean MeanVarianceNormalization Min Mod Mul Neg
    NonMaxSuppression NonZero Not OneHot Or PRelu Pad ParametricSoftplus Pow QuantizeLinear RNN RandomNormal
    RandomNormalLike RandomUniform RandomUniformLike Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum
    ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize
    ReverseSequence RoiAlign Round ScaledTanh Scan Scatter ScatterElements ScatterND Selu Shape Shrink Sigmoid
    Sign Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh
    ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor
"""
_ADDED: dict[tuple[int, int], str] = {
    (8, 5): _8_5,
    (8, 6): "GroupNormalization IsInf LayerNormalization TRT_FP8QuantizeLinear TRT_FP8DequantizeLinear",
    (10, 0): "CastLike Gelu Hardmax Mish TRT_INT4QuantizeLinear TRT_INT4DequantizeLinear",
    (10, 1): "DeformConv",
    (10, 4): "BlackmanWindow HammingWindow HannWindow",
    (10, 5): "STFT",
    (10, 8): "TRT_FP4DynamicQuantize",  # "support for FLOAT4E2M1 types for quantized networks"
    (10, 12): "TRT_MXFP8DynamicQuantize TRT_MXFP8QuantizeLinear TRT_MXFP8DequantizeLinear",
    (10, 14): "Attention",
    (10, 15): "RMSNormalization RotaryEmbedding TensorScatter",
    (11, 1): "Swish",
}
_OPSETS: dict[tuple[int, int], int] = {
    (8, 5): 16,
    (8, 6): 17,
    (10, 0): 20,
    (10, 6): 22,  # "Updated ONNX submodule version to 1.17.0"
    (10, 11): 23,  # "Updated ONNX version to 1.18"
    (10, 14): 24,
}
_FIRST, _NEWEST = min(_ADDED), max(_ADDED)
_ALL_NAMES = frozenset(name for names in _ADDED.values() for name in names.split())
_READ_BUT_NOT_BUILT = {"NonMaxSuppression", "NonZero"}
"""Operators that TensorRT-RTX 1.7.1's parser accepts but its builder refuses, without a kernel or plugin."""
UNKNOWN_OPSET = max(_OPSETS.values())
"""Opset for TensorRT-RTX and for versions without data: the opset of the newest known version."""


@dataclass(frozen=True)
class ParserOperators:
    """The ONNX and TensorRT operators that a parser reads, and the newest opset to write for the parser."""

    operators: frozenset[str]
    highest_opset: int


def parser_of(version: str) -> ParserOperators | None:
    """Return the operators of the parser of a version ("10.16.1.11"); None if the version is unknown."""
    numbers = version_numbers(version)
    if len(numbers) != 2 or not _FIRST <= numbers <= _NEWEST:
        return None
    names = [name for since, added in _ADDED.items() if since <= numbers for name in added.split()]
    opset = [opset for since, opset in _OPSETS.items() if since <= numbers][-1]
    return ParserOperators(frozenset(names), opset)


def first_version(operator: str) -> str:
    """Return the first TensorRT version ("10.1") with a parser that reads an operator, or ""."""
    return next((f"{a}.{b}" for (a, b), added in _ADDED.items() if operator in added.split()), "")


@functools.cache
def ask_parser(module: Any) -> ParserOperators | None:
    """Return the operators that the parser of an imported module reads; None if no parser can be created. A
    parser needs a builder. TensorRT's builder needs a GPU; TensorRT-RTX's builder does not."""
    try:
        logger = make_log(module).logger  # one for the whole process
        network = module.Builder(logger).create_network(0)
        parser = module.OnnxParser(network, logger)
        names = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""} | _ALL_NAMES
        names -= _READ_BUT_NOT_BUILT if module.__name__ == "tensorrt_rtx" else set()
        return ParserOperators(frozenset(filter(parser.supports_operator, sorted(names))), UNKNOWN_OPSET)
    except Exception:  # without a GPU, TensorRT may raise anything
        return None
