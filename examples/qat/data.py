"""Made sounds: a loud hum, noise, and one of ten tones, 200 to 2,000 times quieter than the hum.

Synthetic, so there are as many samples as an interval needs. Plain numpy.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Waves = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

SAMPLES = 1024
CALIBRATION_BATCHES, EVALUATION_BATCHES, BATCH = 8, 20, 50

_TONES = np.linspace(0.12, 0.45, 10)  # cycles per sample
_QUIET = (0.0005, 0.005)
_NOISE = 0.0005


def sounds(count: int, seed: int) -> tuple[Waves, Labels]:
    """Return waveforms [count,1,1024] of magnitude 1, and which tone sounds in each [count]."""
    random = np.random.default_rng(seed)
    times = np.arange(SAMPLES)
    hum = random.uniform(0.005, 0.02, (count, 1))
    waves = sum(
        random.uniform(0.2, 1, (count, 1))
        * np.sin(2 * np.pi * (order * hum * times + random.uniform(0, 1, (count, 1))))
        for order in (1, 2, 3)
    )
    waves /= np.abs(waves).max(axis=1, keepdims=True)
    labels = random.integers(0, len(_TONES), count)
    tone = np.sin(2 * np.pi * (_TONES[labels, None] * times + random.uniform(0, 1, (count, 1))))
    waves += random.uniform(*_QUIET, (count, 1)) * tone + random.normal(0, _NOISE, waves.shape)
    return waves[:, None].astype(np.float32), labels.astype(np.int64)


def calibration() -> Iterator[tuple[Waves, Labels]]:
    """Yield 8 batches of waveforms [50,1,1024] and labels [50]."""
    return (sounds(BATCH, 1_000_000 + number) for number in range(CALIBRATION_BATCHES))


def evaluation() -> Iterator[tuple[Waves, Labels]]:
    """Yield 20 batches of waveforms [50,1,1024] and labels [50]."""
    return (sounds(BATCH, 2_000_000 + number) for number in range(EVALUATION_BATCHES))
