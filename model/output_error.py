"""Error statistics of an output against its reference."""

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
class OutputError:
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


@dataclass
class ErrorSums:
    """The distance of an output from its reference, summed up piece by piece; nothing else is kept.

    NaN and infinities that stand at the same place are equal; anything else against them is an infinite
    error. Texts are equal (1) or not (0).

    Attributes:
        signal, noise: Sums of squares of the reference, and of the error.
        max_abs, max_abs_error: Largest magnitude of the reference, and of the error.
        elements: How many were compared.
        abs_error: Sum of the absolute errors.
    """

    signal: float = 0.0
    noise: float = 0.0
    max_abs: float = 0.0
    max_abs_error: float = 0.0
    elements: int = 0
    abs_error: float = 0.0

    def add(self, reference: NDArray[Any], output: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Add elements of both sides, in the same order.

        Returns:
            The reference's values and the absolute errors, flat and in float64; where the reference is not
            finite its value is 0.
        """
        values, error = _values_and_errors(reference, output)
        with np.errstate(over="ignore"):
            self.noise += float(np.dot(error, error))
            self.signal += float(np.dot(values, values))
        self.max_abs_error = max(self.max_abs_error, float(error.max(initial=0.0)))
        self.max_abs = max(self.max_abs, float(np.abs(values).max(initial=0.0)))
        self.elements += values.size
        self.abs_error += float(error.sum())
        return values, error

    def include(self, other: ErrorSums) -> None:
        """Add what another one has summed up."""
        self.signal, self.noise = self.signal + other.signal, self.noise + other.noise
        self.max_abs = max(self.max_abs, other.max_abs)
        self.max_abs_error = max(self.max_abs_error, other.max_abs_error)
        self.elements += other.elements
        self.abs_error += other.abs_error

    @property
    def snr_db(self) -> float:
        """Signal-to-noise ratio, see `decibels`."""
        return decibels(self.signal, self.noise)

    @property
    def mean_abs_error(self) -> float:
        """Mean absolute error over all elements; 0 where nothing was compared."""
        return self.abs_error / self.elements if self.elements else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the form in which a worker answers; infinities are spelled as JSON cannot, by name."""
        return {name: value if math.isfinite(value) else "inf" for name, value in vars(self).items()}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> ErrorSums:
        """Read the form written by `as_json`."""
        numbers: dict[str, Any] = {n: math.inf if number == "inf" else number for n, number in value.items()}
        return ErrorSums(**numbers)


def output_error(reference: NDArray[Any], output: NDArray[Any]) -> OutputError:
    """Compare one output with its reference of the same shape; see `ErrorSums`.

    `snr = 10 log10(Σ ref² / Σ (ref − out)²)`. The error of texts is the share that differs.
    """
    if reference.shape != output.shape:
        raise ValueError(f"shapes differ: {reference.shape} and {output.shape}")
    sums = ErrorSums()
    sums.add(reference, output)
    if reference.dtype.kind in "OUS":
        wrong = sums.noise / sums.elements if sums.elements else 0.0
        return OutputError(wrong, 1.0, sums.snr_db, 1.0 - wrong)
    agreement = None
    if reference.ndim and reference.size:
        a, b = reference.astype(np.float64), output.astype(np.float64)
        agreement = float(np.mean(a.argmax(-1) == b.argmax(-1)))
    return OutputError(sums.max_abs_error, sums.max_abs, sums.snr_db, agreement)


def worst(pairs: Mapping[str, OutputError]) -> tuple[str, OutputError]:
    """Return the output with the lowest signal-to-noise ratio."""
    return min(pairs.items(), key=lambda item: item[1].snr_db)


def decibels(signal: float, noise: float) -> float:
    """Return `10 log10(signal / noise)`; `inf` without noise, `-inf` without signal or of infinite noise."""
    if noise == 0.0:
        return math.inf
    if signal == 0.0 or not math.isfinite(noise):
        return -math.inf
    return 10.0 * (math.log10(signal) - math.log10(noise))


def _values_and_errors(reference: NDArray[Any], output: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    if reference.dtype.kind in "OUS":
        same = np.asarray(reference == output).ravel()
        return np.ones(same.size), 1.0 - same
    a, b = reference.astype(np.float64).ravel(), output.astype(np.float64).ravel()
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(a - b)
        if not math.isfinite(float(error.sum())):
            error[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
            error[~np.isfinite(error)] = math.inf
            a[~np.isfinite(a)] = 0.0
    return a, error
