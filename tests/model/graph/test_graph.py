"""Graphs are read, and edited: an edit leaves a valid model that computes what it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper
from written_models import model_of

import qcompile
from qcompile.model.graph.graph import (
    WeightStats,
    constant_names,
    constant_tensor,
    count_weighted,
    every_graph,
    graph_precision,
    infer_types,
    position_tensors,
    weighted_nodes,
    weights_of_graph,
)
from qcompile.model.graph.graph_edits import drop_unread, sort_nodes, store_constants


def ones(*shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    return np.ones(shape, dtype)


@pytest.mark.parametrize(
    "norm", ["GroupNormalization <num_groups = 2> (a, s, s)", "MeanVarianceNormalization (a)"]
)
def test_types_are_inferred_past_a_normalization(norm: str) -> None:
    """INT8 of the layers behind a GroupNormalization was refused: of what they read no type was known."""
    text = (
        f"(float[n, 4, 3, 3] x) => (float[n, 4, 3, 3] y) {{ a = Abs(x) b = {norm} c = Relu(b) y = Neg(c) }}"
    )
    made = model_of(text, opset=21, **({"s": ones(4)} if "s, s" in norm else {}))
    assert {infer_types(made)[name] for name in "abc"} == {"float32"}


def test_constants_are_what_depends_on_no_input() -> None:
    made = model_of(
        """(float[1] x) => (float[1] y, float[1] noisy) {
        k = Constant <value = float[1] {1.0}> ()
        flag = Constant <value = bool {1}> ()
        sum = Add(k, w)
        random = RandomNormal <shape = [1]> ()
        noisy = Add(sum, random)
        chosen = If (flag) <
            then_branch = yes () => (float[n] t) { t = Neg(x) },
            else_branch = no () => (float[n] e) { e = Abs(x) }
        >
        y = Add(chosen, sum) }""",
        w=ones(1),
    )
    assert constant_names(made) == {"w", "k", "flag", "sum"}


FLOATS = "(float[n, 4] x) => (float[n, 4] y)"
PAIR = "q = QuantizeLinear(x, scale, zero) d = DequantizeLinear(q, scale, zero) "
WEIGHTS = {
    "w": ones(4, 4), "w16": ones(4, 4, dtype=ml_dtypes.bfloat16), "w8": ones(4, 4, dtype=np.int8),
    "scale": np.float32(0.1), "zero": np.int8(0),
}  # fmt: skip


@pytest.mark.parametrize(
    ("signature", "body", "expected"),
    [
        (FLOATS, PAIR + "e = DequantizeLinear(w8, scale, zero) m = MatMul(d, e) y = MatMul(m, w)",
         {"int8": {"m": "MatMul"}, "fp32": {"y": "MatMul"}}),
        (FLOATS, PAIR + "y = MatMul(d, w)", {"fp32": {"y": "MatMul"}}),  # an activation alone is not int8
        *((f"({kind}[4, 4] x) => ({kind}[4, 4] y)", "y = MatMul(x, x)", {precision: {"y": "MatMul"}})
          for kind, precision in {"float": "fp32", "float16": "fp16", "bfloat16": "bf16"}.items()),
        ("(bfloat16[n, 4] x) => (bfloat16[n, 4] y)", "y = MatMul(x, w16)", {"bf16": {"y": "MatMul"}}),
        ("(uint8[n, 4] x) => (int32[n, 4] y)", "y = MatMulInteger(x, w8)", {"int8": {"y": "MatMulInteger"}}),
        (FLOATS, "s = Sigmoid(x) y = Add(s, s)", {}),
    ],
)  # fmt: skip
def test_weighted_nodes_are_sorted_by_the_precision_they_compute_in(
    signature: str, body: str, expected: dict[str, dict[str, str]]
) -> None:
    made = model_of(f"{signature} {{ {body} }}", **WEIGHTS)
    nothing: dict[str, dict[str, str]] = {"int8": {}, "fp16": {}, "bf16": {}, "fp32": {}}
    found = {p: {node.output[0]: node.op_type for node in nodes} for p, nodes in weighted_nodes(made).items()}
    assert found == nothing | expected
    assert count_weighted(made) == nothing | {p: Counter(nodes.values()) for p, nodes in expected.items()}
    assert graph_precision(made) == next(iter(expected), "fp32")


@pytest.mark.parametrize(("operator", "gates"), [("GRU", 3), ("LSTM", 4), ("RNN", 1)])
def test_a_recurrent_layer_behind_dequantizers_computes_in_float(operator: str, gates: int) -> None:
    weights = {"w8": ones(1, gates * 2, 4, dtype=np.int8), "r8": ones(1, gates * 2, 2, dtype=np.int8)}
    made = model_of(
        f"""(float[5, 1, 4] x) => (float[5, 1, 1, 2] y) {{ {PAIR}
        w = DequantizeLinear(w8, scale, zero) r = DequantizeLinear(r8, scale, zero)
        y = {operator} <hidden_size = 2> (d, w, r) }}""",
        **weights, scale=WEIGHTS["scale"], zero=WEIGHTS["zero"],
    )  # fmt: skip
    assert count_weighted(made) == {"int8": {}, "fp16": {}, "bf16": {}, "fp32": {operator: 1}}


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


BRANCH = """(float[2] x, bool c) => (float[2] y) <float s = {0.1}, uint8 z = {3}> {
    q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
    y = If (c) <
        then_branch = yes () => (float[2] t) { a = Neg(d) unread = Abs(a) t = Identity(a) },
        else_branch = no () => (float[2] e) { e = Neg(x) }
    > }"""


def run(model: onnx.ModelProto) -> list[Any]:
    onnx.checker.check_model(model, full_check=True)
    feeds = {"x": np.array([0.33, -7.0], np.float32), "c": np.array(True)}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return list(session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()}))


def operators(graph: onnx.GraphProto) -> list[str]:
    return [node.op_type for inner in every_graph(graph) for node in inner.node]


@pytest.mark.parametrize("types", [None, ("QuantizeLinear", "DequantizeLinear")])
def test_what_only_a_subgraph_reads_stays(types: tuple[str, ...] | None) -> None:
    model = model_of(BRANCH)
    before = run(model)
    drop_unread(model.graph, types)
    np.testing.assert_array_equal(run(model), before)
    kept = ["QuantizeLinear", "DequantizeLinear", "If", "Neg", "Abs", "Identity", "Neg"]
    assert operators(model.graph) == [op for op in kept if types or op != "Abs"]


@pytest.mark.parametrize(
    ("domain", "types", "left"), [("", ("Exp",), "Neg Neg"), ("own", None, "Neg Exp Neg")]
)
def test_only_the_named_operators_go_and_other_domains_stay(
    domain: str, types: tuple[str, ...] | None, left: str
) -> None:
    model = model_of("(float[2] x) => (float[2] y) { a = Neg(x) b = Exp(a) y = Neg(x) }")
    model.graph.node[1].domain = domain
    drop_unread(model.graph, types)
    assert operators(model.graph) == left.split()


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


RESIDUAL = 4 * 4 * 9 + 4 + 4 * 4 * 9 + 4 + 3 * 4 + 3  # two 3x3 convolutions and a Gemm, with biases


def test_float_graphs_hold_their_initializers(tiny_file: Callable[..., Path]) -> None:
    held = weights_of_graph(onnx.load(tiny_file("residual")))
    assert held == WeightStats(RESIDUAL, 4 * RESIDUAL)


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
    made = model_of(f"(float[4, 4] x) => (float[2, 8] y) {{ {body} }}", scale=ones(8))
    assert weights_of_graph(made) == WeightStats(8, 8 * 4 + 2 * 8)


def test_places_are_what_is_computed_of_shapes_alone() -> None:
    graph = model_of(
        """(float[n,t] x, int64[k] ids) => (float[n,u] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}, float half = {0.5}, float least = {-9},
        float[1,2] steps = {1, 0.1}, float[9,2] table> {
        s = Shape(x) t = Gather(s, one) f = Cast <to = 1> (t) h = Mul(f, half) u = Cast <to = 7> (h)
        r = Range(zero, u, one) p = Cast <to = 1> (r) c = Unsqueeze(p, axis) a = MatMul(c, steps) e = Cos(a)
        of_table = Gather(table, r) first = Gather(p, one) part = Slice(table, axis, s)
        states = ConstantOfShape(s) seen = Less(r, t) mask = Where(seen, half, least)
        read = Cast <to = 1> (ids) mean = Div(x, f)
        q = Cast <to = 7> (p) g = Gather(table, q) y = Add(x, e) }"""
    ).graph
    assert position_tensors(graph) == set("f h u r p c a e q first seen".split())
