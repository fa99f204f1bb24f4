"""ONNX opsets to export, read and write: each limit with its reason, and the first opsets of some features.

`tests/compiler/opset/test_lower.py` names the operators that a raised `NEWEST` has to support.
"""

OLDEST = 13
"""Oldest to write or to quantize in: from it on, per-channel Q/DQ has an axis, and the axes of ReduceSum,
Squeeze and Unsqueeze are an input, as `compiler/opset` writes them. Older files are raised to it."""

NEWEST = 25
"""Newest whose changes `compiler/opset` handles. Newer files are read as far as onnx can, never lowered."""

NEWEST_EXPORTED = 23
"""Newest that `torch.onnx.export` writes (torch 2.13, `torch.onnx._constants.ONNX_MAX_OPSET`)."""

DEFAULT = 20
"""Default of an export, as in PyTorch (`ONNX_DEFAULT_OPSET`)."""

OLDEST_BY_DYNAMO = 18
"""Oldest that the dynamo exporter writes; below, it tries onnx.version_converter, which fails early."""

NEWEST_BY_TORCHSCRIPT = 20
"""Newest of the TorchScript-based exporter (`ONNX_TORCHSCRIPT_EXPORTER_MAX_OPSET`)."""

NEWEST_BY_TF2ONNX = 18
"""Newest that tf2onnx 1.17 writes."""

BFLOAT16_CAST, FLOAT8, INT4, BFLOAT16_LAYERS = 13, 19, 21, 22
"""First opset with Cast of bfloat16; Q/DQ of float8 and of float16; Q/DQ of int4 and in blocks; Conv and
pools of bfloat16."""
