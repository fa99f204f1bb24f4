"""The ranges file: histograms of every observed tensor, and the magnitudes chosen from them.

A safetensors file (no pickle): one int64 array of counts per tensor, and a JSON header under the
metadata key "qcompile". From one file every method and percentile can be chosen again without running
the model, and files of shards merge to exactly what one run would have given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..artifact import require_file
from ..errors import CalibrationError, InvalidOption
from .histogram import BINS, Histogram
from .thresholds import DEFAULT_PERCENTILE, METHODS, Method, amax

FORMAT_VERSION = 1
_KEY = "qcompile"


@dataclass
class Ranges:
    """What calibration found.

    Attributes:
        model: Fingerprint of the ONNX file that was observed.
        data: Digest of the samples.
        samples: Number of samples.
        method: Method used where none is asked for.
        percentile: Percentile of the method "percentile".
        histograms: Tensor name to counts.
        skipped: Tensor name to the reason why it was not observed.
    """

    model: str
    data: str
    samples: int
    method: Method = "entropy"
    percentile: float = DEFAULT_PERCENTILE
    histograms: dict[str, Histogram] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)

    def amax(self, tensor: str, method: Method | None = None, percentile: float | None = None) -> float:
        """Return the clipping magnitude of a tensor.

        Raises:
            CalibrationError: If the tensor was not observed.
        """
        percentile = self.percentile if percentile is None else percentile
        return amax(self._histogram(tensor), method or self.method, percentile=percentile)

    def clipped(
        self, tensor: str, method: Method | None = None, percentile: float | None = None
    ) -> tuple[float, float]:
        """Return (min, max) of a tensor within the magnitude of the method.

        Raises:
            CalibrationError: If the tensor was not observed.
        """
        histogram, limit = self._histogram(tensor), self.amax(tensor, method, percentile)
        return max(histogram.min, -limit), min(histogram.max, limit)

    def merge(self, other: Ranges) -> None:
        """Add the counts of another part of the same calibration.

        Raises:
            CalibrationError: If it is of another model, or observed other tensors.
        """
        if other.model != self.model:
            raise CalibrationError(
                "ranges of different models cannot be merged",
                hint="calibrate every shard on the same ONNX file",
            )
        differing = set(self.histograms) ^ set(other.histograms)
        if differing:
            raise CalibrationError(
                f"tensor {min(differing)!r} is in one ranges file only; both must observe the same",
                tensor=min(differing),
            )
        for name, histogram in other.histograms.items():
            self.histograms[name].merge(histogram)
        self.samples += other.samples

    def _histogram(self, tensor: str) -> Histogram:
        try:
            return self.histograms[tensor]
        except KeyError:
            reason = self.skipped.get(tensor, "it was not observed")
            raise CalibrationError(
                f"tensor {tensor!r} has no range: {reason}",
                hint="calibrate the model that is quantized",
                tensor=tensor,
            ) from None


def save_ranges(ranges: Ranges, path: Path) -> None:
    """Write a ranges file to `path` (inside `artifact.writing`); equal ranges give equal bytes."""
    from safetensors.numpy import save

    observed = {
        name: histogram
        for name, histogram in sorted(ranges.histograms.items())
        if histogram.max >= histogram.min
    }
    header = {
        "version": FORMAT_VERSION,
        "model": ranges.model,
        "data": ranges.data,
        "samples": ranges.samples,
        "method": ranges.method,
        "percentile": ranges.percentile,
        "bins": BINS,
        "tensors": {
            name: {
                "exponent": histogram.exponent,
                "min": histogram.min,
                "max": histogram.max,
                "amax": {method: amax(histogram, method, percentile=ranges.percentile) for method in METHODS},
            }
            for name, histogram in observed.items()
        },
        "skipped": dict(sorted(ranges.skipped.items())),
    }
    counts = {name: histogram.counts for name, histogram in observed.items()}
    path.write_bytes(save(counts, metadata={_KEY: json.dumps(header)}))


def load_ranges(path: Path) -> Ranges:
    """Read a ranges file.

    Raises:
        MissingFile: If it is not there.
        CalibrationError: If it is damaged or of another version.
    """
    from safetensors import SafetensorError, safe_open

    require_file(path, what="ranges file")
    try:
        with safe_open(path, framework="np") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            if header["version"] != FORMAT_VERSION:
                raise CalibrationError(
                    f"{path}: ranges file of version {header['version']}; "
                    f"this qcompile reads {FORMAT_VERSION}",
                    hint="calibrate again",
                )
            histograms = {
                name: Histogram(entry["exponent"], file.get_tensor(name), entry["min"], entry["max"])
                for name, entry in header["tensors"].items()
            }
            if any(histogram.counts.shape != (2 * BINS,) for histogram in histograms.values()):
                raise ValueError(f"its histograms do not have {2 * BINS} bins")
            return Ranges(
                header["model"], header["data"], header["samples"], header["method"],
                header["percentile"], histograms, header["skipped"],
            )  # fmt: skip
    except (SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
        raise CalibrationError(
            f"{path}: not a ranges file, or cut off ({error})",
            hint="make it with qcompile calibrate",
            file=path,
        ) from error


def parse_method(text: str) -> tuple[Method, float]:
    """Read a method's spelling: `minmax`, `entropy`, `percentile`, `percentile:99.9`.

    Raises:
        InvalidOption: If it is none of these.
    """
    name, colon, value = text.partition(":")
    if name not in METHODS or (colon and name != "percentile"):
        raise InvalidOption(
            f"method {text!r} is unknown; known are {', '.join(METHODS)} and percentile:NUMBER"
        )
    try:
        percentile = float(value) if colon else DEFAULT_PERCENTILE
    except ValueError:
        raise InvalidOption(f"method {text!r}: {value!r} is not a number") from None
    if not 0.0 < percentile <= 100.0 or np.isnan(percentile):
        raise InvalidOption(f"method {text!r}: above 0 and at most 100 is required")
    return METHODS[METHODS.index(name)], percentile
