"""examples/segmenter: a class for each pixel, height and width dynamic in multiples of 8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_examples import built, copied, trains, value

import qcompile
from qcompile.artifact import read_manifest
from qcompile.errors import QCompileError


def test_the_digits_are_segmented_at_every_size(tmp_path: Path) -> None:
    folder = copied("segmenter", tmp_path, "detector")
    report = built(folder, "onnx-int8-static", "rtx-fp16", samples=16)
    int8 = report.artifacts["onnx-int8-static"]
    exported = next((report.output / ".qcompile").glob("export-*/unet.onnx"))
    axes = read_manifest(exported).options["axes"]
    for name in ("height", "width"):
        assert {key: axes[name][key] for key in ("min", "max", "multiple")} == {
            "min": 32, "max": 128, "multiple": 8,
        }  # fmt: skip
    assert value(folder, int8, "miou", most=72) > 0.55
    with qcompile.load(int8, threads=1) as runner:
        assert runner.infer({"image": np.zeros((1, 1, 32, 120), np.float32)})["scores"].shape[2:] == (32, 120)
        with pytest.raises(QCompileError):
            runner.infer({"image": np.zeros((1, 1, 33, 64), np.float32)})


def test_training_runs(tmp_path: Path) -> None:
    trains(copied("segmenter", tmp_path, "detector"), tmp_path / "w.safetensors")
