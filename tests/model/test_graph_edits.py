"""Edits leave a valid model that computes what it did, by ONNX's checker and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, parser

from qcompile.model.graph import attribute, constant_tensor, every_graph
from qcompile.model.graph_edits import drop_attributes, drop_unread, set_nodes, store, store_constants

BRANCH = """
    q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
    y = If (c) <
        then_branch = yes () => (float[2] t) { a = Neg(d) unread = Abs(a) t = Identity(a) },
        else_branch = no () => (float[2] e) { e = Neg(x) }
    >
"""


def parsed(
    body: str, signature: str = "(float[2] x, bool c) => (float[2] y)", stored: str = ""
) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {signature} {stored} {{ {body} }}')


def run(model: onnx.ModelProto) -> list[Any]:
    onnx.checker.check_model(model, full_check=True)
    feeds = {"x": np.array([0.33, -7.0], np.float32), "c": np.array(True)}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return list(session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()}))


def operators(graph: onnx.GraphProto) -> list[str]:
    return [node.op_type for inner in every_graph(graph) for node in inner.node]


@pytest.mark.parametrize("types", [None, ("QuantizeLinear", "DequantizeLinear")])
def test_what_only_a_subgraph_reads_stays(types: tuple[str, ...] | None) -> None:
    model = parsed(BRANCH, stored="<float s = {0.1}, uint8 z = {3}>")
    before = run(model)
    drop_unread(model.graph, types)
    np.testing.assert_array_equal(run(model), before)
    kept = ["QuantizeLinear", "DequantizeLinear", "If", "Neg", "Abs", "Identity", "Neg"]
    assert operators(model.graph) == [op for op in kept if types or op != "Abs"]


def test_a_chain_that_ends_unread_goes_and_an_output_stays() -> None:
    model = parsed(
        "a = Neg(x) b = Abs(a) u = Exp(b) v, w = TopK(u, k) y = Neg(x)",
        "(float[2] x) => (float[2] y, float[2] b)",
        "<int64[1] k = {1}>",
    )
    drop_unread(model.graph)
    assert operators(model.graph) == ["Neg", "Abs", "Neg"]


@pytest.mark.parametrize(
    ("domain", "types", "left"), [("", ("Exp",), "Neg Neg"), ("own", None, "Neg Exp Neg")]
)
def test_only_the_named_operators_go_and_other_domains_stay(
    domain: str, types: tuple[str, ...] | None, left: str
) -> None:
    model = parsed("a = Neg(x) b = Exp(a) y = Neg(x)", "(float[2] x) => (float[2] y)")
    model.graph.node[1].domain = domain
    drop_unread(model.graph, types)
    assert operators(model.graph) == left.split()


def test_an_output_that_is_left_out_counts_as_no_reading() -> None:
    model = parsed(
        'a, b = MaxPool <kernel_shape = [1]> (x) y = Clip(x, "", m)',
        "(float[1, 1, 2] x) => (float[1, 1, 2] y)",
        "<float m = {1}>",
    )
    model.graph.node[0].output[1] = ""
    drop_unread(model.graph)
    assert operators(model.graph) == ["Clip"]


CONSTANTS: dict[str, tuple[dict[str, Any], NDArray[Any]]] = {
    "a float": ({"value_float": 1.5}, np.array(1.5, np.float32)),
    "floats": ({"value_floats": [1.5, 2.0]}, np.array([1.5, 2.0], np.float32)),
    "an integer": ({"value_int": 3}, np.array(3)),
    "integers": ({"value_ints": [3, 4]}, np.array([3, 4])),
    "a tensor": ({"value": numpy_helper.from_array(np.array([[True]]), "anything")}, np.array([[True]])),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_node_becomes_an_initializer(name: str) -> None:
    settings, expected = CONSTANTS[name]
    kind = helper.np_dtype_to_tensor_dtype(expected.dtype)
    outputs = [helper.make_tensor_value_info("y", kind, expected.shape)]
    nodes = [helper.make_node("Constant", [], ["k"], **settings), helper.make_node("Identity", ["k"], ["y"])]
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "g", [], outputs), ir_version=8, opset_imports=opsets)
    (before,) = run(model)
    store_constants(model.graph)
    (after,) = run(model)
    assert operators(model.graph) == ["Identity"]
    np.testing.assert_array_equal(after, expected)
    np.testing.assert_array_equal(before, after)
    assert after.dtype == before.dtype


def test_a_constant_keeps_its_type_its_place_and_is_not_decoded() -> None:
    """bfloat16 has no numpy type in older onnx, and external data lies in a file that need not be here."""
    narrow = helper.make_tensor("n", TensorProto.BFLOAT16, [1], b"\x80\x3f", raw=True)
    elsewhere = TensorProto(name="e", data_type=TensorProto.FLOAT, dims=[1 << 20])
    elsewhere.data_location = TensorProto.EXTERNAL
    elsewhere.external_data.add(key="location", value="nowhere.data")
    tensors = (narrow, elsewhere)
    nodes = [helper.make_node("Constant", [], [f"{tensor.name}_out"], value=tensor) for tensor in tensors]
    graph = helper.make_graph(nodes, "g", [], [])
    store_constants(graph)
    assert [tensor.name for tensor in graph.initializer] == ["n_out", "e_out"]
    assert graph.initializer[0].data_type == TensorProto.BFLOAT16
    assert graph.initializer[0].raw_data == b"\x80\x3f"
    assert graph.initializer[1].external_data[0].value == "nowhere.data"


def test_excluded_constants_and_strings_stay() -> None:
    nodes = [
        helper.make_node("Constant", [], ["a"], "kept", value_float=1.0),
        helper.make_node("Constant", [], ["b"], "text", value_string="x"),
        helper.make_node("Constant", [], ["c"], "taken", value_float=1.0),
    ]
    graph = helper.make_graph(nodes, "g", [], [])
    store_constants(graph, {"kept"})
    assert [node.name for node in graph.node] == ["kept", "text"]
    assert [tensor.name for tensor in graph.initializer] == ["c"]
    assert constant_tensor(helper.make_node("Neg", ["x"], ["y"])) is None


def test_attributes_are_read_with_their_defaults_and_dropped() -> None:
    node = helper.make_node(
        "Any", ["x"], ["y"], whole=3, real=0.5, text="ß", numbers=[1, 2], reals=[0.5], zero=0
    )
    assert {name: attribute(node, name) for name in ("whole", "real", "text", "numbers", "reals")} == {
        "whole": 3, "real": 0.5, "text": "ß", "numbers": [1, 2], "reals": [0.5],
    }  # fmt: skip
    assert (attribute(node, "none"), attribute(node, "none", 7), attribute(node, "zero", 7)) == (None, 7, 0)
    drop_attributes(node, "whole", "reals", "none")
    assert sorted(item.name for item in node.attribute) == ["numbers", "real", "text", "zero"]


def test_nodes_and_values_are_stored() -> None:
    model = parsed("a = Neg(x) y = Add(a, x)", "(float[2] x) => (float[1, 2] y)")
    factors = store(model.graph, "w", np.asfortranarray([[2.0, 3.0]]).astype(np.float32))
    product = helper.make_node("Mul", ["a", factors], ["b"])
    last = model.graph.node[1]
    last.input[:] = ["b", "x"]
    set_nodes(model.graph, [model.graph.node[0], product, last])
    np.testing.assert_allclose(run(model)[0], [[-0.33, 14.0]])
