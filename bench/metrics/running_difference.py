"""Compare outputs with the baseline's batch by batch, as `output_verdict.judge` does, and keep no outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...model.judgement import ATOL_SHARE, BY_SIGNAL, RTOL, SNR_DB, RowAgreement
from ...model.output_error import ErrorSums
from ..results.row import Difference
from .metric import Outputs


@dataclass
class OutputSums:
    """One output, of a batch or of all batches so far.

    Attributes:
        rows: What its rows are, and how they agree.
        sums: Its errors.
        atol: Smallest absolute tolerance for which every element passes by it or the relative one.
        mismatch: Shapes that differ, in words.
    """

    rows: RowAgreement
    sums: ErrorSums = field(default_factory=ErrorSums)
    atol: float = 0.0
    mismatch: str = ""

    @staticmethod
    def of_batch(name: str, expected: NDArray[Any], actual: NDArray[Any], rtol: float) -> OutputSums:
        """Return what is kept of one batch."""
        batch = OutputSums(RowAgreement(name))
        if expected.shape != actual.shape:
            batch.mismatch = f"shape {expected.shape} is required, {actual.shape} found"
            return batch
        values, error = batch.sums.add(expected, actual)
        # As Polygraphy has it, an element fails only beyond both tolerances, not beyond their sum.
        batch.atol = float(error[error > rtol * np.abs(values)].max(initial=0.0))
        batch.rows.add(expected, actual)
        return batch

    def include(self, batch: OutputSums) -> None:
        """Add a batch."""
        if batch.mismatch:
            self.mismatch = batch.mismatch
            return
        self.sums.include(batch.sums)
        self.atol = max(self.atol, batch.atol)
        self.rows.include(batch.rows)

    @property
    def snr_db(self) -> float:
        """Of everything added; -inf where the shapes differ."""
        return -math.inf if self.mismatch else self.sums.snr_db

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
        self._outputs: dict[str, OutputSums] = {}

    def add(self, reference: Outputs, outputs: Outputs) -> None:
        """Add a batch; the names are the reference's (see `paired`)."""
        rtol = RTOL[self._kind]
        for name, expected in reference.items():
            batch = OutputSums.of_batch(name, expected, outputs[name], rtol)
            self._outputs.setdefault(name, OutputSums(RowAgreement(name))).include(batch)

    def result(self) -> Difference:
        """Return the worst output's figures, and whether all passed."""
        # The signal-to-noise ratio of labels says nothing where enough of them are equal.
        telling = {
            name: one
            for name, one in self._outputs.items()
            if not (self._by_signal and one.rows.rule == "labels" and self._passed(one))
        }
        name, worst = min((telling or self._outputs).items(), key=lambda item: item[1].snr_db)
        return Difference(
            passed=all(self._passed(running) for running in self._outputs.values()),
            output=name,
            snr_db=worst.snr_db,
            max_abs_error=math.inf if worst.mismatch else worst.sums.max_abs_error,
            agreement=worst.agreement,
            criterion=self._criterion(worst),
            mean_abs_error=math.inf if worst.mismatch else worst.sums.mean_abs_error,
        )

    def _passed(self, running: OutputSums) -> bool:
        if running.mismatch:
            return False
        if not self._by_signal:
            return running.atol <= ATOL_SHARE[self._kind] * running.sums.max_abs
        return running.rows.verdict(loud=running.snr_db >= SNR_DB)[0]

    def _criterion(self, running: OutputSums) -> str:
        if running.mismatch:
            return running.mismatch
        if not self._by_signal:
            return f"atol {ATOL_SHARE[self._kind] * running.sums.max_abs:.3g}, rtol {RTOL[self._kind]:g}"
        return running.rows.verdict(loud=running.snr_db >= SNR_DB)[1]
