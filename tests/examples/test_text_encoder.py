"""examples/text_encoder: dynamic batch and length, an attention mask, an engine with a length profile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from small_examples import built, copied, modules, trains, value

import qcompile


def test_the_packages_are_named_in_every_precision(tmp_path: Path) -> None:
    folder = copied("text_encoder", tmp_path)
    made = built(folder, "onnx-fp32", "onnx-int8-dynamic", "rtx-fp16", samples=32).artifacts
    before = value(folder, made["onnx-fp32"], "top1", most=256)
    assert before > 0.55  # of four; the texts vary with the versions of the packages
    assert value(folder, made["onnx-int8-dynamic"], "top1", most=256) > before - 0.03
    with qcompile.load(made["onnx-fp32"], threads=1) as runner, modules(folder, "data") as (data,):
        texts = sorted(data.texts()[1], key=lambda sample: len(sample[0]))[:3]
        together = runner.infer(dict(zip(("ids", "mask"), data.padded(texts, 40)[:2], strict=True)))
        alone = [
            runner.infer(dict(zip(("ids", "mask"), data.padded([one])[:2], strict=True)))["logits"]
            for one in texts
        ]
    np.testing.assert_allclose(together["logits"], np.concatenate(alone), atol=1e-4)  # padding is not seen


def test_held_out_files_are_not_among_the_training_files() -> None:
    with modules(Path(__file__).parents[2] / "examples/text_encoder", "data") as (data,):
        training, held_out = ({tuple(ids) for ids, _ in part} for part in data.texts())
        assert len(held_out) >= 300
        assert len(training & held_out) < 0.02 * len(held_out)  # texts that begin alike
        assert {data.encode("numpy scipy np.sklearn")[0]} == {data.encode(".")[0]}


def test_training_runs(tmp_path: Path) -> None:
    trains(copied("text_encoder", tmp_path), tmp_path / "w.safetensors")
