"""A float model balanced before it is quantized, with ranges that fit it.

One ranges file serves the model as it is and balanced: it holds every tensor that balancing leaves as it
was. The few that it rescales, or adds, are observed again on the samples, in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ....calibration import Ranges, observe
from ....data.batches import Data
from ....model.onnx_file import copy_model, save_onnx
from ..activations import channel_amax
from .equalize import equalizable, equalize, equalized_tensors
from .smooth import Smoothed, observe_rows, smooth, smoothable

if TYPE_CHECKING:
    import onnx

_LOOKED_AT = 32
"""Samples on which channels are looked at."""


@dataclass(frozen=True)
class Floats:
    """A float model to quantize.

    Attributes:
        path: Its file.
        model: Its content.
        ranges: Of its activations.
    """

    path: Path
    model: onnx.ModelProto
    ranges: Ranges


def smoothed(floats: Floats, data: Data, path: Path, *, symmetric: bool) -> tuple[Floats, Smoothed]:
    """Return the model smoothed (`smooth`), written to `path`, and what was done to it.

    Raises:
        DataError, CalibrationError, ModelError: If samples do not fit, or a tensor becomes NaN.
    """
    model = copy_model(floats.model)
    tensors = smoothable(model)
    observed = observe_rows(model, floats.path, tensors, data, _LOOKED_AT)
    done = smooth(model, observed, symmetric=symmetric)
    if not done.rescaled:
        return floats, done
    return _written(floats, model, done.rescaled, data, path), done


def equalized(floats: Floats, data: Data, path: Path) -> tuple[Floats, int]:
    """Return the model equalized by its activations (`equalize`), written to `path`, and how many pairs.

    Args, raises: As `smoothed`.
    """
    model = copy_model(floats.model)
    axes = equalizable(model)
    rescaled = equalized_tensors(model)
    amax = channel_amax(floats.path, axes, data, _LOOKED_AT) if axes else {}
    pairs = equalize(model, amax) if axes else 0
    if not pairs:
        return floats, 0
    return _written(floats, model, rescaled, data, path), pairs


def _written(
    floats: Floats,
    model: onnx.ModelProto,
    rescaled: Collection[str],
    data: Data,
    path: Path,
) -> Floats:
    save_onnx(model, path)
    again = observe(path, data, tensors=rescaled)
    return Floats(path, model, _with(floats.ranges, again, rescaled))


def _with(ranges: Ranges, again: Ranges, rescaled: Collection[str]) -> Ranges:
    """The ranges, with those of the rescaled tensors in place of their own."""
    changed = set(rescaled)
    histograms = {name: one for name, one in ranges.histograms.items() if name not in changed}
    shared: Mapping[str, tuple[str, ...]] = {
        name: sources for name, sources in ranges.shared.items() if name not in changed
    }
    needed = {source for sources in shared.values() for source in sources} - histograms.keys()
    kept = {name: ranges.histograms[name] for name in needed - again.histograms.keys()}
    return replace(
        ranges,
        histograms={**histograms, **kept, **again.histograms},
        shared={**shared, **again.shared},
    )
