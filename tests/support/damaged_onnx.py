"""A small ONNX model to damage, and what the readers say of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from written_models import text_model

from qcompile.errors import ModelError
from qcompile.model.graph.onnx_file import read_graph, read_weightless


def net() -> onnx.ModelProto:
    """A product, a constant, an If whose branches read outer tensors."""
    return text_model(
        """(float[batch,4] x, bool c) => (float[batch,4] y) {
            m = MatMul (x, w)
            k = Constant <value = float {2.0}> ()
            s = Mul (m, k)
            z = own.act (s)
            y = If (c) <
                then_branch = yes () => (float[n,4] t) { t = Relu (z) },
                else_branch = no () => (float[n,4] e) { e = Add (z, x) }
            >
        }
        <opset_import: ["" : 17, "own" : 1], domain: "own"> act (u) => (v) { v = Sigmoid (u) }""",
        also=', "own" : 1',
        w=np.arange(16, dtype=np.float32).reshape(4, 4),
    )


def refused(model: onnx.ModelProto, path: Path) -> str:
    """What both readers say; they say the same."""
    path.write_bytes(model.SerializeToString())
    said = []
    for read in (read_graph, read_weightless):
        with pytest.raises(ModelError) as caught:
            read(path)
        assert caught.value.hint
        assert caught.value.data["file"] == path
        said.append(caught.value.message)
    assert said[0] == said[1]
    assert said[0].startswith(f"{path}: ")
    return said[0].removeprefix(f"{path}: ")
