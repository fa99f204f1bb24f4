"""Layers that stand for operators of ONNX in the networks of TensorRT, and operators that versions lack.

Source: the networks of TensorRT-RTX 1.7.1's parser, against which `test_recorded.py` holds them.
"""

from __future__ import annotations

_ACTIVATIONS = "Relu Sigmoid Tanh LeakyRelu Elu Selu HardSigmoid Softplus Softsign Clip Gelu"
_ELEMENTWISE = "Add Sub Mul Div Pow Min Max Sum Mean And Or Equal Greater Less Mod"
_UNARY = "Erf Sqrt Exp Log Neg Abs Reciprocal Floor Ceil Round Sin Cos Not IsInf Sign"
_REDUCE = "GlobalAveragePool GlobalMaxPool ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd"
KINDS: dict[str, str] = {
    "Conv": "CONVOLUTION", "ConvTranspose": "DECONVOLUTION", "MatMul": "MATRIX_MULTIPLY",
    "Gemm": "MATRIX_MULTIPLY", "QuantizeLinear": "QUANTIZE", "DequantizeLinear": "DEQUANTIZE",
    "Cast": "CAST", "Identity": "IDENTITY", "Dropout": "IDENTITY", "Reshape": "SHUFFLE", "Flatten": "SHUFFLE",
    "Transpose": "SHUFFLE", "Squeeze": "SQUEEZE", "Unsqueeze": "UNSQUEEZE", "MaxPool": "POOLING",
    "AveragePool": "POOLING", "Softmax": "SOFTMAX", "Concat": "CONCATENATION", "Slice": "SLICE",
    "Gather": "GATHER", "LayerNormalization": "NORMALIZATION", "BatchNormalization": "SCALE",
    "Resize": "RESIZE", "Shape": "SHAPE", "Where": "SELECT", "Expand": "SLICE", "LRN": "LRN",
    "Einsum": "EINSUM", "TopK": "TOPK", "NonZero": "NON_ZERO",
    **dict.fromkeys(_ACTIVATIONS.split(), "ACTIVATION"), **dict.fromkeys(_ELEMENTWISE.split(), "ELEMENTWISE"),
    **dict.fromkeys(_UNARY.split(), "UNARY"), **dict.fromkeys(_REDUCE.split(), "REDUCE"),
}  # fmt: skip
"""Operator to the layer that computes it."""

OLDER = {"CAST": "IDENTITY", "SQUEEZE": "SHUFFLE", "UNSQUEEZE": "SHUFFLE", "PLUGIN_V3": "PLUGIN_V2"}
"""What stands in for a layer type before it existed.

Source: docs/Changelog.md, 8.6 EA ("All cast operations will now use the new CastLayer over the previous
IdentityLayer"); builtin_op_importers.cpp of 8.5-GA, importers of Squeeze, Unsqueeze and the fallback plugin.
"""

LACKED = {"8.5.": "LayerNormalization GroupNormalization IsInf CastLike Gelu Hardmax Mish".split()}
"""Start of a version to operators that its parser has no importer for, of those above.

Source: docs/operators.md of 8.5-GA (N), and the names in DEFINE_BUILTIN_OP_IMPORTER of 8.5-GA to 10.0-GA.
"""
