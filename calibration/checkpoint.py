"""Checkpoint of a calibration on disk; an interrupted calibration resumes from it.

One safetensors file that is replaced as a whole, with the counts of every tensor and, under the metadata
key "qcompile", what they belong to and a checksum.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from ..files import writing
from .checksum import checksum
from .histogram import Histogram

_KEY = "qcompile"
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


@dataclass
class Checkpoint:
    """The state of a calibration between two samples.

    Attributes:
        key: Everything that decides what is counted: another key is another calibration.
        units: How many units of the data were read: samples, or batches that are not taken apart.
        samples: How many samples were counted, of this shard.
        histograms: Tensor name to counts.
    """

    key: Mapping[str, object]
    units: int
    samples: int
    histograms: dict[str, Histogram]


@dataclass(frozen=True)
class _Header:
    """What the metadata hold: a tensor has its exponent, least and largest value."""

    key: dict[str, Any]
    units: _Count
    samples: _Count
    tensors: dict[str, tuple[int, float, float]]
    checksum: str


def save_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Replace the file at once: a kill leaves the earlier one or this one."""
    from safetensors.numpy import save

    header = {
        "key": checkpoint.key,
        "units": checkpoint.units,
        "samples": checkpoint.samples,
        "tensors": {
            name: [histogram.exponent, histogram.min, histogram.max]
            for name, histogram in checkpoint.histograms.items()
        },
    }
    counts = {name: histogram.counts for name, histogram in checkpoint.histograms.items()}
    header["checksum"] = checksum(header, counts)
    with writing(path) as temporary:
        temporary.write_bytes(save(counts, metadata={_KEY: json.dumps(header)}))


def load_checkpoint(path: Path, key: Mapping[str, object]) -> Checkpoint | None:
    """Return the checkpoint of a calibration; None where there is none, or it is of another calibration."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="np") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            typed = msgspec.convert(header, _Header)
            if typed.key != json.loads(json.dumps(key)):
                return None
            histograms = {
                name: Histogram(exponent, np.array(file.get_tensor(name)), low, high)
                for name, (exponent, low, high) in typed.tensors.items()
            }
        if not all(histogram.is_plausible for histogram in histograms.values()):
            return None
        if typed.checksum != checksum(header, {name: one.counts for name, one in histograms.items()}):
            return None
        return Checkpoint(key, typed.units, typed.samples, histograms)
    except (SafetensorError, KeyError, ValueError, OSError, RecursionError):
        return None  # damaged: to begin anew loses time only
