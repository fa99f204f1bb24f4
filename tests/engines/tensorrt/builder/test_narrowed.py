"""A weight is narrowed where an engine holds it in half, and in float32 nowhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qcompile.engines.tensorrt.builder.narrowed import narrowed_layers

WEIGHT = np.random.default_rng(0).normal(0, 0.1, (64, 64)).astype(np.float32)


def product(path: Path, weight: np.ndarray = WEIGHT) -> Path:
    """One product with that weight."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "mm")],
        "product",
        [helper.make_tensor_value_info("x", 1, [1, 64])],
        [helper.make_tensor_value_info("y", 1, [1, 64])],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def engine(path: Path, *weights: np.ndarray) -> Path:
    """A plan that holds these, and other bytes."""
    path.write_bytes(b"plan" + b"".join(np.ascontiguousarray(one).tobytes() + b"\0" for one in weights))
    return path


@pytest.mark.parametrize(
    ("weights", "found"),
    [
        ((WEIGHT.astype(np.float16),), ["mm"]),
        ((WEIGHT.T.astype(np.float16),), ["mm"]),
        ((WEIGHT,), []),
        ((WEIGHT.T, WEIGHT.astype(np.float16)), []),
        ((), []),
    ],
)
def test_only_half_without_float32_is_found(
    weights: tuple[np.ndarray, ...], found: list[str], tmp_path: Path
) -> None:
    model, plan = product(tmp_path / "m.onnx"), engine(tmp_path / "m.engine", *weights)
    assert narrowed_layers(model, ["mm"], plan, "fp16") == found
    assert narrowed_layers(model, [], plan, "fp16") == []
    assert narrowed_layers(model, ["mm"], plan, "fp32") == []


def test_bfloat16_is_rounded_to_the_nearest(tmp_path: Path) -> None:
    values = helper.make_tensor("w", onnx.TensorProto.BFLOAT16, WEIGHT.shape, WEIGHT.ravel())
    stored = np.frombuffer(values.raw_data, np.uint16) if values.raw_data else np.array(values.int32_data)
    plan = engine(tmp_path / "m.engine", stored.astype(np.uint16))
    assert narrowed_layers(product(tmp_path / "m.onnx"), ["mm"], plan, "bf16") == ["mm"]


def test_values_that_are_all_alike_prove_nothing(tmp_path: Path) -> None:
    ones = np.ones_like(WEIGHT)
    plan = engine(tmp_path / "m.engine", ones.astype(np.float16))
    assert narrowed_layers(product(tmp_path / "m.onnx", ones), ["mm"], plan, "fp16") == []


def test_values_beyond_half_are_found_as_infinity(tmp_path: Path) -> None:
    large = WEIGHT * np.float32(1e5)
    large[0, 0] = 1e9
    with np.errstate(over="ignore"):
        plan = engine(tmp_path / "m.engine", large.astype(np.float16))
    assert narrowed_layers(product(tmp_path / "m.onnx", large), ["mm"], plan, "fp16") == ["mm"]
