"""examples/speech: recordings of any length, CTC scores decoded by the vocabulary in the file."""

from __future__ import annotations

import csv
import wave
from pathlib import Path

import numpy as np
from small_examples import built, copied, modules, trains, value

from qcompile.artifact import read_manifest


def test_the_digits_are_heard_in_float_and_int8(tmp_path: Path) -> None:
    folder = copied("speech", tmp_path)
    made = built(folder, "onnx-fp32", "onnx-int8-static", samples=32).artifacts
    io = read_manifest(made["onnx-fp32"]).io
    assert io is not None
    assert io.inputs[0].shape == ("batch", "samples")
    for path in made.values():
        assert value(folder, path, "cer") < 0.05


def test_the_recordings_are_written_as_wav_files(tmp_path: Path) -> None:
    folder = copied("speech", tmp_path)
    with modules(folder, "data") as (data,):
        data.write_wavs(tmp_path / "wavs")
        longest, texts = next(data.evaluation())
    with open(tmp_path / "wavs/texts.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 160
    assert rows[0]["text"] == texts[0]
    with wave.open(str(tmp_path / "wavs" / rows[0]["file"]), "rb") as recording:
        assert recording.getframerate() == 8000
        samples = np.frombuffer(recording.readframes(recording.getnframes()), "<i2") / 32767
    np.testing.assert_allclose(samples, np.clip(longest[0], -1, 1), atol=1e-4)


def test_training_runs(tmp_path: Path) -> None:
    trains(copied("speech", tmp_path), tmp_path / "w.safetensors")
