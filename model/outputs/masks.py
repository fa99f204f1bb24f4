"""Leave masks out of the comparison of outputs.

A mask marks an invalid element with a huge value, e.g. a logit that must not be selected; its square would
outweigh all other values. A value `v` of a reference batch is masked if

1. it is infinite, or its magnitude is at least the largest bfloat16;
2. or it is at most -8192, lies within `2 r` of a mask's constant `-c`, and `|v| >= 100 r'`. The constants are
   1, 2 and 5 times a power of ten from 1e4, and the largest of each float type, or half of it, as each type
   rounds them. `r` is the largest magnitude below 8192: of the logits to which a mask was added. `r'` is the
   largest of all finite magnitudes that are not near a constant.

The artifact masks the same element if its value has the same sign and a magnitude of at least 8192: its type
may hold infinity or another constant. These elements are left out of every measure. Any other value is an
infinite error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_MASK = 8192.0  # the least magnitude of a mask: -1e4 plus a logit, rounded
_BEYOND = 100.0  # the least ratio of a mask to the other values
_LARGEST = (65504.0, 3.3895314e38, 3.4028235e38)  # of fp16, bf16, fp32
_ROUNDING = 2.0**-23  # of fp32


def _constants() -> NDArray[np.float64]:
    """Return the magnitudes of masks, as bf16, fp16 and fp32 round them."""
    digits = [digit * 10.0**power for power in range(4, 39) for digit in (1, 2, 5)]
    fractions, exponents = np.frexp(digits)
    rounded = [np.ldexp(np.rint(fractions * 2.0**bits), exponents - bits) for bits in (8, 11, 24)]
    # `np.unique` would import numpy.ma, which takes a third of numpy's import time.
    return np.array(sorted({*np.ravel(rounded), *(value / part for value in _LARGEST for part in (1, 2))}))


_MASKS = _constants()


def without_masks(
    reference: NDArray[Any], output: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], int, int]:
    """Return both sides with 0 where both are masked, the count of masks, and of those missing in the output.

    A value masked in the reference only becomes infinite there. Without masks, both sides are unchanged.
    """
    masked = masked_values(reference)
    if masked is None:
        return reference, output, 0, 0
    a, b = reference.astype(np.float64), output.astype(np.float64)
    both_masked = masked & (np.abs(b) >= _MASK) & (np.signbit(a) == np.signbit(b))
    a = np.where(masked, np.copysign(np.inf, a), a)
    count = int(masked.sum())
    return np.where(both_masked, 0.0, a), np.where(both_masked, 0.0, b), count, count - int(both_masked.sum())


def not_finite(reference: NDArray[Any], output: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where an output is NaN or infinite and its reference is not, except for masks."""
    a, b = without_masks(reference, output)[:2]
    return np.asarray(~np.isfinite(b) & (a != b) & ~np.isnan(a))


def masked_values(reference: NDArray[Any]) -> NDArray[Any] | None:
    """Return which values of a batch are masked, or None without masks."""
    if reference.dtype.kind in "biuOUS" or not reference.size:
        return None
    if float(reference.min()) > -_MASK and float(reference.max()) < _LARGEST[1]:  # float16 cannot hold it
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
