"""A convolution whose weights are quantized says its kernel_shape, which TensorRT's parser needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from carried_graphs import quantized
from onnx import parser
from written_models import outputs_of

import qcompile
from qcompile.compiler.opset.plain_forms import write_kernel_shapes
from qcompile.model.graph import attribute

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
    tiny (float[1,2,6,6] x) => (float[1,2,6,6] y) { y = Conv <pads = [1, 2, 1, 2]> (x, w) }"""


def model_of() -> onnx.ModelProto:
    """A convolution of 3x5 that does not say so."""
    model = parser.parse_model(TEXT)
    weight = np.random.default_rng(1).standard_normal((2, 2, 3, 5)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model


def feeds() -> dict[str, Any]:
    return {"x": np.random.default_rng(0).standard_normal((1, 2, 6, 6)).astype(np.float32)}


def conv(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == "Conv")


def test_it_is_written_where_the_weights_are_behind_qdq() -> None:
    model = quantized(model_of(), feeds())
    (before,) = outputs_of(model, feeds())
    assert write_kernel_shapes(model)
    assert attribute(conv(model), "kernel_shape") == [3, 5]
    np.testing.assert_array_equal(outputs_of(model, feeds())[0], before)
    assert not write_kernel_shapes(model), "it is there now"


def test_weights_that_are_initializers_need_none() -> None:
    model = model_of()
    assert not write_kernel_shapes(model)
    assert attribute(conv(model), "kernel_shape") is None


@pytest.mark.parametrize("target", ["tensorrt-rtx", "onnxruntime"])
def test_it_is_lowered_for_tensorrt_alone(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qcompile.engines import build as building

    source = tmp_path / "q.onnx"
    onnx.save(quantized(model_of(), feeds()), source)
    seen: list[Any] = []

    def keep(request: Any) -> None:
        seen.append(attribute(conv(onnx.load(request.model)), "kernel_shape"))
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "build_engine", keep)
    gpus = {"gpus": ["sm86"]} if target == "tensorrt-rtx" else {}
    with pytest.raises(KeyboardInterrupt):
        qcompile.build(source, tmp_path / "m.engine", target=target, precision="int8", **gpus)
    assert seen == [[3, 5] if target == "tensorrt-rtx" else None]
