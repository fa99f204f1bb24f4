"""Models with large weights."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto
from written_models import model_of

from qcompile.model.graph.graph_names import name_nodes
from qcompile.model.graph.onnx_file import MAX_INLINE_BYTES, Graph


def loaded(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The model with all weights read; that they were external leaves no trace."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    onnx.load_external_data_for_model(whole, str(folder))
    for tensor in whole.graph.initializer:
        if tensor.data_location == TensorProto.DEFAULT:
            tensor.ClearField("data_location")
    return whole


def assert_weightless(weightless: Graph, model: onnx.ModelProto, made: Collection[str] = ()) -> None:
    """A weightless model is the model without large raw data, and refers to where that lies in its file.

    Initializers that were `made` of others lie in no file.
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in stored]
    lowest = 4 if len(inputs) < len(model.graph.input) else 0  # initializers are no inputs from version 4 on
    assert list(weightless.model.graph.input) == inputs
    assert weightless.model.ir_version == max(lowest, model.ir_version)
    content = weightless.path.read_bytes()
    for light, whole in zip(weightless.model.graph.initializer, model.graph.initializer, strict=True):
        if len(whole.raw_data) > MAX_INLINE_BYTES and whole.name not in made:
            at = {entry.key: entry.value for entry in light.external_data}
            start, length = int(at["offset"]), int(at["length"])
            assert at["location"] == weightless.path.name
            assert content[start : start + length] == whole.raw_data
        else:
            assert light == whole
    folder = weightless.path.parent
    expected = loaded(model, folder)
    name_nodes(expected.graph)  # as reading does
    del expected.graph.input[:]
    expected.graph.input.extend(weightless.model.graph.input)
    expected.ir_version = weightless.model.ir_version
    assert loaded(weightless.model, folder) == expected


def large(*, rows: int = 64) -> onnx.ModelProto:
    """A model that computes, with weights on both sides of what is kept: x [n,rows] to y [n,8]."""
    generator = np.random.default_rng(0)
    shapes = {"w1": (rows, 48), "b1": (48,), "w2": (48, 8)}
    weights = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    text = f"""(float[n, {rows}] x) => (float[n, 8] y) {{
        m = MatMul(x, w1) h = Add(m, b1) r = Relu(h) y = MatMul(r, w2) }}"""
    return model_of(text, named=True, **weights)


def sha256(*contents: bytes) -> str:
    return f"sha256:{hashlib.sha256(b''.join(contents)).hexdigest()}"
