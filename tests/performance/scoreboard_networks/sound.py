"""Networks that listen: speech of espeak-ng, and tones; their samples and metrics."""

from __future__ import annotations

import functools
import io
import shutil
import subprocess
import sys
import wave
from collections.abc import Iterator

import numpy as np

from .base import Array, Counted, Sample, pinned, shares
from .text import sentences

VOICES = [
    f"{accent}+{kind}" for accent in ("en-us", "en-gb") for kind in ("m1", "m3", "m7", "f1", "f3", "f5")
]
NOTES = 0.3
"""The probability from which on basic-pitch takes a note for played."""


@functools.lru_cache(maxsize=512)
def _said(text: str, voice: str, speed: int) -> Array:
    """Speech at 16 kHz, -1 to 1."""
    if shutil.which("espeak-ng") is None:
        sys.exit("espeak-ng is not installed, which makes the speech")
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "--stdout", text]
    content = subprocess.run(command, capture_output=True, check=True).stdout
    with wave.open(io.BytesIO(content)) as file:
        rate = file.getframerate()
        sound = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
    times = np.arange(0, len(sound) / rate, 1 / 16000)
    return np.interp(times, np.arange(len(sound)) / rate, sound)


def _noise(generator: np.random.Generator, length: int, least: float, most: float) -> Array:
    return generator.normal(0, 10 ** generator.uniform(least, most), length)


def frames() -> Iterator[Sample]:
    """Yield 64 frames of 576 values of speech with pauses and noise, and the LSTM's state, of 32 + 64."""
    for number in range(32 + 64):
        generator = np.random.default_rng(number)
        voice = ["en-us", "en-gb", "en-us+f3", "en-gb+m2"][number % 4]
        sound = _said(sentences()[number], voice, 130 + 10 * (number % 7))
        pause = np.zeros(int(generator.integers(4000, 12000)))
        whole = np.concatenate([pause, sound[:12000], pause, sound[12000:], pause, np.zeros(64 * 512)])
        whole = whole[: 64 * 512] * generator.uniform(0.3, 1.0)
        before = np.concatenate([np.zeros(64), whole + _noise(generator, len(whole), -4, -2)])
        cut = np.stack([before[i * 512 : i * 512 + 576] for i in range(64)]).astype(np.float32)
        zeros = np.zeros((1, 1, 128), np.float32)
        yield {"input": cut, "h": zeros, "c": zeros.copy()}


def clips() -> Iterator[Sample]:
    """Yield float32 [1, 144160]: nine seconds of speech, noisy, clipped or muffled, of 32 + 96."""
    for number in range(32 + 96):
        generator = np.random.default_rng(6000 + number)
        voice = VOICES[number % len(VOICES)]
        parts = [_said(sentences()[2 * number + i], voice, 150) for i in range(2)]
        sound = np.tile(np.concatenate(parts), 4)[:144160] * generator.uniform(0.2, 1)
        if number % 3 == 1:
            sound = np.clip(sound, -0.1, 0.1)
        elif number % 3 == 2:
            sound = np.convolve(sound, np.ones(8) / 8, "same")
        yield {"input_1": (sound + _noise(generator, 144160, -4, -1)).astype(np.float32)[None]}


def mel_windows() -> Iterator[Sample]:
    """Yield float32 [1, 76, 32, 1]: mel frames of 0.76 seconds of speech, of 64 + 384."""
    import onnxruntime

    session = onnxruntime.InferenceSession(pinned("sounds mel"), providers=["CPUExecutionProvider"])
    for number in range(64 + 384):
        generator = np.random.default_rng(7000 + number)
        sound = _said(sentences()[number % 300], VOICES[number % len(VOICES)], 160)
        start = int(generator.integers(0, len(sound) - 14000))
        part = sound[start : start + 14000] * 20000 + _noise(generator, 14000, 1, 2.5)
        mel = session.run(None, {"input": part.astype(np.float32)[None]})[0]
        yield {"input_1": (mel.reshape(1, -1, 32, 1)[:, :76] / 10 + 2).astype(np.float32)}


