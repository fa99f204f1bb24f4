"""The values that options share: precisions, targets, methods, metrics. Every list of them is made here."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta

Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8", "int4"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

BuildPrecision = Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8", "int4", "best"]
FloatPrecision = Literal["fp32", "fp16", "bf16"]

Target = Literal["onnxruntime", "openvino", "tensorrt-rtx", "tensorrt", "torchscript"]
"""What an artifact is built for."""

GraphTarget = Literal["onnxruntime", "openvino", "tensorrt"]
"""What Q/DQ is placed for; "tensorrt" is TensorRT-RTX too."""
GRAPH_TARGETS: tuple[GraphTarget, ...] = get_args(GraphTarget)

METRICS = ("top1", "top5", "miou", "cosine", "mse")
METHOD = "minmax, percentile[:NUMBER], entropy, mse or auto"
METHOD_PATTERN = r"^(minmax|entropy|mse|auto|percentile(:\d*\.?\d+)?)$"
METRIC = f"{', '.join(METRICS)} or file.py:function"
METRIC_PATTERN = rf"^({'|'.join(METRICS)}|.+:[^\W\d]\w*)$"

LayerPrecision = Annotated[str, Meta(pattern=r"^.+=(fp32|fp16|bf16|int8)$")]
Count = Annotated[int, Meta(ge=1)]

BASELINE = "pytorch"
"""Name of the row that is the model itself."""
