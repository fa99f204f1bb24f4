"""Interpolations by Pillow's names, as packages write them."""

from __future__ import annotations

from typing import Any

from ..preprocessing import Interpolation

_PILLOW: tuple[Interpolation, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Pillow's filters by their number, as configurations write them."""


def interpolation(value: Any) -> Interpolation:
    """Return Pillow's name of an interpolation: of a name, of Pillow's number, or of an enumeration."""
    if isinstance(value, int) and 0 <= value < len(_PILLOW):
        return _PILLOW[value]
    name = str(getattr(value, "value", value)).lower().rpartition(".")[2]
    return next((known for known in _PILLOW if known == name), "bilinear")
