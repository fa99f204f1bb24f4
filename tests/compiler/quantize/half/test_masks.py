"""FP16 looks for values that overflow; a mask of infinity is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from written_models import model_of

import qcompile


def test_a_mask_of_infinity_is_no_overflow(tmp_path: Path) -> None:
    """Scores of masked attention hold infinity by intent; a value beyond float16 beside it is still found."""
    generator = np.random.default_rng(0)
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    weight = generator.standard_normal((4, 4)).astype(np.float32)
    model = model_of(
        """(float[N,4,4] x) => (float[N,4,4] y) {
        s = MatMul(x, w) m = Add(s, mask) p = Softmax(m) b = Mul(p, large) c = Div(b, large)
        y = MatMul(c, w) }""",
        named=True, w=weight, mask=mask, large=np.array(1e6, np.float32),
    )  # fmt: skip
    onnx.save(model, tmp_path / "masked.onnx")
    np.savez(tmp_path / "x.npz", x=generator.standard_normal((3, 4, 4)).astype(np.float32))
    half = qcompile.quantize(
        tmp_path / "masked.onnx", tmp_path / "half.onnx", precision="fp16", target="tensorrt",
        data=str(tmp_path / "x.npz"),
    )  # fmt: skip
    assert any("65504" in reason for reason in half.manifest.proof["left_in_float"].values())  # type: ignore[attr-defined]
