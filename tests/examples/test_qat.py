"""examples/qat: INT8 without training is useless, training restores it, and the loop is the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_examples import EXAMPLES, copied, modules, value

import qcompile


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied("qat", tmp_path_factory.mktemp("qat"), "mixed_precision")


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
