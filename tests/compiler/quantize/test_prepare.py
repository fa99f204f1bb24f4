"""What the quantizers need is there, and the prepared model still computes the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from qcompile.compiler.quantize.prepare import prepare_graph, upgrade_opset
from qcompile.errors import UnsupportedOperator
from qcompile.model.onnx_file import opset


def read(text: str, *, ir_version: int = 8, opset: int = 17) -> onnx.ModelProto:
    """A checked model from ONNX's text form, without its header."""
    model = parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}]> tiny {text}')
    onnx.checker.check_model(model)
    return model


def run(model: onnx.ModelProto, x: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Run a model in ONNX Runtime on its only input."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {session.get_inputs()[0].name: x}))


def normal(*shape: int) -> NDArray[np.float32]:
    """Normal float32 values."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def initializers(model: onnx.ModelProto) -> dict[str, NDArray[np.float32]]:
    """Name to values of the stored tensors."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_an_old_opset_is_raised_to_13_and_computes_the_same(tiny: Callable[..., onnx.ModelProto]) -> None:
    model = tiny("residual", opset=9)
    ready = prepare_graph(model)
    assert opset(ready) == 13
    assert ready.ir_version >= 8
    x = normal(3, 4, 8, 8)
    np.testing.assert_allclose(run(ready, x)[0], run(model, x)[0], rtol=1e-5, atol=1e-6)


def test_an_operator_that_cannot_be_raised_is_named() -> None:
    model = parser.parse_model(
        '<ir_version: 3, opset_import: ["" : 8]> tiny (float[2,3] x) => (float[2,3] y) { y = GoneByNow(x) }'
    )
    with pytest.raises(UnsupportedOperator, match=r"opset 8 cannot be converted to 13: .*GoneByNow"):
        upgrade_opset(model, 13)


def test_initializers_are_no_inputs_any_more() -> None:
    model = read(
        "(float[2,3] x, float[3] w) => (float[2,3] y) <float[3] w = {1,2,3}> { y = Mul(x, w) }",
        ir_version=3,
        opset=9,
    )
    ready = prepare_graph(model)
    assert [value.name for value in ready.graph.input] == ["x"]
    onnx.checker.check_model(ready)


def test_every_node_gets_a_name_of_its_own() -> None:
    model = read("(float[2,3] x) => (float[2,3] y) { a = Relu(x) b = Relu(a) c = Abs(b) y = Abs(c) }")
    model.graph.node[0].name = model.graph.node[1].name = "same"
    names = [node.name for node in prepare_graph(model).graph.node]
    assert names[0] == "same"
    assert all(names)
    assert len(set(names)) == 4


def test_a_sum_of_two_becomes_an_add_and_a_sum_of_three_stays() -> None:
    model = read("(float[2,3] x) => (float[2,3] y) { a = Relu(x) b = Sum(a, x) y = Sum(a, b, x) }")
    ready = prepare_graph(model)
    assert [node.op_type for node in ready.graph.node] == ["Relu", "Add", "Sum"]
    np.testing.assert_array_equal(run(ready, normal(2, 3))[0], run(model, normal(2, 3))[0])


def test_a_bias_read_by_several_nodes_is_copied_for_each() -> None:
    model = read(
        """(float[1,2,4,4] x) => (float[1,2,4,4] z) <float[2] b = {0.5,-1}, float[2,2,1,1] w = {1,2,3,4}>
        { a = Conv(x, w, b) c = Conv(a, w, b) y = Conv(c, w, b) z = Relu(y) }"""
    )
    ready = prepare_graph(model)
    biases = [node.input[2] for node in ready.graph.node if node.op_type == "Conv"]
    assert len(set(biases)) == 3
    values = initializers(ready)
    for name in biases:
        np.testing.assert_array_equal(values[name], [0.5, -1])
    x = normal(1, 2, 4, 4)
    np.testing.assert_array_equal(run(ready, x)[0], run(model, x)[0])


def test_inferred_types_and_shapes_are_written_in(tiny: Callable[..., onnx.ModelProto]) -> None:
    known = {value.name: value.type.tensor_type for value in prepare_graph(tiny("residual")).graph.value_info}
    assert set(known) >= {"c1", "r1", "c2", "a", "r2", "p", "f"}
    assert [dim.dim_param or dim.dim_value for dim in known["c1"].shape.dim] == ["batch", 4, 8, 8]
