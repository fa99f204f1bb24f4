"""Parts of a graph: what they compute is what the whole computes, and they hold nothing else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
from layer_faults import all_at_once, random_network
from onnx import parser

from qcompile.comparison.layers.compare import observable
from qcompile.comparison.layers.pairing import pair_outputs, pair_tensors
from qcompile.model.graph_edits import cut

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'


def outputs_of(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    asked = {value.name: feeds[value.name] for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, asked), strict=True))


def test_a_part_computes_its_tensors_as_the_whole_does() -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)}
    model = random_network(20, 3)
    expected = all_at_once(model, [feeds])
    for number in range(0, 19, 3):
        part = random_network(20, 3)
        names = [f"t{number}", "t2"] if number != 2 else ["t2"]
        assert cut(part, names) == {name: name for name in names}
        assert len(part.graph.node) <= max(number, 2) + 1
        found = outputs_of(part, feeds)
        for name in names:
            np.testing.assert_allclose(found[name].ravel(), expected[name], rtol=1e-5, atol=1e-6)


def test_inputs_and_weights_that_a_part_does_not_need_are_gone() -> None:
    model = parser.parse_model(
        HEADER
        + """two (float[2,4] a, float[2,4] b) => (float[2,4] y)
            <float[4] u = {1,2,3,4}, float[4] v = {1,1,1,1}> {
        left = Add (a, u)
        right = Add (b, v)
        y = Mul (left, right)
    }"""
    )
    cut(model, ["left"])
    assert [value.name for value in model.graph.input] == ["a"]
    assert [tensor.name for tensor in model.graph.initializer] == ["u"]
    assert [value.name for value in model.graph.output] == ["left"]


def test_what_a_subgraph_reads_from_outside_stays() -> None:
    model = parser.parse_model(
        HEADER
        + """outer (float[2,4] x, bool c) => (float[2,4] y) {
        inside = Neg (x)
        chosen = If (c) <
            then_branch = yes () => (float[2,4] t) { t = Identity (inside) },
            else_branch = no () => (float[2,4] e) { e = Relu (inside) }
        >
        y = Neg (chosen)
    }"""
    )
    cut(model, ["chosen"])
    assert [node.op_type for node in model.graph.node] == ["Neg", "If"]
    feeds = {"x": np.full((2, 4), -2.0, np.float32), "c": np.array(False)}
    np.testing.assert_array_equal(outputs_of(model, feeds)["chosen"], np.full((2, 4), 2.0, np.float32))


def test_types_that_numpy_lacks_are_widened() -> None:
    model = parser.parse_model(
        HEADER
        + """half (float[2,4] x) => (float[2,4] y) {
        low = Cast <to = 16> (x)
        double = Add (low, low)
        y = Cast <to = 1> (double)
    }"""
    )
    assert cut(model, ["double"]) == {"double": "double/read"}
    (value,) = model.graph.output
    assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    onnx.checker.check_model(model)


def test_integers_are_read_behind_their_dequantize_linear(tiny: Callable[..., onnx.ModelProto]) -> None:
    from onnx import helper, numpy_helper

    model = tiny("mlp")
    graph = model.graph
    for name, values in (("s", np.float32(0.05)), ("z", np.int8(0))):
        graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
    (last,) = (node for node in graph.node if node.name == "matmul2")
    place = list(graph.node).index(last)
    graph.node.insert(place, helper.make_node("DequantizeLinear", ["q", "s", "z"], ["dq"], "dq"))
    graph.node.insert(place, helper.make_node("QuantizeLinear", ["r1", "s", "z"], ["q"], "quantize"))
    graph.node[-1].input[0] = "dq"
    pairs = pair_tensors(tiny("mlp"), model)
    assert "q" in [pair.artifact for pair in pairs.pairs]
    seen = observable(pairs, model)
    assert [(pair.reference, pair.artifact) for pair in seen.pairs if pair.reference == "r1"] == [
        ("r1", "dq")
    ]
    assert not any(pair.form.is_integer for pair in seen.pairs)


def test_what_lies_right_before_an_output_is_found_through_many_layers() -> None:
    model = random_network(1500, 0)
    value = onnx.helper.make_tensor_value_info("t3", onnx.TensorProto.FLOAT, ["batch", 8])
    model.graph.output.append(value)
    pairs = pair_outputs(model, ["t3", "y"])
    assert [pair.reference for pair in pairs.pairs] == ["t3", "y"]
    assert [pair.parents for pair in pairs.pairs] == [(), (0,)]
