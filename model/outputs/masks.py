"""Masks among the values of an output: they are left out of every measure.

A mask, as of logits that must not be chosen, is no signal: its square outweighs all other values. A value
`v` of a reference's batch is masked where

1. it is infinite, or the largest of float32 or bfloat16;
2. or it is at most -8192, lies within `2 r` of a mask's constant `-c`, and `|v| >= 100 r'`. The constants are
   1, 2 and 5 times a power of ten from 1e4, and the largest of each type of floats, or half of it, as types
   round them. `r` is the largest magnitude below 8192: of logits that a mask was added to. `r'` is that of
   all finite values that are near no constant.

An artifact masks it, too, where its value has the same sign and at least 8192: infinity, and what fits its
type, are masks as well. Such values are left out of every measure. Another value is an infinite error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_MASK = 8192.0  # the least magnitude of a mask: -1e4 to which a logit was added, and rounded
_BEYOND = 100.0  # how far a mask lies beyond the other values
_LARGEST = (65504.0, 3.3895314e38, 3.4028235e38)  # of fp16, bf16, fp32
_ROUNDING = 2.0**-23  # of fp32


def _constants() -> NDArray[np.float64]:
    """The magnitudes of masks, as bf16, fp16 and fp32 round them."""
    digits = [digit * 10.0**power for power in range(4, 39) for digit in (1, 2, 5)]
    fractions, exponents = np.frexp(digits)
    rounded = [np.ldexp(np.rint(fractions * 2.0**bits), exponents - bits) for bits in (8, 11, 24)]
    # `np.unique` would import numpy.ma, which takes as long as a third of numpy.
    return np.array(sorted({*np.ravel(rounded), *(value / part for value in _LARGEST for part in (1, 2))}))


_MASKS = _constants()


def without_masks(
    reference: NDArray[Any], output: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], int, int]:
    """Return both sides of a batch with 0 where both are masked, how many values are, and how many no more.

    Where the reference alone is masked, see the module, it is infinite. Without masks both stay as they are.
    """
    masked = masked_values(reference)
    if masked is None:
        return reference, output, 0, 0
    a, b = reference.astype(np.float64), output.astype(np.float64)
    alike = masked & (np.abs(b) >= _MASK) & (np.signbit(a) == np.signbit(b))
    a = np.where(masked, np.copysign(np.inf, a), a)
    count = int(masked.sum())
    return np.where(alike, 0.0, a), np.where(alike, 0.0, b), count, count - int(alike.sum())


def not_finite(reference: NDArray[Any], output: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where an output is NaN or infinite that its reference is not, masks apart."""
    a, b = without_masks(reference, output)[:2]
    return np.asarray(~np.isfinite(b) & (a != b) & ~np.isnan(a))


def masked_values(reference: NDArray[Any]) -> NDArray[Any] | None:
    """Return which values of a batch are masked; None where none is."""
    if reference.dtype.kind in "biuOUS" or not reference.size:
        return None
    if float(reference.min()) > -_MASK and float(reference.max()) < _LARGEST[1]:  # a half has no such number
        return None
    values = reference.astype(np.float64)
    magnitudes = np.where(np.isfinite(values), np.abs(values), 0.0)
    added = magnitudes[magnitudes < _MASK].max(initial=0.0)
    after = np.searchsorted(_MASKS, magnitudes).clip(1, len(_MASKS) - 1)
    distance = np.minimum(np.abs(_MASKS[after] - magnitudes), np.abs(_MASKS[after - 1] - magnitudes))
    near = (values <= -_MASK) & (distance <= 2.0 * added + magnitudes * _ROUNDING)
    most = magnitudes[~near & (magnitudes < _LARGEST[1])].max(initial=0.0)
    masked = np.isinf(values) | (magnitudes >= _LARGEST[1]) | (near & (magnitudes >= _BEYOND * most))
    return masked if masked.any() else None
