"""Recordings as a model's inputs: decoded, at the model's rate, then its feature extractor or the waveform.

Channels are averaged. Another rate is changed by scipy's polyphase filter (`scipy.signal.resample_poly`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, first_line
from ..machine_memory import require_address_space
from ..model.preprocessing import AudioPreprocessing
from ..progress import quiet
from ..tensors import TensorInfo
from .preparing import preprocessing_for
from .samples import require_package
from .spelling import Spelling
from .text import feeds_of, load_processor

_SCIPY_BYTES = 512 << 20
_RATES_HZ = (100, 768_000)
"""Of recordings; the filter of another rate would take gigabytes."""
_FRAMES_AT_ONCE = 1 << 14
_LARGEST_FACTOR = 50_000


def decode_audio(
    source: Path | IO[bytes], rate_hz: int, max_seconds: float, where: str
) -> NDArray[np.float32]:
    """Return the samples of a recording, from -1 to 1, cut to so many seconds."""
    require_package("soundfile", "soundfile", "reads recordings")
    import soundfile

    parts = [np.zeros(0, np.float32)]
    try:
        with soundfile.SoundFile(source) as file:
            own_hz = file.samplerate
            if not _RATES_HZ[0] <= own_hz <= _RATES_HZ[1]:
                least, most = _RATES_HZ
                raise ValueError(f"it has {own_hz} samples per second; {least} to {most} are required")
            frames = math.ceil(max_seconds * own_hz)
            while frames > 0:  # a header may promise more than there is
                part = file.read(min(frames, _FRAMES_AT_ONCE), dtype="float32", always_2d=True)
                if not len(part):
                    break
                parts.append(part.mean(1, dtype=np.float32))
                frames -= len(part)
    except Exception as error:  # LibsndfileError, which is a RuntimeError, TypeError, ...
        raise DataError(
            f"{where}: cannot be decoded as a recording ({first_line(error)})",
            hint="remove or replace the file",
            file=where,
        ) from error
    samples = np.concatenate(parts)
    if not len(samples):
        raise DataError(f"{where}: holds no samples", hint="remove or replace the file", file=where)
    return _resampled(samples, own_hz, rate_hz)[: round(max_seconds * rate_hz)]


def _resampled(samples: NDArray[np.float32], own_hz: int, rate_hz: int) -> NDArray[np.float32]:
    if own_hz == rate_hz:
        return samples
    require_package("scipy", "scipy", "resamples recordings")
    require_address_space(_SCIPY_BYTES, "load scipy, which resamples recordings")
    from scipy.signal import resample_poly

    ratio = resampling_ratio(own_hz, rate_hz)
    return np.asarray(resample_poly(samples, ratio.numerator, ratio.denominator), np.float32)


def resampling_ratio(own_hz: int, rate_hz: int) -> Fraction:
    """Return the ratio of two rates; one without a common factor is rounded, which keeps the filter short."""
    if own_hz > rate_hz:
        return Fraction(rate_hz, own_hz).limit_denominator(_LARGEST_FACTOR)
    return 1 / Fraction(own_hz, rate_hz).limit_denominator(_LARGEST_FACTOR)


def audio_input(inputs: Sequence[TensorInfo], spelling: Spelling) -> AudioInput:
    """Return what makes the model's inputs of waveforms: as the spelling says, else as the model does."""
    names = "hf:NAME_OR_FOLDER (or FILE.json)"
    return AudioInput(
        preprocessing_for(inputs, spelling, AudioPreprocessing, what="recordings", names=names), inputs
    )


class AudioInput:
    """Makes inputs of a batch of waveforms. Shorter ones are padded with zeros behind, after normalizing."""

    def __init__(self, preprocessing: AudioPreprocessing, inputs: Sequence[TensorInfo]) -> None:
        self.preprocessing = preprocessing
        self._inputs = {tensor.name: tensor for tensor in inputs if tensor.name in preprocessing.inputs}
        name = preprocessing.extractor
        self._extractor = load_processor("AutoFeatureExtractor", name, "feature extractor") if name else None

    def __call__(self, waveforms: Sequence[NDArray[np.float32]]) -> dict[str, Any]:
        """Return the feeds of a batch."""
        arrays = self._waveforms(waveforms) if self._extractor is None else self._features(waveforms)
        dtypes = {name: tensor.dtype for name, tensor in self._inputs.items()}
        processor = f"feature extractor {self.preprocessing.extractor or 'none'}"
        return feeds_of(arrays, self.preprocessing.inputs, dtypes, processor)

    def _waveforms(self, waveforms: Sequence[NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        name = next(name for name in self.preprocessing.inputs if name != "attention_mask")
        shape = self._inputs[name].shape if name in self._inputs else ()
        extent = shape[-1] if shape and isinstance(shape[-1], int) else max(map(len, waveforms))
        batch = np.zeros((len(waveforms), extent), np.float32)
        mask = np.zeros((len(waveforms), extent), np.int64)
        for row, waveform in enumerate(waveforms):
            cut = waveform[:extent]
            batch[row, : len(cut)] = normalized(cut) if self.preprocessing.normalize else cut
            mask[row, : len(cut)] = 1
        return {name: batch[:, None] if len(shape) == 3 else batch, "attention_mask": mask}

    def _features(self, waveforms: Sequence[NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        assert self._extractor is not None
        call = inspect.signature(self._extractor.__call__).parameters
        # Some pad to a length of their own; one that would not pad at all cannot make a batch.
        options = {"padding": True} if "padding" in call and not call["padding"].default else {}
        if "return_attention_mask" in call and "attention_mask" in self.preprocessing.inputs:
            options["return_attention_mask"] = True
        rate = self.preprocessing.rate_hz
        try:
            with quiet():
                return dict(
                    self._extractor(list(waveforms), sampling_rate=rate, return_tensors="np", **options)
                )
        except Exception as error:
            raise DataError(
                f"feature extractor {self.preprocessing.extractor}: failed ({first_line(error)})"
            ) from error


def normalized(waveform: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a waveform with zero mean and unit variance, as Wav2Vec2's feature extractor makes it."""
    return np.asarray((waveform - waveform.mean()) / np.sqrt(waveform.var() + 1e-7), np.float32)
