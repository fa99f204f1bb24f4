"""examples/qat: INT8 alone is useless; training restores it, and `tune` finds the layer that ruins it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_examples import EXAMPLES, copied, modules, value

import qcompile
from qcompile.core.processor import isa_here
from qcompile.model.graph.saturating_kernels import saturating_kernels
from qcompile.pipeline.recipe.recipe import read_recipe


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied("qat", tmp_path_factory.mktemp("qat"))


def test_training_restores_what_calibration_alone_loses(example: Path, tmp_path: Path) -> None:
    with modules(example, "build") as (build,):
        graphs = build.graphs(tmp_path)
    accuracy = {}
    for name in ("ptq", "qat", "qat-teacher"):
        built = qcompile.build(
            graphs[name], tmp_path / f"{name}.onnx", target="openvino", precision="int8", allow_loss=True
        )
        assert built.manifest.proof["layers_by_precision"]["int8"] == {"Conv": 3, "Gemm": 1}  # type: ignore[index]
        accuracy[name] = value(example, built.path, "top1", most=300)
    assert accuracy["ptq"] < 0.3
    assert accuracy["qat"] > 0.93
    assert accuracy["qat-teacher"] > 0.93


@pytest.mark.parametrize("taught", [False, True])
def test_the_training_loop_changes_what_is_converted(example: Path, taught: bool) -> None:
    with modules(example, "train", "model") as (train, model):
        network = model.prepared()
        before = network.state_dict()["spectrum.weight"].clone()
        train.train(network, train.on_teacher(model.build()) if taught else train.on_labels, steps=3)
        assert not torch.equal(before, network.state_dict()["spectrum.weight"])
        scores = train.qat.convert(network)(torch.zeros(2, 1, 1024))
    assert scores.shape == (2, 10)
    for name in ("labels", "teacher"):
        assert (EXAMPLES / f"qat/{name}.safetensors").stat().st_size <= 150_000


@pytest.mark.usefixtures("short_blocks")
def test_tune_leaves_the_spectrum_in_float_and_the_engine_takes_the_mix(
    example: Path, tmp_path: Path
) -> None:
    data = f"{example}/data.py"
    tuned = qcompile.tune(
        f"{example}/tones.py:build", f"{data}:evaluation", tmp_path / "tuned",
        calibration=f"{data}:calibration", max_drop=0.5, targets=["onnxruntime"],
        inputs=["wave:[batch,1,1024]"], threads=1, samples=200, max_time_s=0.5,
    )  # fmt: skip
    worst, *others = tuned.damage["onnxruntime"]
    # Where pairs of weights are fitted to 16 bits, their steps are up to twice as large: 6 dB.
    least_db = 24 if saturating_kernels("onnxruntime", isa_here()) else 30
    assert worst.operator == "Conv"
    assert worst.snr_db < 10 < least_db < min(layer.snr_db for layer in others)
    assert tuned.trials["onnxruntime-int8"].drop > 10
    mixes = [trial for trial in tuned.trials.values() if trial.precision == "int8" and trial.drop <= 0.5]
    assert any(trial.in_float == frozenset([worst.layer]) for trial in mixes)
    assert tuned.best.drop <= 0.5
    assert read_recipe(tuned.recipe).artifact
    built = qcompile.build(
        tmp_path / "tuned/model.onnx", tmp_path / "mix.engine", target="tensorrt-rtx", precision="int8",
        ranges=tmp_path / "tuned/model.ranges", layers={worst.layer: "fp32"},
        float_precision="fp16", gpus=["sm89"],
    )  # fmt: skip
    assert built.manifest.proof["layers_by_precision"] == {
        "int8": {"CONVOLUTION": 2}, "fp16": {"MATRIX_MULTIPLY": 1}, "fp32": {"CONVOLUTION": 1},
    }  # fmt: skip
