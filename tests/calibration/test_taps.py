from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

from qcompile.calibration.taps import QUANTIZABLE, choose_taps, tapped

Tiny = Callable[..., onnx.ModelProto]


def model(body: str, signature: str, *, opset: int = 17) -> onnx.ModelProto:
    """A model from ONNX's text form: `signature` is "(inputs) => (outputs)"."""
    made = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {signature} {{ {body} }}')
    onnx.checker.check_model(made)
    return made


def test_activations_are_tapped_in_the_models_order_and_weights_are_not(tiny: Tiny) -> None:
    taps = choose_taps(tiny("residual"))
    assert taps.names == ("x", "c1", "r1", "c2", "a", "r2", "p", "f", "y")
    assert taps.skipped == {}


def test_constants_computed_inside_the_graph_are_not_tapped() -> None:
    made = model(
        """
        one = Constant <value = float[1] {1.0}> ()
        two = Add(one, one)
        y = Add(x, two)
        """,
        "(float[n] x) => (float[n] y)",
    )
    assert choose_taps(made).names == ("x", "y")


def test_tensors_between_other_operators_are_left_alone() -> None:
    made = model("a = Exp(x) b = Log(a) y = Relu(b)", "(float[n] x) => (float[n] y)")
    assert choose_taps(made).names == ("b", "y")


def test_an_integer_tensor_is_skipped_with_its_reason() -> None:
    made = model("y = Gather(x, ids)", "(float[n, 4] x, int64[m] ids) => (float[m, 4] y)")
    taps = choose_taps(made)
    assert taps.names == ("x", "y")
    assert taps.skipped == {"ids": "it is int64, not a float"}


def test_a_tensor_of_unknown_type_is_skipped_naming_the_node() -> None:
    nodes = [
        helper.make_node("Mystery", ["x"], ["m"], "mystery", domain="custom"),
        helper.make_node("Relu", ["m"], ["r"], "relu"),
        helper.make_node("Identity", ["x"], ["y"], "identity"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [2])], [value("y", TensorProto.FLOAT, [2])]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("custom", 1)]
    taps = choose_taps(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    assert taps.names == ("x", "y")
    assert taps.skipped["m"] == "its type cannot be inferred (at Relu 'relu')"


def test_an_operator_of_another_domain_is_not_the_one_of_that_name() -> None:
    graph = tiny_custom("Relu", "custom")
    assert choose_taps(graph).names == ()
    assert choose_taps(tiny_custom("Relu", "ai.onnx")).names == ("x", "y")


def tiny_custom(op_type: str, domain: str) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"], "node", domain=domain)],
        "g",
        [value("x", TensorProto.FLOAT, [2])],
        [value("y", TensorProto.FLOAT, [2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_optional_inputs_left_out_are_no_tensors() -> None:
    made = model(
        'y = Resize <mode = "nearest"> (x, , scales)',
        "(float[1, 1, n, n] x, float[4] scales) => (float[1, 1, m, m] y)",
    )
    assert "" not in choose_taps(made).names
    assert choose_taps(made).skipped == {}


@pytest.mark.parametrize(
    ("dtype", "elem"), [("float16", TensorProto.FLOAT16), ("double", TensorProto.DOUBLE)]
)
def test_half_and_double_activations_are_tapped_in_their_type(dtype: str, elem: int) -> None:
    made = model("a = Relu(x) y = Neg(a)", f"({dtype}[n] x) => ({dtype}[n] y)")
    taps = choose_taps(made)
    assert taps.names == ("x", "a")
    assert [value.type.tensor_type.elem_type for value in tapped(made, taps).graph.output] == [elem]


@pytest.mark.parametrize("name", ["residual", "mlp", "elementwise"])
def test_the_tapped_copy_runs_and_its_outputs_are_the_taps(tiny: Tiny, name: str) -> None:
    original = tiny(name)
    before = original.SerializeToString()
    taps = choose_taps(original)
    copy = tapped(original, taps)
    assert original.SerializeToString() == before
    assert [value.name for value in copy.graph.output] == [name for name in taps.names if name != "x"]
    shape = [2, *(dim.dim_value for dim in original.graph.input[0].type.tensor_type.shape.dim[1:])]
    feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    found, expected = (
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            ["y"], feeds
        )
        for m in (copy, original)
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-6)


def test_every_quantizable_operator_is_one_of_onnxs() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}
    assert sorted(QUANTIZABLE - known) == []
