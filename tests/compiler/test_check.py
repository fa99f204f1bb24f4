"""A graph for another runtime is judged as it is written: in floats that Q/DQ pairs round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from mode_models import normal, static, written

from qcompile.compiler.check import OnnxReference
from qcompile.model.session import make_session, optimize_file, session_options


@pytest.mark.parametrize("target", ["openvino", "tensorrt"])
def test_pairs_stay_pairs_and_compute_what_they_say(target: str, tmp_path: Path) -> None:
    model = written(
        tmp_path / "m.onnx",
        "(float[n,16] x) => (float[n,16] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, v) }",
        w=normal(16, 16),
        v=normal(16, 16, seed=1),
    )
    x = normal(64, 16)
    np.savez(tmp_path / "x.npz", x=x)
    made = static(model, tmp_path, target=target).path
    plain = make_session(made, session_options(optimize=False)).run(None, {"x": x})[0]
    np.testing.assert_allclose(OnnxReference(made, integers=False)({"x": x})[0], plain, rtol=1e-5, atol=1e-6)

    optimized = tmp_path / "optimized.onnx"
    optimize_file(made, optimized, session_options(integers=False), without=["WeightBiasQuantization"])
    kinds = [node.op_type for node in onnx.load(optimized).graph.node]
    assert kinds.count("QuantizeLinear") == 2  # of the activations; the weights' are computed once
    assert not any(kind.startswith("QLinear") or "Integer" in kind for kind in kinds)
    assert onnxruntime.InferenceSession(optimized, providers=["CPUExecutionProvider"])
