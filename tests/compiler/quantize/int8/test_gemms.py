"""Products of two axes in front of an Add: ONNX Runtime executes every one of them as an integer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from mode_models import normal, run, snr_db, static, written

LAYERS = {
    "two Linear layers": (
        "a = MatMul(x, w) b = Add(a, p) c = Relu(b) d = MatMul(c, v) y = Add(q, d)",
        {"p": (8,), "q": (8,)},
        {"QGemm": 2},
    ),
    "one bias for two": (
        "a = MatMul(x, w) b = Add(a, p) c = Relu(b) d = MatMul(c, v) y = Add(d, p)",
        {"p": (8,)},
        {"QGemm": 2},
    ),
    "a bias of two axes": ("a = MatMul(x, w) y = Add(a, p)", {"p": (1, 8)}, {"QGemm": 1}),
    "one number for all": ("a = MatMul(x, w) y = Add(a, p)", {"p": (1,)}, {"QGemm": 1}),
    "a residual": ("a = MatMul(x, w) b = Add(a, x) y = MatMul(b, v)", {}, {"MatMulIntegerToFloat": 2}),
    "a value read twice": ("y = MatMul(x, w) z = Add(y, p)", {"p": (8,)}, {"MatMulIntegerToFloat": 1}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_product_is_executed_as_an_integer(name: str, tmp_path: Path) -> None:
    nodes, biases, expected = LAYERS[name]
    outputs = "float[n,8] y" + (", float[n,8] z" if "z =" in nodes else "")
    weights = {key: normal(*shape) for key, shape in {"w": (8, 8), "v": (8, 8), **biases}.items()}
    weights = {key: array for key, array in weights.items() if key in nodes}
    model = written(tmp_path / "m.onnx", f"(float[n,8] x) => ({outputs}) {{ {nodes} }}", **weights)
    x = normal(32, 8)
    np.savez(tmp_path / "x.npz", x=x)
    artifact = static(model, tmp_path)
    executed = artifact.manifest.proof["as_executed"]
    assert executed == {"int8": expected, "fp16": {}, "bf16": {}, "fp32": {}}
    assert artifact.manifest.proof["left_in_float"] == {}
    assert snr_db(run(model, x=x), run(artifact.path, x=x)) > 30


def test_the_bias_of_a_joined_product_is_corrected_as_any_other(tmp_path: Path) -> None:
    nodes, biases, _ = LAYERS["two Linear layers"]
    weights = {key: normal(*shape) for key, shape in {"w": (8, 8), "v": (8, 8), **biases}.items()}
    model = written(tmp_path / "m.onnx", f"(float[n,8] x) => (float[n,8] y) {{ {nodes} }}", **weights)
    np.savez(tmp_path / "x.npz", x=normal(32, 8))
    tried = {one["tried"]: one for one in static(model, tmp_path).manifest.proof["search"]}  # type: ignore[attr-defined]
    assert "refused" not in tried["corrected biases"]


def test_a_product_that_is_excluded_keeps_its_add(tmp_path: Path) -> None:
    nodes, biases, _ = LAYERS["two Linear layers"]
    nodes = nodes.replace("a = MatMul", "[first] a = MatMul")
    weights = {key: normal(*shape) for key, shape in {"w": (8, 8), "v": (8, 8), **biases}.items()}
    model = written(tmp_path / "m.onnx", f"(float[n,8] x) => (float[n,8] y) {{ {nodes} }}", **weights)
    np.savez(tmp_path / "x.npz", x=normal(32, 8))
    artifact = static(model, tmp_path, exclude=["first"])
    operators = {node.name: node.op_type for node in onnx.load(artifact.path).graph.node}
    assert operators["first"] == "MatMul"
    assert artifact.manifest.proof["left_in_float"] == {"first": "excluded by 'first'"}
