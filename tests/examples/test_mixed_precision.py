"""examples/mixed_precision: one layer ruins INT8; `tune` finds it and leaves it in float."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_examples import copied, value

import qcompile
from qcompile.model.saturating_kernels import saturating_kernels
from qcompile.pipeline.recipe import read_recipe
from qcompile.processor import isa_here

pytestmark = pytest.mark.usefixtures("short_blocks")


def test_tune_leaves_the_spectrum_in_float_and_the_engine_takes_the_mix(tmp_path: Path) -> None:
    folder = copied("mixed_precision", tmp_path)
    data = f"{folder}/data.py"
    tuned = qcompile.tune(
        f"{folder}/model.py:build", f"{data}:evaluation", tmp_path / "tuned",
        calibration=f"{data}:calibration",
        max_drop=0.5, targets=["onnxruntime"], inputs=["wave:[batch,1,1024]"], threads=1, samples=200,
        max_time_s=0.5,
    )  # fmt: skip
    first, *others = tuned.damage["onnxruntime"]
    assert first.operator == "Conv"
    # Where pairs of weights are fitted to 16 bits, their steps are up to twice as large: 6 dB.
    least_db = 24 if saturating_kernels("onnxruntime", isa_here()) else 30
    assert first.snr_db < 10 < least_db < min(one.snr_db for one in others)
    assert tuned.trials["onnxruntime-int8"].drop > 10
    mixes = [one for one in tuned.trials.values() if one.precision == "int8" and one.drop <= 0.5]
    assert any(one.in_float == frozenset([first.layer]) for one in mixes)
    assert tuned.best.drop <= 0.5
    assert read_recipe(tuned.recipe).artifact
    assert (
        json.loads((tmp_path / "tuned/tune.json").read_text())["damage"]["onnxruntime"][0]["layer"]
        == first.layer
    )
    built = qcompile.build(
        tmp_path / "tuned/model.onnx", tmp_path / "mix.engine", target="tensorrt-rtx", precision="int8",
        ranges=tmp_path / "tuned/model.ranges", layers={first.layer: "fp32"},
        float_precision="fp16", gpus=["sm89"],
    )  # fmt: skip
    layers = built.manifest.proof["layers_by_precision"]
    assert layers["int8"] == {"CONVOLUTION": 2}  # type: ignore[index]
    assert layers["fp16"] == {"MATRIX_MULTIPLY": 1}  # type: ignore[index]
    assert layers["fp32"] == {"CONVOLUTION": 1}  # type: ignore[index]
    assert value(folder, tmp_path / "tuned/model.onnx", "top1", most=200) > 0.98
