"""Folders of recordings, against soundfile, scipy and transformers' own feature extractors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from scipy.signal import resample_poly

from qcompile.data.batches import Data
from qcompile.errors import DataError, InvalidOption
from qcompile.model.preprocessing import AudioPreprocessing, as_json
from qcompile.tensors import TensorInfo


def info(
    *, name: str = "input_values", shape: tuple[int | str, ...] = ("n", "t"), **options: Any
) -> TensorInfo:
    said = AudioPreprocessing(**{"inputs": (name,), "rate_hz": 8000, "normalize": False, **options})
    return TensorInfo(name, "float32", shape, preprocessing=as_json(said))


def tone(
    path: Path, hz: float = 440.0, *, seconds: float = 0.05, rate: int = 8000, channels: int = 1
) -> np.ndarray:
    """Write a tone, and return what was written, float32 [time, channels]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    at = np.arange(int(seconds * rate)) / rate
    samples = np.stack([np.sin(2 * np.pi * hz * (1 + channel) * at) * 0.5 for channel in range(channels)], 1)
    soundfile.write(path, samples, rate, subtype="FLOAT" if path.suffix == ".wav" else None)
    return soundfile.read(path, dtype="float32", always_2d=True)[0]


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
def test_recordings_are_mono_and_padded_behind(tmp_path: Path, suffix: str) -> None:
    first = tone(tmp_path / f"a{suffix}", channels=2)
    second = tone(tmp_path / f"b{suffix}", seconds=0.03)
    [batch] = Data(str(tmp_path), [info()])
    values = batch.feeds["input_values"]
    assert (values.shape, values.dtype) == ((2, 400), np.float32)
    np.testing.assert_allclose(values[0], first.mean(1), atol=1e-7)
    np.testing.assert_array_equal(values[1], np.pad(second[:, 0], (0, 160)))
    assert batch.labels is None


def test_another_rate_is_resampled_by_scipys_polyphase_filter(tmp_path: Path) -> None:
    samples = tone(tmp_path / "a.wav", rate=44_100, seconds=0.1)[:, 0]
    [batch] = Data(str(tmp_path), [info()])
    expected = resample_poly(samples, 80, 441)
    np.testing.assert_array_equal(batch.feeds["input_values"][0], expected.astype(np.float32))
    # the tone is the same: its peak in the spectrum stays at 440 Hz
    spectrum = np.abs(np.fft.rfft(batch.feeds["input_values"][0]))
    assert abs(np.argmax(spectrum) * 8000 / len(expected) - 440) < 10


def test_long_recordings_are_cut_and_a_fixed_length_pads(tmp_path: Path) -> None:
    tone(tmp_path / "a.wav", seconds=0.5)
    [batch] = Data(str(tmp_path), [info(max_seconds=0.1)])
    assert batch.feeds["input_values"].shape == (1, 800)
    [batch] = Data(str(tmp_path), [info(shape=("n", 1, 6000))])
    assert batch.feeds["input_values"].shape == (1, 1, 6000)
    assert not batch.feeds["input_values"][0, 0, 4000:].any()


def test_normalizing_equals_wav2vec2s_extractor(tmp_path: Path) -> None:
    from transformers import Wav2Vec2FeatureExtractor

    waves = [tone(tmp_path / f"{number}.wav", 200 + 50 * number, seconds=0.04)[:, 0] for number in range(3)]
    theirs = Wav2Vec2FeatureExtractor(sampling_rate=8000, do_normalize=True)(
        waves, sampling_rate=8000, return_tensors="np", padding=True
    )
    [batch] = Data(str(tmp_path), [info(normalize=True)])
    np.testing.assert_allclose(batch.feeds["input_values"], theirs["input_values"], atol=1e-6)


@pytest.mark.parametrize("kind", ["Whisper", "Wav2Vec2"])
def test_a_feature_extractor_makes_what_it_makes_itself(tmp_path: Path, kind: str) -> None:
    import transformers

    options = {"chunk_length": 1} if kind == "Whisper" else {"return_attention_mask": True}
    extractor = getattr(transformers, f"{kind}FeatureExtractor")(**options)
    extractor.save_pretrained(tmp_path / "extractor")
    waves = [
        tone(tmp_path / "set" / f"{number}.wav", seconds=0.04 * number, rate=16_000)[:, 0]
        for number in (1, 2)
    ]
    padding = {"padding": True} if kind == "Wav2Vec2" else {}
    theirs = extractor(waves, sampling_rate=16_000, return_tensors="np", **padding)
    [name, *_] = theirs
    names = (name, "attention_mask") if kind == "Wav2Vec2" else (name,)
    said = AudioPreprocessing(inputs=names, extractor=str(tmp_path / "extractor"))
    infos = [
        TensorInfo(name, "float32", ("n", *["t"] * (theirs[name].ndim - 1)), preprocessing=as_json(said))
    ]
    infos += [TensorInfo("attention_mask", "int64", ("n", "t"))] if kind == "Wav2Vec2" else []
    [batch] = Data(str(tmp_path / "set"), infos)
    assert set(batch.feeds) == set(names)
    for one in names:
        np.testing.assert_allclose(batch.feeds[one], theirs[one], atol=1e-6)


def test_class_folders_or_metadata_are_labels(tmp_path: Path) -> None:
    for number, name in enumerate(("yes/a", "no/b", "yes/c")):
        tone(tmp_path / f"{name}.wav", 200 + number)

    def labels(query: str = "", **options: Any) -> Any:
        [batch] = Data(f"{tmp_path}{query}", [info(**options)])
        return None if batch.labels is None else batch.labels.tolist()

    assert labels() == [0, 1, 1]  # no/b, yes/a, yes/c
    assert labels(classes=("yes", "no")) == [1, 0, 0]
    assert labels(task="speech-recognition") is None
    rows = "file_name,label,text\nno/b.wav,7,go on\nyes/a.wav,4,stop\nyes/c.wav,7,007\n"
    (tmp_path / "metadata.csv").write_text(rows)
    assert labels() == [7, 4, 7]
    assert labels(task="speech-recognition") == ["go on", "stop", "007"]
    assert labels("?label=label", task="speech-recognition") == ["7", "4", "7"]
    first = Data(str(tmp_path), ()).digest()
    (tmp_path / "metadata.csv").write_text(rows.replace("yes/a.wav", "yes/d.wav"))
    assert Data(str(tmp_path), ()).digest() != first
    with pytest.raises(DataError, match=r"metadata\.csv: has no row for yes/a\.wav"):
        labels()


def test_what_is_no_recording_is_named(tmp_path: Path) -> None:
    tone(tmp_path / "a.wav")
    (tmp_path / "b.wav").write_bytes((tmp_path / "a.wav").read_bytes()[:20])
    with pytest.raises(
        DataError, match=r"b\.wav: cannot be decoded as a recording .*\n  hint: remove or replace"
    ):
        list(Data(str(tmp_path), [info()]))
    soundfile.write(tmp_path / "b.wav", np.zeros(0), 8000)
    with pytest.raises(DataError, match=r"b\.wav: holds no samples"):
        list(Data(str(tmp_path), [info()]))
    with pytest.raises(
        InvalidOption, match=r"how recordings become .* not known\n  hint: add \?preprocessing=hf:"
    ):
        list(Data(str(tmp_path), [TensorInfo("x", "float32", ("n", "t"))]))
    with pytest.raises(DataError, match=r"feature extractor no/such: cannot be loaded"):
        list(Data(str(tmp_path), [info(extractor="no/such")]))
