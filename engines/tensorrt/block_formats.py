"""NVFP4 and MXFP8 need a TensorRT and a GPU that have them: others are refused by name, before any work.

- Types: `DataType.FP4` is in NvInferRuntime.h from release/10.8 on, `E8M0` from release/10.12 on.
  TensorRT-RTX 1.7 has both. The module is asked, not its version.
- GPUs: both begin with compute capability 10.0 (TensorRT-RTX support matrix on docs.nvidia.com: FP4 on 12.0
  and 12.1, not on 8.9; TransformerEngine, support_matrix: both from 10.0). TensorRT-RTX 1.7 refuses
  NVFP4 for sm89 itself ("HW-specific datatypes: fp4_e2m1"). MXFP8 it would build, as dequantizations
  in front of a product of floats.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ...errors import InvalidOption
from ..gpu import find_gpu
from .adapter import Adapter

_TYPES = {"nvfp4": "FP4", "mxfp8": "E8M0"}
_SINCE = {"nvfp4": "10.11", "mxfp8": "10.12"}
"""FP4 came with 10.8; its parser reads opset 23, in which ONNX has the type, from 10.11 on."""
_FIRST_CAPABILITY = 100


def check_block_format(adapter: Adapter, precision: str, gpus: Sequence[str], device: int = 0) -> None:
    """Refuse a block format that this TensorRT or one of the GPUs does not have.

    Args:
        adapter: Which TensorRT.
        precision: "nvfp4" or "mxfp8".
        gpus: Compute capabilities to build for, such as "sm120"; none for a GPU of this machine.
        device: The number of that GPU.

    Raises:
        InvalidOption: Naming what lacks it, and the way out.
    """
    types: Any = adapter.module.DataType
    if not hasattr(types, _TYPES[precision]):
        raise InvalidOption(
            f"`precision` {precision}: {adapter.name} has no type {_TYPES[precision]}",
            hint=f"use TensorRT {_SINCE[precision]} or newer, or `precision` fp8 or int8",
            option="precision",
        )
    here = None if gpus else find_gpu(device)
    asked = tuple(gpus) or ((here.architecture,) if here is not None else ())
    for gpu in asked:
        match = re.fullmatch(r"sm(\d+)", gpu, re.IGNORECASE)
        if match is not None and int(match[1]) < _FIRST_CAPABILITY:
            raise InvalidOption(
                f"`precision` {precision}: {gpu} has no {precision.upper()}; it begins with sm100",
                hint="name GPUs from sm100 on, such as sm120, or choose `precision` fp8 (from sm89) or int8",
                option="precision",
            )


def dequantized_products(adapter: Adapter, precision: str) -> list[str]:
    """Return the warning that TensorRT-RTX has no product of MXFP8; none for others.

    Found in engines of 1.7.1 for sm120: their generated programs make float16 of both operands
    (docs/tensorrt_builds.md).
    """
    if precision != "mxfp8" or not adapter.builds_ahead_of_time:
        return []
    return [
        f"{adapter.name} stores MXFP8 and multiplies floats: engines of 1.7.1 dequantize both operands; "
        "`precision` nvfp4 and fp8 have products of their own"
    ]
