"""Make a model's inputs of waveforms: as they are, normalized, or by a feature extractor of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, first_line
from ...model.moved import path_here
from ...model.preprocessing import AudioPreprocessing
from ...progress import quiet
from ...tensors import TensorInfo
from ..packages import require_package
from ..preparing import preprocessing_for
from ..spelling import Spelling


def audio_input(inputs: Sequence[TensorInfo], spelling: Spelling) -> AudioInput:
    """Return what makes the model's inputs of waveforms: as the spelling says, else as the model does.

    Raises:
        InvalidOption: If neither says how, or what they say is not for recordings.
    """
    names = "hf:NAME_OR_FOLDER (or FILE.json)"
    said = preprocessing_for(inputs, spelling, AudioPreprocessing, what="recordings", names=names)
    return AudioInput(said, inputs)


class AudioInput:
    """Makes inputs of a batch of waveforms. Shorter ones are padded with zeros behind, after normalizing."""

    def __init__(self, said: AudioPreprocessing, inputs: Sequence[TensorInfo]) -> None:
        self.said = said
        self._inputs = {one.name: one for one in inputs if one.name in said.inputs}
        self._extractor = load_extractor(said.extractor) if said.extractor else None

    def __call__(self, waveforms: Sequence[NDArray[np.float32]]) -> dict[str, Any]:
        """Return the feeds of a batch.

        Raises:
            DataError: If the extractor fails, or does not make an input.
        """
        arrays = self._waveforms(waveforms) if self._extractor is None else self._features(waveforms)
        feeds = {}
        for name in self.said.inputs:
            if name not in arrays:
                raise DataError(
                    f"feature extractor {self.said.extractor or 'none'}: makes {', '.join(arrays)}, and not "
                    f"input {name!r}",
                    hint="give the samples as arrays (.npz) or by a function",
                    tensor=name,
                )
            info = self._inputs.get(name)
            feeds[name] = np.asarray(arrays[name], info.dtype if info else None)
        return feeds

    def _waveforms(self, waveforms: Sequence[NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        name = next(one for one in self.said.inputs if one != "attention_mask")
        info = self._inputs.get(name)
        fixed = (
            info.shape[-1] if info is not None and info.shape and isinstance(info.shape[-1], int) else None
        )
        extent = fixed or max(map(len, waveforms))
        batch = np.zeros((len(waveforms), extent), np.float32)
        mask = np.zeros((len(waveforms), extent), np.int64)
        for row, waveform in enumerate(waveforms):
            cut = waveform[:extent]
            batch[row, : len(cut)] = normalized(cut) if self.said.normalize else cut
            mask[row, : len(cut)] = 1
        if info is not None and len(info.shape) == 3:  # a channel
            batch = batch[:, None]
        return {name: batch, "attention_mask": mask}

    def _features(self, waveforms: Sequence[NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        assert self._extractor is not None
        call = inspect.signature(self._extractor.__call__).parameters
        # Some pad to a length of their own; one that would not pad at all cannot make a batch.
        pads = "padding" in call and call["padding"].default in (False, None)
        options = {"padding": True} if pads else {}
        if "return_attention_mask" in call and "attention_mask" in self.said.inputs:
            options["return_attention_mask"] = True
        try:
            with quiet():
                return dict(
                    self._extractor(
                        list(waveforms), sampling_rate=self.said.rate_hz, return_tensors="np", **options
                    )
                )
        except Exception as error:
            raise DataError(
                f"feature extractor {self.said.extractor}: failed ({first_line(error)})"
            ) from error


def normalized(waveform: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a waveform with zero mean and unit variance, as Wav2Vec2's feature extractor makes it."""
    return np.asarray((waveform - waveform.mean()) / np.sqrt(waveform.var() + 1e-7), np.float32)


def load_extractor(name: str) -> Any:
    """Return a feature extractor from a folder, or from the local cache; its code is transformers' own.

    Raises:
        EngineUnavailable: If transformers is missing.
        DataError: If there is no such extractor here.
    """
    require_package("transformers", "transformers", "makes features of recordings")
    from transformers import AutoFeatureExtractor

    name = path_here(name)
    try:
        with quiet():
            return AutoFeatureExtractor.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # OSError, ValueError, KeyError, ...: as its files are missing or damaged
        raise DataError(
            f"feature extractor {name}: cannot be loaded ({first_line(error)})",
            hint="" if Path(name).is_dir() else "give a folder with preprocessor_config.json",
        ) from error
