"""How close two sets of outputs are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOAT_RTOL = 1e-3
"""Largest error, as a share of the reference's largest magnitude, that counts as equal in float32."""


@dataclass(frozen=True)
class Fidelity:
    """The distance of one output from its reference.

    Attributes:
        max_abs_error: Largest absolute difference.
        max_abs: Largest magnitude of the reference.
        snr_db: Signal-to-noise ratio in decibels; `inf` when equal.
        agreement: Share of rows with the same argmax over the last axis; None for scalars.
    """

    max_abs_error: float
    max_abs: float
    snr_db: float
    agreement: float | None

    @property
    def close(self) -> bool:
        """Whether the difference is what float32 rounding explains."""
        return self.max_abs_error <= FLOAT_RTOL * self.max_abs + 1e-6


def fidelity(reference: NDArray[Any], output: NDArray[Any]) -> Fidelity:
    """Compare one output with its reference of the same shape.

    NaN and infinities that stand at the same place are equal; anything else against them is an infinite
    error. `snr = 10 log10(Σ ref² / Σ (ref − out)²)`.

    Raises:
        ValueError: If the shapes differ.
    """
    if reference.shape != output.shape:
        raise ValueError(f"shapes differ: {reference.shape} and {output.shape}")
    if reference.dtype.kind in "OUS":
        same = float(np.mean(reference == output)) if reference.size else 1.0
        return Fidelity(1.0 - same, 1.0, math.inf if same == 1.0 else 0.0, same)
    a, b = reference.astype(np.float64), output.astype(np.float64)
    same_place = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        error = np.where(same_place, 0.0, np.abs(a - b))
    error = np.where(np.isfinite(error), error, math.inf)
    finite = np.where(np.isfinite(a), a, 0.0)
    noise, signal = float(np.sum(error**2)), float(np.sum(finite**2))
    return Fidelity(
        float(error.max(initial=0.0)),
        float(np.abs(finite).max(initial=0.0)),
        decibels(signal, noise),
        float(np.mean(a.argmax(-1) == b.argmax(-1))) if a.ndim and a.size else None,
    )


def worst(pairs: Mapping[str, Fidelity]) -> tuple[str, Fidelity]:
    """Return the output with the lowest signal-to-noise ratio."""
    return min(pairs.items(), key=lambda item: item[1].snr_db)


def decibels(signal: float, noise: float) -> float:
    """Return `10 log10(signal / noise)`; infinite without noise, -inf without signal."""
    if noise == 0.0:
        return math.inf
    if signal == 0.0 or math.isinf(noise):
        return -math.inf
    return 10.0 * math.log10(signal / noise)
