"""The opsets of ONNX to export, read and write, each limit with its reason, and what came with which.

`tests/compiler/opset/test_lower.py` names the operators that a raised `NEWEST` has to know.
"""

OLDEST = 13
"""Oldest to write or to quantize in: from here on per-channel Q/DQ has an axis, and the axes of ReduceSum,
Squeeze and Unsqueeze are an operand, as `compiler/opset` writes them. Older files are raised to it."""

NEWEST = 25
"""Newest whose changes `compiler/opset` knows. Newer files are read as far as onnx goes, never lowered."""

NEWEST_EXPORTED = 23
"""Newest that `torch.onnx.export` writes (torch 2.13, `torch.onnx._constants.ONNX_MAX_OPSET`)."""

DEFAULT = 20
"""Exported where none is asked for: PyTorch's own default (`ONNX_DEFAULT_OPSET`)."""

OLDEST_BY_DYNAMO = 18
"""Oldest of the dynamo exporter's own: below, it has onnx.version_converter try, which gives up early."""

NEWEST_BY_TORCHSCRIPT = 20
"""Newest of the TorchScript-based exporter (`ONNX_TORCHSCRIPT_EXPORTER_MAX_OPSET`)."""

NEWEST_BY_TF2ONNX = 18
"""tf2onnx 1.17 writes no newer one."""

BFLOAT16_CAST, FLOAT8, INT4, BFLOAT16_LAYERS = 13, 19, 21, 22
"""First with Cast of bfloat16, Q/DQ of float8 and of float16, Q/DQ of int4 and in blocks, Conv and pools of
bfloat16."""
