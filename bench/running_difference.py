"""The difference from the baseline's outputs, batch by batch: the verdict of `diff.judge`, nothing kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model.fidelity import decibels
from ..model.judgement import SNR_DB, RowTally
from .diff import ATOL_SHARE, BY_SIGNAL, RTOL
from .metrics import Outputs


@dataclass
class _Running:
    """One output so far.

    Attributes:
        noise, signal: Sums of squares of the errors and of the reference.
        max_abs_error, max_abs: Largest error, and largest magnitude of the reference.
        atol: Smallest absolute tolerance for which every element passes by it or the relative one.
        worst_snr_db: Of one batch.
        rows: What its rows are, and how they agree.
        mismatch: Shapes that differ, in words.
    """

    rows: RowTally
    noise: float = 0.0
    signal: float = 0.0
    max_abs_error: float = 0.0
    max_abs: float = 0.0
    atol: float = 0.0
    worst_snr_db: float = math.inf
    mismatch: str = ""

    def add(self, expected: NDArray[Any], found: NDArray[Any], rtol: float) -> None:
        """Add a batch."""
        if expected.shape != found.shape:
            self.mismatch = f"shape {expected.shape} is required, {found.shape} found"
            return
        a, b = _as_numbers(expected, found)
        error = _error(a, b)
        size = np.abs(np.where(np.isfinite(a), a, 0.0))
        noise, signal = float(np.square(error).sum()), float(np.square(size).sum())
        self.noise, self.signal = self.noise + noise, self.signal + signal
        self.worst_snr_db = min(self.worst_snr_db, decibels(signal, noise))
        self.max_abs_error = max(self.max_abs_error, float(error.max(initial=0.0)))
        self.max_abs = max(self.max_abs, float(size.max(initial=0.0)))
        # As Polygraphy has it, an element fails only beyond both tolerances, not beyond their sum.
        self.atol = max(self.atol, float(error[error > rtol * size].max(initial=0.0)))
        self.rows.add(expected, found)

    @property
    def snr_db(self) -> float:
        """Of everything added; -inf where the shapes differ."""
        return -math.inf if self.mismatch else decibels(self.signal, self.noise)

    @property
    def agreement(self) -> float | None:
        """Share of rows with the same argmax; None where the output is no classes."""
        return None if self.mismatch else self.rows.agreement


class RunningDifference:
    """The difference of one artifact from the baseline.

    Args:
        precision: The artifact's, which decides what counts as equal (see `diff`).
    """

    def __init__(self, precision: str) -> None:
        self._by_signal = precision in BY_SIGNAL
        self._kind = precision if precision in RTOL else "fp32"
        self._outputs: dict[str, _Running] = {}

    def add(self, reference: Outputs, outputs: Outputs) -> None:
        """Add a batch; the names are the reference's (see `paired`)."""
        for name, expected in reference.items():
            running = self._outputs.setdefault(name, _Running(RowTally(name)))
            running.add(expected, outputs[name], RTOL[self._kind])

    def as_json(self) -> dict[str, Any]:
        """Return the `difference` of an entry: the worst output's figures, and whether all passed.

        `snr_db` is None where it has no figure: equal outputs (`max_abs_error` 0), a reference of zeros,
        or errors that are infinite or of other shapes, where `max_abs_error` is None too.
        """
        name, worst = min(self._outputs.items(), key=lambda item: item[1].snr_db)
        error = math.inf if worst.mismatch else worst.max_abs_error
        return {
            "output": name,
            "snr_db": worst.snr_db if math.isfinite(worst.snr_db) else None,
            "max_abs_error": error if math.isfinite(error) else None,
            "agreement": worst.agreement,
            "passed": all(self._passed(running) for running in self._outputs.values()),
            "criterion": self._criterion(worst),
        }

    def _passed(self, running: _Running) -> bool:
        if running.mismatch:
            return False
        if not self._by_signal:
            return running.atol <= ATOL_SHARE[self._kind] * running.max_abs
        return running.rows.verdict(loud=running.worst_snr_db >= SNR_DB)[0]

    def _criterion(self, running: _Running) -> str:
        if running.mismatch:
            return running.mismatch
        if not self._by_signal:
            return f"atol {ATOL_SHARE[self._kind] * running.max_abs:.3g}, rtol {RTOL[self._kind]:g}"
        return running.rows.verdict(loud=running.worst_snr_db >= SNR_DB)[1]


def _as_numbers(expected: NDArray[Any], found: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Both as float64; text as 1 where it is the same."""
    if expected.dtype.kind in "OUS":
        return np.ones(expected.shape), (expected == found).astype(np.float64)
    return expected.astype(np.float64), found.astype(np.float64)


def _error(expected: NDArray[Any], found: NDArray[Any]) -> NDArray[Any]:
    """Absolute error; NaN and infinities are equal at the same place, and infinitely wrong elsewhere."""
    same = (expected == found) | (np.isnan(expected) & np.isnan(found))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(expected - found))
    return np.where(np.isfinite(error), error, math.inf)
