"""A model that was balanced in a folder of its own, and is planned again once that folder is gone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from mode_models import normal, static, written

from qcompile.compiler.quantize import methods, search
from qcompile.compiler.quantize.int8.static import executed

BODY = """(float[n,16,4,4] x) => (float[n,4,4,4] y) {
    [first] a = Conv(x, w1) b = Relu(a)
    [second] c = Conv(b, w2) d = Relu(c)
    [third] y = Conv(d, w3) }"""


def test_a_balanced_model_is_planned_again_without_what_stays_in_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uneven = normal(16, 16, 1, 1) * np.logspace(-2, 2, 16, dtype=np.float32)[:, None, None, None]
    weights = {"w1": uneven, "w2": normal(16, 16, 1, 1), "w3": normal(4, 16, 1, 1)}
    model = written(tmp_path / "m.onnx", BODY, **weights)
    np.savez(tmp_path / "x.npz", x=normal(32, 16, 4, 4, scale=1.0))
    monkeypatch.setattr(search, "LEAST_GAIN_DB", -1000.0)  # balanced in any case

    def without_first(path: Path, planned: list[str], **options: bool) -> object:
        counts, missed = executed(path, planned, **options)
        return counts, {**missed, **({"first": "for a test"} if "first" in planned else {})}

    monkeypatch.setattr(methods, "executed", without_first)
    artifact = static(model, tmp_path)
    assert artifact.manifest.proof["equalized_pairs"]
    left = artifact.manifest.proof["left_in_float"]
    assert isinstance(left, dict)
    assert "first" in left
    graph = onnx.load(artifact.path).graph
    sources = {output: node.op_type for node in graph.node for output in node.output}
    (first,) = [node for node in graph.node if node.name == "first"]
    assert "DequantizeLinear" not in {sources.get(name) for name in first.input[1:]}
