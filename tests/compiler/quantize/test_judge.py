"""Candidates are judged by the worst of their outputs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from written_models import model_of

from qcompile.compiler.quantize.request import QuantizeRequest
from qcompile.compiler.quantize.search import Judge
from qcompile.spec.artifacts import QuantizeSpec

FLOAT = "(float[N,64] x) => (float[N,64] y, float[N,64] z) { y = Add(x, a) z = Add(x, b) }"


@pytest.mark.parametrize("worse", ["a", "b"])
def test_a_graph_is_worth_as_much_as_its_worst_output(tmp_path: Path, worse: str) -> None:
    x = np.random.default_rng(0).choice([-1.0, 1.0], (48, 64)).astype(np.float32)  # of power 1
    np.savez(tmp_path / "x.npz", x=x)

    def model(**added: float) -> onnx.ModelProto:
        return model_of(FLOAT, **{name: np.full(1, added.get(name, 0.0), np.float32) for name in "ab"})

    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    judge = Judge(
        QuantizeRequest(path, onnx.load(path), "sha256:00", QuantizeSpec(data=str(tmp_path / "x.npz")))
    )
    better = "a" if worse == "b" else "b"
    judged = judge.written(lambda candidate: onnx.save(model(**{worse: 0.5, better: 0.1}), candidate))
    assert judged.snr_db == pytest.approx(10 * math.log10(1 / 0.25), abs=1e-3)
    assert {one.output: one.passed for one in judged.outputs} == {"y": worse != "a", "z": worse != "b"}
    assert [one.output for one in judged.failed] == ["y" if worse == "a" else "z"]
    assert judge.file(path).snr_db == math.inf
