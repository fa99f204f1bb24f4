"""Weights in NVFP4 and MXFP8: the values of a block share a scale, blocks lie along the last axis.

| format | a value is                   | block | scale of a block       | scale of the tensor          |
|--------|------------------------------|-------|------------------------|------------------------------|
| nvfp4  | E2M1: 0, 0.5, 1 ... 4, 6     | 16    | E4M3, amax / 6         | float32, amax / (6 * 448)    |
| mxfp8  | E4M3, at most 448            | 32    | E8M0: 2^n >= amax / 448| none                         |

NVFP4 quantizes its scales, too ("double quantization"): a value is `E2M1 * (E4M3 * float32)`. A scale of
MXFP8 is a power of two, rounded up, so that nothing is clipped (NVIDIA/Model-Optimizer, onnx/quantization/
quant_utils.py: `get_weights_scaling_factor_2`, `get_weights_scaling_factor`, `compute_e8m0`). Halves are
rounded to the even number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....spec.words import BlockFormat

BLOCK_SIZE = {"nvfp4": 16, "mxfp8": 32}
E2M1_MAX = 6.0
E4M3_MAX = 448.0
E8M0_BIAS = 127
_E4M3_TINY = 2.0**-9
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False)
class BlockWeight:
    """A weight as it is stored.

    Attributes:
        values: float4_e2m1fn or float8_e4m3fn [rows, columns].
        block_scales: float8_e4m3fn, or uint8 exponents with a bias of 127, [rows, columns / block].
        scale: Of the block scales, float32; 1 for MXFP8.
    """

    values: NDArray[Any]
    block_scales: NDArray[Any]
    scale: np.float32

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
    """Round a weight to a block format.

    Args:
        weight: Floats [rows, columns]; the columns are a multiple of the block.
        kind: The format.
    """
    weight = np.asarray(weight, np.float32)
    return _nvfp4(weight) if kind == "nvfp4" else _mxfp8(weight)


def tensor_scale(amax: float) -> np.float32:
    """Return NVFP4's scale of a tensor: with it the largest block scale is E4M3's largest number.

    1 where the scale would have fewer bits than a normal float32.
    """
    scale = float(np.float32(amax / (E2M1_MAX * E4M3_MAX)))
    rounded: np.float32 = np.float32(scale if scale >= _TINY else 1)
    return rounded


def _nvfp4(weight: NDArray[np.float32]) -> BlockWeight:
    import ml_dtypes

    blocks = weight.reshape(len(weight), -1, BLOCK_SIZE["nvfp4"])
    scale = tensor_scale(float(np.abs(weight).max(initial=0)))
    wanted = np.abs(blocks).max(-1) / np.float32(E2M1_MAX) / scale
    block_scales = np.clip(wanted, _E4M3_TINY, E4M3_MAX).astype(ml_dtypes.float8_e4m3fn)
    steps = blocks / (block_scales.astype(np.float32) * scale)[..., None]
    values = np.clip(steps, -E2M1_MAX, E2M1_MAX).reshape(weight.shape).astype(ml_dtypes.float4_e2m1fn)
    return BlockWeight(values, block_scales, scale)


def _mxfp8(weight: NDArray[np.float32]) -> BlockWeight:
    import ml_dtypes

    blocks = weight.reshape(len(weight), -1, BLOCK_SIZE["mxfp8"])
    mantissa, exponent = np.frexp(np.abs(blocks).max(-1).astype(np.float64) / E4M3_MAX)
    exponent = np.where(mantissa > 0.5, exponent, exponent - 1)  # 2^exponent is no smaller than amax / 448
    exponent = np.clip(np.where(mantissa > 0, exponent, 0), -E8M0_BIAS, E8M0_BIAS)
    steps = blocks.astype(np.float64) / np.exp2(exponent.astype(np.float64))[..., None]
    values = steps.astype(np.float32).reshape(weight.shape).astype(ml_dtypes.float8_e4m3fn)
    return BlockWeight(values, (exponent + E8M0_BIAS).astype(np.uint8), np.float32(1))
