"""Synthetic "speech": strings of digits, spoken by formants. No package ships recordings of words.

A digit is two of six sounds, one after the other. A vowel is a row of harmonics of a random pitch, shaped by
the two formants of that vowel (Peterson and Barney 1952, men's averages); the sixth sound is a hiss.
Durations, pitch, loudness, pauses and background noise vary. Nothing of it is recorded, and the seed decides
all of it: what the network learns says nothing about real voices.

`python examples/speech/data.py FOLDER` writes the evaluation's recordings as .wav files with their texts.
"""

from __future__ import annotations

import csv
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

Waves = npt.NDArray[np.float32]
Texts = npt.NDArray[np.str_]
Batch = tuple[Waves, Texts]

RATE_HZ = 8000
MOST_DIGITS = 5
SAMPLES_PER_DIGIT = 2560
"""Room for one digit with its pause: 0.32 s. Recordings of n digits have (n + 1) times so many samples."""

_FORMANTS_HZ = {"a": (730, 1090), "e": (530, 1840), "i": (270, 2290), "o": (570, 840), "u": (440, 1020)}
_DIGITS = ("as", "es", "is", "ou", "ia", "sa", "se", "oi", "ue", "si")  # of "0" to "9"
_BANDWIDTH_HZ = 90.0
_HIGHEST_HZ = 3600.0


def sound(name: str, samples: int, pitch_hz: float, random: np.random.Generator) -> Waves:
    """Return one sound [samples] float32: a vowel of this pitch, or a hiss."""
    if name == "s":
        made = np.diff(random.normal(0.0, 0.25, samples + 1))
    else:
        time_s = np.arange(samples) / RATE_HZ
        partials_hz = np.arange(pitch_hz, _HIGHEST_HZ, pitch_hz)
        loudness = sum(1.0 / (1.0 + ((partials_hz - f) / _BANDWIDTH_HZ) ** 2) for f in _FORMANTS_HZ[name])
        phases = random.uniform(0.0, 2 * np.pi, len(partials_hz))
        made = loudness @ np.sin(2 * np.pi * partials_hz[:, None] * time_s + phases[:, None])
        made = made / np.abs(made).max()
    fade = np.minimum(1.0, np.minimum(np.arange(samples), np.arange(samples)[::-1]) / 80.0)
    shaped: Waves = (made * fade).astype(np.float32)
    return shaped


def speak(text: str, random: np.random.Generator) -> Waves:
    """Return the waveform [samples] of a string of digits, without noise."""
    pitch_hz = random.uniform(90.0, 220.0)
    parts = [np.zeros(int(random.integers(200, 1200)), np.float32)]
    for digit in text:
        for name in _DIGITS[int(digit)]:
            parts.append(sound(name, int(random.integers(560, 1000)), pitch_hz, random))
        parts.append(np.zeros(int(random.integers(160, 500)), np.float32))
    return np.concatenate(parts)


def utterances(count: int, digits: int, *, seed: int) -> Batch:
    """Return recordings [count, 2560 * (digits + 1)] float32 in noise, and their texts [count].

    Args:
        count: Number of recordings.
        digits: Digits of each.
        seed: Equal seeds make equal recordings.
    """
    random = np.random.default_rng([seed, digits])
    length = SAMPLES_PER_DIGIT * (digits + 1)
    waves = np.zeros((count, length), np.float32)
    texts = ["".join(map(str, random.integers(0, 10, digits))) for _ in range(count)]
    for row, text in enumerate(texts):
        spoken = speak(text, random)[:length] * random.uniform(0.2, 0.6)
        waves[row, : len(spoken)] = spoken
    waves += random.normal(0.0, 1.0, waves.shape).astype(np.float32) * random.uniform(0.01, 0.08, (count, 1))
    return waves.astype(np.float32), np.array(texts)


def calibration() -> Iterator[Batch]:
    """Yield a batch of 16 recordings for each number of digits, of seeds of their own."""
    for digits in range(1, MOST_DIGITS + 1):
        yield utterances(16, digits, seed=3)


def evaluation() -> Iterator[Batch]:
    """Yield 32 recordings for each number of digits, of seeds that training never uses, the longest first."""
    for digits in range(MOST_DIGITS, 0, -1):
        yield utterances(32, digits, seed=1)


def one_digit() -> Iterator[Batch]:
    """Yield 8 recordings of one digit, 0.64 s, to be timed."""
    yield utterances(8, 1, seed=2)


def write_wavs(folder: Path) -> None:
    """Write the evaluation as 16-bit .wav files, and `texts.csv` with the columns file and text."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[str, str]] = []
    for waves, texts in evaluation():
        for samples, text in zip(waves, texts, strict=True):
            name = f"{len(rows):04d}.wav"
            rows.append((name, str(text)))
            with wave.open(str(folder / name), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(RATE_HZ)
                file.writeframes((np.clip(samples, -1.0, 1.0) * 32767).astype("<i2").tobytes())
    with open(folder / "texts.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file", "text"), *rows])


if __name__ == "__main__":
    write_wavs(Path(sys.argv[1]))
    print(f"{sys.argv[1]}: .wav files and texts.csv")
