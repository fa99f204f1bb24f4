"""The ranges file: a safetensors file (no pickle) with one int64 array of counts per tensor.

A JSON header lies under the metadata key "qcompile": model, data, method, and per tensor exponent, min, max
and amax by every method. Equal ranges give equal bytes. Ranges of TensorRT's cache hold no counts but the
amax of each tensor, under "fixed"; such a file is of version 3, which versions that know none refuse.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CalibrationError
from ..files import require_file
from ..spec.words import METHODS
from .histogram import BINS, Histogram
from .ranges import Portion, Ranges
from .thresholds import Method, amax_by_method

FORMAT_VERSION, _FIXED_VERSION = 2, 3
_KEY = "qcompile"


def save_ranges(ranges: Ranges, path: Path) -> None:
    """Write a ranges file to `path` (inside `files.writing`)."""
    from safetensors.numpy import save

    observed = {
        name: histogram for name, histogram in sorted(ranges.histograms.items()) if not histogram.is_empty
    }
    entries = {name: _entry(histogram, ranges.method) for name, histogram in observed.items()}
    header = {
        "version": _FIXED_VERSION if ranges.fixed else FORMAT_VERSION,
        "bins": BINS,
        "model": ranges.model,
        "data": {
            digest: {"samples": portion.samples, "shards": portion.shards, "parts": portion.parts}
            for digest, portion in sorted(ranges.portions.items())
        },
        "method": ranges.method.name,
        "percentile": ranges.method.percentile,
        "tensors": entries,
        "empty": sorted(set(ranges.histograms) - set(observed)),
        "shared": {name: list(sources) for name, sources in sorted(ranges.shared.items())},
        "skipped": dict(sorted(ranges.skipped.items())),
        **({"fixed": dict(sorted(ranges.fixed.items()))} if ranges.fixed else {}),
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
            if header["version"] not in (FORMAT_VERSION, _FIXED_VERSION):
                raise CalibrationError(
                    f"{path}: ranges file of version {header['version']}; "
                    f"this qcompile reads {FORMAT_VERSION} and {_FIXED_VERSION}",
                    hint="calibrate again",
                )
            histograms = {
                name: Histogram(entry["exponent"], file.get_tensor(name), entry["min"], entry["max"])
                for name, entry in header["tensors"].items()
            }
        return _ranges(header, histograms)
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OSError) as error:
        raise CalibrationError(
            f"{path}: not a ranges file, or cut off ({error})",
            hint="make it with qcompile calibrate",
            file=path,
        ) from error


def _entry(histogram: Histogram, method: Method) -> dict[str, Any]:
    return {
        "exponent": histogram.exponent,
        "min": histogram.min,
        "max": histogram.max,
        "amax": amax_by_method(histogram, method.percentile),
    }


def _is_plausible(histogram: Histogram) -> bool:
    """Whether exponent and extremes are such as `Histogram` makes."""
    if type(histogram.exponent) is not int or not -200 <= histogram.exponent <= 1013:
        return False
    low, high = float(histogram.min), float(histogram.max)
    reach = BINS * histogram.width
    return -reach <= low <= high <= reach and bool((histogram.counts >= 0).all())


def _ranges(header: Mapping[str, Any], histograms: dict[str, Histogram]) -> Ranges:
    for name, histogram in histograms.items():
        if histogram.counts.shape != (2 * BINS,) or histogram.counts.dtype != np.int64:
            raise ValueError(f"its histograms are not of {2 * BINS} integers")
        if not _is_plausible(histogram):
            raise ValueError(f"the histogram of {name!r} contradicts itself")
    shared = {name: tuple(sources) for name, sources in header["shared"].items()}
    histograms |= {name: Histogram() for name in header["empty"]}
    fixed = {name: float(amax) for name, amax in header.get("fixed", {}).items()}
    if not all(math.isfinite(amax) and amax > 0 for amax in fixed.values()):
        raise ValueError("a fixed amax is not above zero and finite")
    lost = [source for sources in shared.values() for source in sources if source not in histograms]
    if lost:
        raise ValueError(f"it refers to {lost[0]!r}, which it does not hold")
    portions = {
        digest: Portion(entry["samples"], entry["shards"], tuple(entry["parts"]))
        for digest, entry in header["data"].items()
    }
    method = Method(METHODS[METHODS.index(header["method"])], header["percentile"])
    return Ranges(header["model"], portions, method, histograms, shared, header["skipped"], fixed)
