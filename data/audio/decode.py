"""Decode a recording to mono float32 at the rate that the model takes.

Channels are averaged. Another rate is changed by scipy's polyphase filter (`scipy.signal.resample_poly`).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, first_line
from ...machine_memory import require_address_space
from ..packages import require_package

_SCIPY_BYTES = 512 << 20
SUFFIXES = frozenset((".wav", ".flac", ".ogg"))


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
            samples = file.read(math.ceil(max_seconds * own_hz), dtype="float32", always_2d=True)
    except Exception as error:  # LibsndfileError, which is a RuntimeError, TypeError, ...
        raise DataError(
            f"{where}: cannot be decoded as a recording ({first_line(error)})",
            hint="remove or replace the file",
            file=where,
        ) from error
    if not len(samples):
        raise DataError(f"{where}: holds no samples", hint="remove or replace the file", file=where)
    return at_rate(samples.mean(1, dtype=np.float32), own_hz, rate_hz)[: round(max_seconds * rate_hz)]


def at_rate(samples: NDArray[Any], own_hz: int, rate_hz: int) -> NDArray[np.float32]:
    """Return mono samples at another rate."""
    if own_hz == rate_hz:
        return np.asarray(samples, np.float32)
    require_package("scipy", "scipy", "resamples recordings")
    require_address_space(_SCIPY_BYTES, "load scipy, which resamples recordings")
    from scipy.signal import resample_poly

    common = math.gcd(own_hz, rate_hz)
    return np.asarray(resample_poly(samples, rate_hz // common, own_hz // common), np.float32)
