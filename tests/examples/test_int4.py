"""examples/int4: weights of 4 bits on ONNX Runtime and TensorRT-RTX, judged by perplexity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from small_examples import EXAMPLES, built, copied, modules, value

from qcompile.artifact import read_manifest


def test_int4_weights_keep_the_perplexity(tmp_path: Path) -> None:
    folder = copied("int4", tmp_path)
    names = ("onnx-fp32", "onnx-int4-rtn", "onnx-int4-gptq", "rtx-int4-gptq")
    made = built(folder, *names, samples=32).artifacts
    perplexity = {name: value(folder, made[name], "perplexity", most=128) for name in names[:3]}
    assert 3 < perplexity["onnx-fp32"] < 6
    for name in names[1:3]:
        assert perplexity["onnx-fp32"] < perplexity[name] < 1.15 * perplexity["onnx-fp32"]
        assert made[name].stat().st_size < 0.25 * made["onnx-fp32"].stat().st_size
    assert "int4" in str(read_manifest(made["rtx-int4-gptq"]).proof["layers_by_precision"])


def test_training_and_evaluation_share_no_paragraph(tmp_path: Path) -> None:
    with modules(copied("int4", tmp_path), "train", "data", "model") as (train, data, model):
        (window, labels), *_ = data.evaluation()
        np.testing.assert_array_equal(window, labels)
        text = data.training().tobytes()
        assert sum(row.tobytes() in text for row in window) <= 1  # a phrase may occur twice
        assert data.encode("a~\n\t").tolist() == [65, 94, 95, 96]
        network = model.Transformer()
        train.train(network, 2)
        later = torch.zeros(1, data.WINDOW, dtype=torch.int64)
        changed = later.clone()
        changed[0, 40:] = 7
        with torch.no_grad():  # what comes later changes nothing before it
            torch.testing.assert_close(network(later)[:, :40], network(changed)[:, :40])
    assert (EXAMPLES / "int4/transformer.safetensors").stat().st_size <= 600_000
