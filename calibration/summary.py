"""What ranges say about each tensor: its extremes, its thresholds, what they clip and lose."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .histogram import Histogram
from .quantization_error import loss
from .ranges import Ranges
from .thresholds import Method, amax_by_method


@dataclass(frozen=True)
class TensorSummary:
    """One observed tensor.

    Attributes:
        tensor: Its name.
        min, max: Exact extremes.
        amax: Method name to magnitude.
        clipped: Share of the values beyond the chosen magnitude, 0 to 1, to one bin.
        snr_db: Estimated signal-to-noise ratio of quantization at the chosen magnitude.
    """

    tensor: str
    min: float
    max: float
    amax: dict[str, float]
    clipped: float
    snr_db: float

    def as_json(self) -> dict[str, object]:
        """Return the `--json` form; an infinite ratio is null."""
        snr_db = self.snr_db if math.isfinite(self.snr_db) else None
        return {**self.__dict__, "snr_db": snr_db}


def summarize(ranges: Ranges, *, method: Method | None = None, symmetric: bool = True) -> list[TensorSummary]:
    """Return a summary of every observed tensor, the worst signal-to-noise ratio first.

    Args:
        ranges: What calibration found, with histograms.
        method: What `clipped` and `snr_db` are of; the ranges' own by default.
        symmetric: Whether for symmetric int8 or asymmetric uint8 (`quantization_error`).
    """
    chosen = method or ranges.method
    observed = {name: h for name, h in ranges.histograms.items() if not h.is_empty}
    summaries = [_summary(name, histogram, chosen, symmetric) for name, histogram in observed.items()]
    return sorted(summaries, key=lambda one: (one.snr_db, one.tensor))


def _summary(tensor: str, histogram: Histogram, method: Method, symmetric: bool) -> TensorSummary:
    every = amax_by_method(histogram, method.percentile, symmetric=symmetric)
    lost = loss(histogram, every[method.name], symmetric=symmetric)
    return TensorSummary(tensor, histogram.min, histogram.max, every, lost.clipped, lost.snr_db)
