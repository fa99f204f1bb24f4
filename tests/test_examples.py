"""The examples keep what they promise: recipes that are valid, an accuracy that INT8 does not lose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scoring import top_k

import qcompile
from qcompile.data.batches import Data
from qcompile.model.onnx_graph import read_weightless
from qcompile.tensors import parse_input

EXAMPLES = Path(__file__).parents[1] / "examples"
DIGITS = EXAMPLES / "digits"
INPUTS = (parse_input("image:[batch,3,32,32]"),)


def test_the_recipe_is_valid_and_asks_for_every_kind_of_artifact() -> None:
    recipe = qcompile.read_recipe(DIGITS / "recipe.toml")
    asked = {
        (one.target, one.precision, one.mode if one.precision == "int8" else "") for one in recipe.artifact
    }
    assert asked == {
        ("torchscript", "fp32", ""),
        ("onnxruntime", "fp32", ""),
        ("onnxruntime", "int8", "dynamic"),
        ("onnxruntime", "int8", "static"),
        ("openvino", "int8", "static"),
        ("tensorrt-rtx", "fp32", ""),
        ("tensorrt-rtx", "fp16", ""),
        ("tensorrt-rtx", "int8", "static"),
    }


def test_the_held_out_digits_are_not_among_the_calibration_digits() -> None:
    def rows(spec: str) -> Iterator[bytes]:
        for batch in Data(f"{DIGITS}/data.py:{spec}", INPUTS):
            yield from (image.tobytes() for image in batch.feeds["image"])

    calibration, evaluation = set(rows("calibration")), list(rows("evaluation"))
    assert len(evaluation) == 500
    assert not calibration & set(evaluation)


def accuracy(model: Path) -> float:
    """Top-1 over the held-out digits, by ONNX Runtime."""
    scores: list[Any] = []
    labels: list[Any] = []
    with qcompile.load(model, threads=2) as runner:
        for batch in Data(f"{DIGITS}/data.py:evaluation", read_weightless(model).io.inputs):
            scores.append(runner.infer(batch.feeds)["logits"])
            labels.append(batch.labels)
    return top_k(scores, labels, 1)


def test_static_int8_loses_at_most_half_a_point_with_every_method(tmp_path: Path) -> None:
    model = qcompile.export(
        f"{DIGITS}/model.py:build", tmp_path / "m.onnx", inputs=["image:[batch,3,32,32]"], outputs=["logits"]
    ).path
    before = accuracy(model)
    assert before >= 0.985
    ranges = qcompile.calibrate(model, f"{DIGITS}/data.py:calibration", tmp_path / "m.ranges").path
    for target in ("onnxruntime", "tensorrt"):
        for method in ("minmax", "percentile:99.99", "entropy"):
            path = tmp_path / f"{target}-{method.partition(':')[0]}.onnx"
            qcompile.quantize(model, path, ranges=ranges, target=target, method=method)  # type: ignore[arg-type]
            assert accuracy(path) >= before - 0.005, (target, method)


def test_the_committed_weights_are_small_and_plain() -> None:
    weights = DIGITS / "resnet20.safetensors"
    assert weights.stat().st_size < 1_300_000
    from safetensors.numpy import load_file

    tensors = load_file(weights)
    assert sum(array.size for array in tensors.values()) > 270_000
    assert all(np.isfinite(array).all() for array in tensors.values())