def utterances() -> Iterator[Sample]:
    """Yield float32 [1, 160, 40]: mel frames of 1.6 seconds of one of twelve voices, of 60 + 240."""
    from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

    filters = mel_filter_bank(201, 40, 0.0, 8000.0, 16000, norm="slaney", mel_scale="slaney")
    for number in range(60 + 240):
        generator = np.random.default_rng(8000 + number)
        sound = _said(sentences()[number], VOICES[number % len(VOICES)], 150)
        start = int(generator.integers(1000, len(sound) - 25600)) if len(sound) > 27000 else 0
        part = np.resize(sound[start : start + 25600], 25600)
        part = part * 10 ** (-30 / 20) / max(float(np.sqrt(np.mean(part**2))), 1e-6)
        part = part + _noise(generator, 25600, -4, -2.5)
        mel = spectrogram(part, window_function(400, "hann"), 400, 160, power=2.0, mel_filters=filters)
        yield {"mels": mel.T[None, :160].astype(np.float32)}


def _frequencies(number: int) -> Array:
    """The frequency of each frame of a tone: a glide with vibrato."""
    generator = np.random.default_rng(9000 + number)
    first, last = generator.uniform(80, 800, 2)
    steps = np.linspace(0, 1, 40)
    return first * (last / first) ** steps * 2 ** (generator.uniform(0, 0.5) / 12 * np.sin(20 * steps))


def tones() -> Iterator[Sample]:
    """Yield float32 [40, 1024]: frames of a gliding tone with overtones and noise at 16 kHz, of 32 + 64."""
    for number in range(32 + 64):
        generator = np.random.default_rng(9500 + number)
        frequencies, strengths = _frequencies(number), generator.uniform(0, 1, 8) / np.arange(1, 9)
        strengths[0] = 1
        times = np.arange(1024) / 16000
        phases = 2 * np.pi * frequencies[:, None] * times + generator.uniform(0, 6, (40, 1))
        sound = sum(s * np.sin(k * phases) for k, s in enumerate(strengths, 1))
        sound = sound + generator.normal(0, 10 ** generator.uniform(-3, -0.3), sound.shape)
        sound = (sound - sound.mean(axis=1, keepdims=True)) / sound.std(axis=1, keepdims=True)
        yield {"frames": sound.astype(np.float32)}


@Counted
def pitches_told(_: list[Array], found: list[Array], numbers: Array) -> Array:
    """Count the frames whose pitch is told within 50 cents."""
    right = []
    for number, scores in zip(32 + numbers, found, strict=True):
        told = 1997.3794084376191 + 20 * scores.argmax(axis=1)
        right.append(np.abs(told - 1200 * np.log2(_frequencies(int(number)) / 10)) < 50)
    return shares(right)


def chords() -> Iterator[Sample]:
    """Yield float32 [1, 43844, 1]: two seconds of struck strings at 22.05 kHz, of 32 + 64."""
    for number in range(32 + 64):
        generator = np.random.default_rng(10000 + number)
        sound, times = np.zeros(43844), np.arange(43844) / 22050
        for _ in range(int(generator.integers(3, 12))):
            start, pitch = (
                int(generator.integers(0, 36000)),
                27.5 * 2 ** (int(generator.integers(12, 72)) / 12),
            )
            length, overtones = 43844 - start, np.arange(1, 7)[:, None]
            waves = np.sin(2 * np.pi * pitch * overtones * times[:length]) / overtones**1.3
            decays = np.exp(-times[:length] * overtones * generator.uniform(0.5, 3))
            sound[start:] += generator.uniform(0.2, 1) * (waves * decays).sum(axis=0)
        sound = sound / np.abs(sound).max() * generator.uniform(0.2, 0.9) + _noise(generator, 43844, -4, -2.3)
        yield {"serving_default_input_2:0": sound.astype(np.float32)[None, :, None]}


@Counted
def notes_found(reference: list[Array], found: list[Array], _: Array) -> Array:
    """Count the frames and keys that are taken for played, FP32's being the truth: their quotient is F1."""
    played = [(a > NOTES, b > NOTES) for a, b in zip(reference, found, strict=True)]
    return np.array([[2 * (a & b).sum(), a.sum() + b.sum()] for a, b in played], float)
