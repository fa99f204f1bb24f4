"""The weights of a graph: counted by hand for known graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper, parser

import qcompile
from qcompile.model.graph import (
    WeightsHeld,
    captured_names,
    constant_names,
    consumers,
    count_weighted,
    graph_precision,
    infer_types,
    producers,
    subgraphs,
    weighted_nodes,
    weights_of_graph,
    without_weights,
)
from qcompile.model.graph_edits import drop_unused_initializers, name_nodes, rename_inputs, sort_nodes

Tiny = Callable[..., onnx.ModelProto]

BRANCHES = """
    s = Sigmoid(x)
    y = If (c) <
        then_branch = yes () => (float[n] t) { a = Neg(x) t = Add(a, s) },
        else_branch = no () => (float[n] e) {
            b = Abs(outer)
            e = If (inner) <
                then_branch = deep () => (float[n] d) { d = Add(b, w) },
                else_branch = flat () => (float[n] f) { f = Identity(s) }
            >
        }
    >
"""
BRANCHED = "(float[n] x, bool c, bool inner, float[n] outer) => (float[n] y)"


def model(body: str, signature: str, *weights: onnx.TensorProto) -> onnx.ModelProto:
    """A model from ONNX's text form: `signature` is "(inputs) => (outputs)"."""
    made = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {signature} {{ {body} }}')
    made.graph.initializer.extend(weights)
    onnx.checker.check_model(made)
    return made


def array(name: str, *shape: int, dtype: str = "float32") -> onnx.TensorProto:
    return numpy_helper.from_array(np.ones(shape, dtype), name)


def branched() -> onnx.ModelProto:
    return model(BRANCHES, BRANCHED, array("w", 1))


def test_types_are_inferred_for_every_tensor() -> None:
    made = model(
        "h = Cast <to = 10> (x) i = ArgMax <axis = 0> (h) b = Greater(x, x)",
        "(float[n, 4] x) => (int64[m, 4] i, bool[n, 4] b)",
    )
    assert infer_types(made) == {"x": "float32", "h": "float16", "i": "int64", "b": "bool"}


def test_types_are_inferred_past_large_weights(tiny: Tiny) -> None:
    made = tiny("residual")
    made.graph.initializer.append(array("huge", 4, 4, 40, 40))
    types = infer_types(made)
    assert {types[name] for name in ("x", "c1", "r1", "a", "p", "f", "y")} == {"float32"}
    assert "huge" not in [tensor.name for tensor in without_weights(made).graph.initializer]
    assert "huge" in [value.name for value in without_weights(made).graph.input]
    assert len(made.graph.initializer) == 7


def test_what_cannot_be_inferred_has_no_type() -> None:
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "custom" : 1]>'
        "g (float[n] x) => (float[n] y) { m = custom.Mystery(x) y = Identity(x) }"
    )
    assert infer_types(made) == {"x": "float32", "y": "float32"}


def test_constants_are_what_depends_on_no_input() -> None:
    made = model(
        """
        k = Constant <value = float[1] {1.0}> ()
        flag = Constant <value = bool {1}> ()
        sum = Add(k, w)
        random = RandomNormal <shape = [1]> ()
        noisy = Add(sum, random)
        chosen = If (flag) <
            then_branch = yes () => (float[n] t) { t = Neg(x) },
            else_branch = no () => (float[n] e) { e = Abs(x) }
        >
        y = Add(chosen, sum)
        """,
        "(float[1] x) => (float[1] y, float[1] noisy)",
        array("w", 1),
    )
    assert constant_names(made) == {"w", "k", "flag", "sum"}


def test_producers_and_consumers_are_by_tensor(tiny: Tiny) -> None:
    graph = tiny("residual").graph
    assert producers(graph)["r1"].name == "relu1"
    assert "x" not in producers(graph)
    assert [node.name for node in consumers(graph)["r1"]] == ["conv2", "add"]
    assert "y" not in consumers(graph)
    twice = model("y = Mul(x, x)", "(float[n] x) => (float[n] y)").graph
    assert len(consumers(twice)["x"]) == 1


def test_every_node_gets_a_name_of_its_own() -> None:
    graph = model("a = Neg(x) b = Neg(a) d = Neg(b) y = Neg(d)", "(float[n] x) => (float[n] y)").graph
    graph.node[0].name = graph.node[2].name = "neg"
    graph.node[1].name = "Neg_y"
    name_nodes(graph)
    names = [node.name for node in graph.node]
    assert names == ["neg", "Neg_y", "neg_2", "Neg_y_2"]
    name_nodes(graph)
    assert [node.name for node in graph.node] == names


