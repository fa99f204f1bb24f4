"""Affine quantization: a range becomes a scale and a zero point, and a float becomes an integer.

    scale      = amax / qmax (symmetric)        or  (high - low) / (qmax - qmin)
    zero_point = 0 (symmetric)                  or  qmin - round(low / scale)
    integer    = clip(round(x / scale) + zero_point, qmin, qmax)
    x          ≈ (integer - zero_point) * scale

Jacob et al. 2018 (arXiv 1712.05877, equation 1), rounded as QuantizeLinear of ONNX rounds: halves go to the
even number. As in ONNX Runtime's quantizer, a range always includes zero, so zero is exact. A scale below the
smallest normal float32 becomes 1, because kernels flush subnormal numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Scheme:
    """Integers that a tensor is rounded to; with `symmetric`, the scale depends on the largest magnitude."""

    qmin: int
    qmax: int
    symmetric: bool


UINT8 = Scheme(0, 255, symmetric=False)
INT8 = Scheme(-128, 127, symmetric=True)
FLOAT8_E4M3 = Scheme(-448, 448, symmetric=True)
"""Only its scale is used: `quantize` rounds to integers, but E4M3 is not evenly spaced."""


@dataclass(frozen=True, eq=False)
class QParams:
    """Quantization parameters of one tensor.

    Attributes:
        scale: Units of the tensor per integer, above 0; float32 [], or [channels] with an axis.
        zero_point: The integer that stands for 0; int8 or uint8, of the scale's shape.
        qmin, qmax: Smallest and largest integer.
        axis: The axis of the channels; None for one scale per tensor.
    """

    scale: NDArray[np.float32]
    zero_point: NDArray[Any]
    qmin: int
    qmax: int
    axis: int | None = None


def choose_qparams(low: ArrayLike, high: ArrayLike, scheme: Scheme, axis: int | None = None) -> QParams:
    """Return the parameters of a range in the tensor's units, in float64; [channels] along `axis`."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    scale, zero_point = scale_and_zero_point(low, high, scheme)
    dtype = np.int8 if scheme.qmin < 0 else np.uint8
    return QParams(
        np.asarray(scale, np.float32), np.asarray(zero_point, dtype), scheme.qmin, scheme.qmax, axis
    )


def scale_and_zero_point(low: Any, high: Any, scheme: Scheme) -> tuple[Any, Any]:
    """Return scale and zero_point of ranges, both in the dtype and shape of `low`."""
    low, high = np.clip(low, None, 0.0), np.clip(high, 0.0, None)
    if scheme.symmetric:
        scale = np.maximum(-low, high) / scheme.qmax
    else:
        scale = (high - low) / (scheme.qmax - scheme.qmin)
    scale = np.where(scale < _TINY, np.ones_like(scale), scale)
    if scheme.symmetric:
        return scale, np.zeros_like(scale)
    return scale, np.clip(scheme.qmin - np.round(low / scale), scheme.qmin, scheme.qmax)


def channel_amax(weight: NDArray[Any], axis: int | None) -> NDArray[np.float64]:
    """Return the largest magnitude of each channel [weight.shape[axis]], or of all values if axis is None."""
    reduced = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis % weight.ndim)
    amax: NDArray[np.float64] = np.abs(weight).max(axis=reduced, initial=0.0).astype(np.float64)
    return amax


def choose_weight_qparams(weight: NDArray[Any], axis: int) -> QParams:
    """Return the symmetric parameters of a float32 weight, one scale per channel; 1 for channels of zeros."""
    amax = channel_amax(weight, axis)
    return choose_qparams(-amax, amax, INT8, axis)


def per_channel(parameter: Any, axis: int | None, ndim: int) -> Any:
    """Reshape an array or tensor [channels] to broadcast along `axis` of `ndim` axes; [] is unchanged."""
    if axis is None or not parameter.ndim:
        return parameter
    shape = [1] * ndim
    shape[axis] = -1
    return parameter.reshape(shape)


def quantize(values: NDArray[Any], qparams: QParams) -> NDArray[Any]:
    """Return the integers of floats of any shape, in the dtype of zero_point."""
    steps = np.asarray(values / per_channel(qparams.scale, qparams.axis, values.ndim))
    np.rint(steps, out=steps)
    if np.any(qparams.zero_point):
        steps += per_channel(qparams.zero_point, qparams.axis, values.ndim)
    np.clip(steps, qparams.qmin, qparams.qmax, out=steps)
    return steps.astype(qparams.zero_point.dtype)


def dequantize(integers: NDArray[Any], qparams: QParams) -> NDArray[np.float32]:
    """Return the floats that integers represent, float32 of the same shape."""
    steps = integers.astype(np.float32)
    if np.any(qparams.zero_point):
        steps -= per_channel(qparams.zero_point, qparams.axis, integers.ndim)
    steps *= per_channel(qparams.scale, qparams.axis, integers.ndim)
    return steps
