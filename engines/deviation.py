"""Deviation of an artifact's outputs from its graph's, as sums over all samples; `values` has the rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model.outputs.judgement import decibels, enough_agreement
from ..model.outputs.masks import without_masks


@dataclass
class Deviation:
    """Sums over all samples of one output. `values` defines `ref`, `plain` and `out`. For labels, the error
    sums count the elements that differ."""

    elements: int = 0
    amax: float = 0.0  # largest magnitude of ref
    signal: float = 0.0  # Σ|ref|²
    quantization: float = 0.0  # Σ|ref − plain|²
    total: float = 0.0  # Σ|out − plain|²
    error: float = 0.0  # Σ|out − ref|²
    labels: bool = False  # whether the elements are not floats
    mismatch: str = ""  # how the output's shape or type differs from the graph's
    declared_mismatch: str = ""  # how the output's shape differs from the declared shape
    uncompared: str = ""  # why the elements do not correspond to the graph's elements

    def add(self, ref: NDArray[Any], plain: NDArray[Any], out: NDArray[Any]) -> None:
        """Add a batch. The error becomes infinite if `ref` and `out` differ in infinities, NaN or masks (huge
        values of invalid elements)."""
        self.elements += ref.size
        if ref.dtype.kind != "f":
            self.labels = True
            self.quantization += float((ref != plain).sum())
            self.error += float((out != ref).sum())
            self.total = self.quantization + self.error
            return
        exact, (ref, out) = without_masks(ref, plain)[1], without_masks(ref, out)[:2]
        a, b, c = (array.astype(np.float64).ravel() for array in (ref, exact, out))
        same = (a == c) | (np.isnan(a) & np.isnan(c))
        finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
        if not (same | (np.isfinite(a) & np.isfinite(c))).all():
            self.total = self.error = math.inf
        a, b, c = a[finite], b[finite], c[finite]
        with np.errstate(over="ignore", invalid="ignore"):
            self.amax = max(self.amax, float(np.abs(a).max(initial=0.0)))
            self.signal += float(a @ a)
            self.quantization += float((a - b) @ (a - b))
            self.total += float((c - b) @ (c - b))
            self.error += float((c - a) @ (c - a))

    @property
    def has_wrong_shape_or_type(self) -> bool:
        return bool(self.mismatch or self.declared_mismatch)

    def excess(self, *, integers: bool, noise_db: float | None) -> float:
        """Return the error that execution adds, as a share of the allowed error; above 1 the output fails.

        `integers` applies the floor of `values`, for artifacts that round to integers. `noise_db` is the
        signal-to-noise ratio that float arithmetic may cost; None allows no such noise.
        """
        if self.has_wrong_shape_or_type:
            return math.inf
        added = self.total - self.quantization
        if added <= 0 or self.uncompared:
            return 0.0
        if self.labels:
            same = self.elements - int(added)
            return 2.0 if added > self.quantization and not enough_agreement(same, self.elements)[0] else 0.5
        floor = max(self.elements / 12, 1) * (self.amax / 127) ** 2 if integers else 0.0
        noise = self.signal * 10 ** (-noise_db / 10) if noise_db is not None else 0.0
        allowed = max(self.quantization, floor) + noise
        return added / allowed if allowed else math.inf

    def words(self, name: str) -> str:
        """Return, as text, the signal-to-noise ratios of artifact and quantization, or other differences."""
        if self.has_wrong_shape_or_type:
            return f"output {name!r} {self.mismatch or self.declared_mismatch}"
        if self.labels:
            return f"output {name!r}: {self.error:.0f} of {self.elements} elements differ from its graph"
        equal = f"{decibels(self.signal, self.error):.1f} dB from" if self.error else "equal to"
        quantized = f" (quantization: {decibels(self.signal, self.quantization):.1f} dB)"
        return f"output {name!r}: {equal} its graph{quantized if self.quantization else ''}"
