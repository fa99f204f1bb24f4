"""Statistics of one pair of tensors, summed up piece by piece: nothing is kept but a handful of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE = 1 << 17
"""Elements that are compared at once: 1 MB as float64."""


@dataclass
class Tally:
    """The distance of one tensor from its reference, over all that was added so far.

    NaN and infinities at the same place are equal; against anything else they are an infinite error, as in
    `model.fidelity`.

    Attributes:
        signal, noise: Sum of squares of the reference, and of the error.
        max_abs, max_abs_error: Largest magnitude of the reference, and of the error.
        elements: How many were compared.
    """

    signal: float = 0.0
    noise: float = 0.0
    max_abs: float = 0.0
    max_abs_error: float = 0.0
    elements: int = 0

    def add(self, reference: NDArray[Any], found: NDArray[Any]) -> None:
        """Add elements of both sides, in the same order."""
        a, b = reference.astype(np.float64), found.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.abs(a - b)
            if not math.isfinite(float(error.sum())):
                error[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
                error[~np.isfinite(error)] = math.inf
                a[~np.isfinite(a)] = 0.0
            self.noise += float(np.dot(error, error))
            self.signal += float(np.dot(a, a))
        self.max_abs_error = max(self.max_abs_error, float(error.max(initial=0.0)))
        self.max_abs = max(self.max_abs, float(np.abs(a).max(initial=0.0)))
        self.elements += a.size

    @property
    def snr_db(self) -> float:
        """Signal-to-noise ratio: `inf` when equal, `-inf` when an error is infinite or there is no signal."""
        if self.noise == 0.0:
            return math.inf
        if self.signal == 0.0 or not math.isfinite(self.noise):
            return -math.inf
        return 10.0 * (math.log10(self.signal) - math.log10(self.noise))

    def as_json(self) -> dict[str, Any]:
        """Return the form in which a worker answers; infinities are spelled as JSON cannot, by name."""
        return {name: value if math.isfinite(value) else "inf" for name, value in asdict(self).items()}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Tally:
        """Read the form written by `as_json`."""
        numbers: dict[str, Any] = {n: math.inf if number == "inf" else number for n, number in value.items()}
        return Tally(**numbers)
