"""A branch may read what is made outside of it: its node stays behind what it reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

import qcompile

MODEL = """<ir_version: 8, opset_import: ["" : 18]>
branching (float[n,8] x) => (float[n,8] y) {
    h = MatMul(x, w)
    mean = ReduceMean <keepdims = 0> (h)
    c = Greater(mean, zero)
    z = If (c) <then_branch = one () => (float[n,8] a) { a = Mul(h, mean) },
                else_branch = two () => (float[n,8] b) { b = Neg(h) }>
    y = MatMul(z, v)
}"""


def test_a_model_with_a_branch_becomes_int8(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    model = parser.parse_model(MODEL)
    weights = {
        "w": generator.standard_normal((8, 8)),
        "v": generator.standard_normal((8, 8)),
        "zero": np.zeros(()),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(values.astype(np.float32), name) for name, values in weights.items()
    )
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=generator.standard_normal((8, 8)).astype(np.float32))
    ranges = qcompile.calibrate(tmp_path / "m.onnx", str(tmp_path / "x.npz"), tmp_path / "m.ranges")
    made = qcompile.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", ranges=ranges.path)
    onnx.checker.check_model(onnx.load(made.path))
