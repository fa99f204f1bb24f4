"""Decode a recording to mono float32 at the rate that the model takes.

Channels are averaged. Another rate is changed by scipy's polyphase filter (`scipy.signal.resample_poly`).
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, first_line
from ...machine_memory import require_address_space
from ..packages import require_package

_SCIPY_BYTES = 512 << 20
SUFFIXES = frozenset((".wav", ".flac", ".ogg"))
_RATES_HZ = (100, 768_000)
"""Of recordings; the filter of another rate would take gigabytes."""
_FRAMES_AT_ONCE = 1 << 14
_LARGEST_FACTOR = 50_000


def decode(source: Path | IO[bytes], rate_hz: int, max_seconds: float, where: str) -> NDArray[np.float32]:
    """Return the samples of a recording, from -1 to 1, cut to so many seconds.

    Raises:
        DataError: If it is damaged, empty, or no recording, naming it.
        EngineUnavailable: If soundfile or scipy is missing.
    """
    require_package("soundfile", "soundfile", "reads recordings")
    import soundfile

    try:
        with soundfile.SoundFile(source) as file:
            own_hz = file.samplerate
            if not _RATES_HZ[0] <= own_hz <= _RATES_HZ[1]:
                least, most = _RATES_HZ
                raise ValueError(f"it has {own_hz} samples per second; {least} to {most} are required")
            samples = _read(file, math.ceil(max_seconds * own_hz))
    except Exception as error:  # LibsndfileError, which is a RuntimeError, TypeError, ...
        raise DataError(
            f"{where}: cannot be decoded as a recording ({first_line(error)})",
            hint="remove or replace the file",
            file=where,
        ) from error
    if not len(samples):
        raise DataError(f"{where}: holds no samples", hint="remove or replace the file", file=where)
    return at_rate(samples, own_hz, rate_hz)[: round(max_seconds * rate_hz)]


def _read(file: Any, frames: int) -> NDArray[np.float32]:
    """The mean of the channels, of at most so many frames: a header may promise more than there is."""
    parts = [np.zeros(0, np.float32)]
    while frames > 0:
        part = file.read(min(frames, _FRAMES_AT_ONCE), dtype="float32", always_2d=True)
        if not len(part):
            break
        parts.append(part.mean(1, dtype=np.float32))
        frames -= len(part)
    return np.concatenate(parts)


def at_rate(samples: NDArray[Any], own_hz: int, rate_hz: int) -> NDArray[np.float32]:
    """Return mono samples at another rate."""
    if own_hz == rate_hz:
        return np.asarray(samples, np.float32)
    require_package("scipy", "scipy", "resamples recordings")
    require_address_space(_SCIPY_BYTES, "load scipy, which resamples recordings")
    from scipy.signal import resample_poly

    up, down = _ratio(own_hz, rate_hz)
    return np.asarray(resample_poly(samples, up, down), np.float32)


def _ratio(own_hz: int, rate_hz: int) -> tuple[int, int]:
    """Return the factors up and down; a rate that shares no factor is rounded, as filters have 20 times as
    many taps as the larger one."""
    if own_hz > rate_hz:
        nearest = Fraction(rate_hz, own_hz).limit_denominator(_LARGEST_FACTOR)
        return nearest.numerator, nearest.denominator
    nearest = Fraction(own_hz, rate_hz).limit_denominator(_LARGEST_FACTOR)
    return nearest.denominator, nearest.numerator