def test_captured_names_are_those_from_outside_only() -> None:
    branch = branched().graph.node[1]
    assert [graph.name for graph in subgraphs(branch)] == ["yes", "no"]
    assert captured_names(branch) == {"x", "s", "outer", "inner", "w"}
    assert captured_names(branched().graph.node[0]) == set()


def test_initializers_that_a_subgraph_reads_or_that_are_outputs_are_kept() -> None:
    graph = branched().graph
    graph.initializer.extend([array("unused", 5), array("returned", 1)])
    graph.output.add(name="returned")
    drop_unused_initializers(graph)
    assert [tensor.name for tensor in graph.initializer] == ["w", "returned"]


def test_inputs_are_renamed_in_subgraphs_too() -> None:
    graph = branched().graph
    rename_inputs(graph, {"s": "s2", "w": "w2"})
    assert captured_names(graph.node[1]) == {"x", "s2", "outer", "inner", "w2"}
    assert [list(node.input) for node in graph.node] == [["x"], ["c"]]
    assert list(graph.node[0].output) == ["s"]


def quantizing(body: str) -> onnx.ModelProto:
    """x through Q and DQ to d, weights w and (quantized) w8 at hand, then the body."""
    head = "q = QuantizeLinear(x, scale, zero) d = DequantizeLinear(q, scale, zero) "
    scale = numpy_helper.from_array(np.float32(0.1), "scale")
    zero = numpy_helper.from_array(np.int8(0), "zero")
    weights = (array("w", 4, 4), array("w8", 4, 4, dtype="int8"), scale, zero)
    return model(head + body, "(float[n, 4] x) => (float[n, 4] y)", *weights)


def test_weighted_nodes_are_sorted_by_the_precision_they_compute_in() -> None:
    made = quantizing("dw = DequantizeLinear(w8, scale, zero) m = MatMul(d, dw) y = MatMul(m, w)")
    found = {p: [node.output[0] for node in nodes] for p, nodes in weighted_nodes(made).items()}
    assert found == {"int8": ["m"], "fp16": [], "bf16": [], "fp32": ["y"]}
    counts = {"int8": {"MatMul": 1}, "fp16": {}, "bf16": {}, "fp32": {"MatMul": 1}}
    assert count_weighted(made) == counts
    assert graph_precision(made) == "int8"


def test_a_quantized_activation_alone_is_not_int8() -> None:
    assert graph_precision(quantizing("y = MatMul(d, w)")) == "fp32"


@pytest.mark.parametrize(
    ("text", "precision"), [("float", "fp32"), ("float16", "fp16"), ("bfloat16", "bf16")]
)
def test_the_precision_of_a_float_graph_is_that_of_its_operands(text: str, precision: str) -> None:
    made = model("y = MatMul(x, x)", f"({text}[4, 4] x) => ({text}[4, 4] y)")
    assert graph_precision(made) == precision
    assert [kind for kind, nodes in weighted_nodes(made).items() if nodes] == [precision]


def test_the_type_of_a_stored_operand_counts_too() -> None:
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.BFLOAT16, [4, 4], [1.0] * 16)
    made = model("y = MatMul(x, w)", "(bfloat16[n, 4] x) => (bfloat16[n, 4] y)", weight)
    assert count_weighted(made)["bf16"] == {"MatMul": 1}


@pytest.mark.parametrize("elem_type", [10, 16])
def test_a_product_behind_half_dequantizers_is_int8_and_carried_out_in_half(elem_type: int) -> None:
    text = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) e = DequantizeLinear(w8, s, z) "
    name = {10: "float16", 16: "bfloat16"}[elem_type]
    made = parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 19]> g ({name}[n, 4] x) => ({name}[n, 4] y) '
        f"{{ {text} y = MatMul(d, e) }}"
    )
    scale = onnx.helper.make_tensor("s", elem_type, [], [0.1])
    zero = numpy_helper.from_array(np.int8(0), "z")
    made.graph.initializer.extend([scale, zero, array("w8", 4, 4, dtype="int8")])
    onnx.checker.check_model(made, full_check=True)
    assert graph_precision(made) == "int8"
    executed = {10: "fp16", 16: "bf16"}[elem_type]
    assert count_weighted(made, as_executed=True)[executed] == {"MatMul": 1}


