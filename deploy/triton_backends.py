"""Triton's backends: the files that each serves, and the types that it takes.

Read from Triton's documents ("Model Repository", "Model Configuration") and its backends' sources, 26.09.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

TYPES = MappingProxyType(
    {
        "bool": "TYPE_BOOL",
        "uint8": "TYPE_UINT8",
        "uint16": "TYPE_UINT16",
        "uint32": "TYPE_UINT32",
        "uint64": "TYPE_UINT64",
        "int8": "TYPE_INT8",
        "int16": "TYPE_INT16",
        "int32": "TYPE_INT32",
        "int64": "TYPE_INT64",
        "float16": "TYPE_FP16",
        "float32": "TYPE_FP32",
        "float64": "TYPE_FP64",
        "bfloat16": "TYPE_BF16",
        "string": "TYPE_STRING",
    }
)
"""numpy's name of a type to Triton's."""


@dataclass(frozen=True)
class Backend:
    """One of Triton's backends.

    Attributes:
        name: As `backend` spells it.
        platform: As `platform` spells it; empty where the backend has none.
        file: Name of the model in a version's folder.
        default_file: The name it looks for by itself.
        dtypes: Types of inputs and outputs it takes.
        kinds: Where instances can run; the first is where its artifacts were checked.
        batches: Whether its dynamic batch is any batch up to the largest.
    """

    name: str
    platform: str
    file: str
    default_file: str
    dtypes: frozenset[str]
    kinds: tuple[str, ...]
    batches: bool = True


TENSORRT = Backend(
    "tensorrt",
    "tensorrt_plan",
    "model.plan",
    "model.plan",
    frozenset("float32 float16 bfloat16 int8 uint8 int32 int64 bool".split()),
    ("gpu",),  # model_state.cc: "TensorRT backend does not support KIND_CPU at all"
)
ONNX_RUNTIME = Backend(
    "onnxruntime",
    "onnxruntime_onnx",
    "model.onnx",
    "model.onnx",
    frozenset(TYPES),
    ("cpu", "gpu"),
)
OPENVINO = Backend(
    "openvino",
    "",
    "model.onnx",
    "model.xml",
    frozenset(TYPES) - {"bfloat16", "float64", "string"},  # openvino_utils.cc
    ("cpu",),  # openvino.cc: "supports only Kind CPU and AUTO"
    # openvino.cc: with max_batch_size a request of any other batch is refused, or padded up to it.
    batches=False,
)
PYTORCH = Backend(
    "pytorch",
    "pytorch_libtorch",
    "model.pt",
    "model.pt",
    frozenset("bool uint8 int8 int16 int32 int64 float32 float64".split()),
    ("cpu", "gpu"),
)