@pytest.mark.parametrize(("operator", "gates"), [("GRU", 3), ("LSTM", 4), ("RNN", 1)])
def test_a_recurrent_layer_behind_dequantizers_computes_in_float(operator: str, gates: int) -> None:
    made = model(
        f"""q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) w = DequantizeLinear(w8, s, z)
        r = DequantizeLinear(r8, s, z) y = {operator} <hidden_size = 2> (d, w, r)""",
        "(float[5, 1, 4] x) => (float[5, 1, 1, 2] y)",
        array("w8", 1, gates * 2, 4, dtype="int8"),
        array("r8", 1, gates * 2, 2, dtype="int8"),
        numpy_helper.from_array(np.float32(0.1), "s"),
        numpy_helper.from_array(np.int8(0), "z"),
    )
    assert count_weighted(made) == {"int8": {}, "fp16": {}, "bf16": {}, "fp32": {operator: 1}}


def test_integer_operators_are_int8() -> None:
    signature = "(uint8[n, 4] x) => (int32[n, 4] y)"
    made = model("y = MatMulInteger(x, w)", signature, array("w", 4, 4, dtype="int8"))
    assert count_weighted(made)["int8"] == {"MatMulInteger": 1}


def test_a_graph_without_weighted_nodes_is_fp32(tiny: Tiny) -> None:
    made = tiny("elementwise")
    assert count_weighted(made) == {"int8": {}, "fp16": {}, "bf16": {}, "fp32": {}}
    assert graph_precision(made) == "fp32"


@pytest.mark.parametrize("name", ["resnet50", "squeezenet", "inception_v1"])
def test_real_models_of_old_opsets_are_understood(light_models: dict[str, Path], name: str) -> None:
    made = onnx.load(light_models[name])
    types = infer_types(made)
    weighted = weighted_nodes(made)["fp32"]
    assert len(weighted) > 20
    assert {types[node.output[0]] for node in weighted} == {"float32"}
    assert not constant_names(made) & {node.output[0] for node in weighted}


def test_nodes_are_sorted_by_what_they_and_their_subgraphs_read() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]> g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = one () => (float[2] a) { a = Neg(late) },
                    else_branch = two () => (float[2] b) { b = Identity(x) }>
        late = Relu(early)
        early = Abs(x)
    }"""
    model = onnx.parser.parse_model(text)
    sort_nodes(model.graph)
    assert [node.op_type for node in model.graph.node] == ["Abs", "Relu", "If"]
    onnx.checker.check_model(model)


@given(st.integers(0, 2**32 - 1), st.integers(1, 25))
def test_any_order_of_nodes_becomes_one_that_runs(seed: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    graph = onnx.GraphProto()
    nodes = [
        onnx.helper.make_node("Add", [f"v{one}" for one in generator.integers(0, i + 1, 2)], [f"v{i + 1}"])
        for i in range(count)
    ]
    graph.node.extend(nodes[i] for i in generator.permutation(count))
    sort_nodes(graph)
    seen = {"v0"}
    for node in graph.node:
        assert set(node.input) <= seen
        seen.update(node.output)
    assert len(graph.node) == count


RESIDUAL = 4 * 4 * 9 + 4 + 4 * 4 * 9 + 4 + 3 * 4 + 3  # two 3x3 convolutions and a Gemm, with biases


def test_float_graphs_hold_their_initializers(tiny_file: Callable[..., Path]) -> None:
    held = weights_of_graph(onnx.load(tiny_file("residual")))
    assert held == WeightsHeld(RESIDUAL, 4 * RESIDUAL)


def test_scales_and_zero_points_are_bytes_but_no_parameters(
    tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    model = tiny_file("residual")
    data = tmp_path / "data.npz"
    np.savez(data, x=np.random.default_rng(0).standard_normal((8, 4, 8, 8)).astype(np.float32))
    ranges = qcompile.calibrate(model, str(data), tmp_path / "m.ranges").path
    for target in ("onnxruntime", "tensorrt"):
        path = tmp_path / f"{target}.onnx"
        qcompile.quantize(model, path, ranges=ranges, target=target)  # type: ignore[arg-type]
        held = weights_of_graph(onnx.load(path))
        assert held.parameters == RESIDUAL, target
        assert held.bytes > 0


def test_shapes_and_indices_are_no_parameters() -> None:
    body = "shape = Constant <value = int64[2] {2, 8}> () r = Reshape(x, shape) y = Mul(r, scale)"
    made = model(body, "(float[4, 4] x) => (float[2, 8] y)", array("scale", 8))
    assert weights_of_graph(made) == WeightsHeld(8, 8 * 4 + 2 * 8)
