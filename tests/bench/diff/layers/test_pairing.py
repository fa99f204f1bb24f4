"""Which tensor is which, by name and by structure; how it is read; and what parts of a graph compute."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import MakeModel, MakePath
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from int8_graphs import int8_graph
from layer_faults import all_at_once, random_network
from onnx import helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator
from written_models import one_node, outputs_of

import qcompile
from qcompile.bench.diff.layers.compare import engine_pairs
from qcompile.bench.diff.layers.pairing import Pairs, pair_outputs, pair_tensors
from qcompile.bench.diff.layers.sides import Form, Forms
from qcompile.model.graph.graph_edits import extract_tensors
from qcompile.model.outputs.judgement import ErrorSums, output_error


def partners(pairs: Pairs) -> dict[str, str]:
    return {pair.artifact: pair.reference for pair in pairs.pairs}


@pytest.fixture
def quantized(tiny_file: MakePath, samples: MakePath) -> MakePath:
    """`quantized("residual", "tensorrt")` is the tiny model in INT8."""
    return lambda name, target: int8_graph(tiny_file(name), samples(name), target)


def test_integers_pair_with_what_they_stand_for_and_a_folded_relu_with_its_output(
    tiny: MakeModel, quantized: MakePath
) -> None:
    pairs = pair_tensors(tiny("residual"), onnx.load(quantized("residual", "onnxruntime")))
    found = partners(pairs)
    assert found["r1_QuantizeLinear_Output"] == "r1"  # Relu is gone: Conv makes it
    assert found["c2_QuantizeLinear_Output"] == "c2"
    assert found["y"] == "y"
    assert set(pairs.reference_only) == {"c1", "a"}
    conv = next(pair for pair in pairs.pairs if pair.reference == "c2")
    assert (conv.operator, conv.node) == ("Conv", "conv2")
    assert conv.form.is_integer
    assert [pairs.pairs[i].reference for i in conv.parents] == ["r1"]


def test_a_relu_that_stays_pairs_by_itself(tiny: MakeModel, quantized: MakePath) -> None:
    pairs = pair_tensors(tiny("residual"), onnx.load(quantized("residual", "tensorrt")))
    assert {pair.reference for pair in pairs.pairs} == {"x", "c1", "r1", "c2", "a", "r2", "p", "f", "y"}
    assert not pairs.reference_only
    assert not pairs.artifact_only


def test_what_the_optimizer_of_onnx_runtime_leaves_pairs_by_the_names_of_nodes(
    tiny: MakeModel, quantized: MakePath, tmp_path: Path
) -> None:
    built, model = tmp_path / "built.onnx", quantized("residual", "onnxruntime")
    qcompile.build(model, built, target="onnxruntime", precision="int8")
    artifact = onnx.load(built)
    assert not any(node.op_type == "DequantizeLinear" for node in artifact.graph.node)
    pairs = pair_tensors(tiny("residual"), artifact)
    assert {pair.reference for pair in pairs.pairs} == {"x", "r1", "c2", "r2", "p", "f", "y"}
    last = {pair.reference: pair.form.channels_last for pair in pairs.pairs}
    assert last["r1"]
    assert not last["f"]


def test_halves_pair_by_name_and_casts_are_no_tensors(
    tiny: MakeModel, tiny_file: MakePath, tmp_path: Path
) -> None:
    for precision in ("fp16", "bf16"):
        output = tmp_path / f"{precision}.onnx"
        qcompile.quantize(tiny_file("residual"), output, precision=precision)
        found = partners(pair_tensors(tiny("residual"), onnx.load(output)))
        assert {"c1", "r1", "c2", "a", "r2", "p", "f"} <= set(found)
        assert all(name == partner for name, partner in found.items() if name != "y/inner")


def renamed(model: onnx.ModelProto, *, nodes: bool) -> onnx.ModelProto:
    """The model with other names of tensors, and without names of nodes."""
    inputs = {value.name for value in model.graph.input}
    stored = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        node.name = "" if nodes else node.name
        for names in (node.input, node.output):
            names[:] = [name if name in inputs | stored else f"other/{name}" for name in names]
    for value in model.graph.output:
        value.name = f"other/{value.name}"
    return model


@pytest.mark.parametrize("name", ["residual", "mlp", "elementwise"])
@pytest.mark.parametrize("nodes", [False, True])
def test_renamed_tensors_pair_by_their_nodes_or_by_structure(tiny: MakeModel, name: str, nodes: bool) -> None:
    pairs = pair_tensors(tiny(name), renamed(tiny(name), nodes=nodes))
    assert partners(pairs) == {f"other/{pair.reference}": pair.reference for pair in pairs.pairs}
    assert not pairs.reference_only
    assert not pairs.artifact_only


def test_twins_that_read_the_same_pair_in_their_order() -> None:
    def model(prefix: str) -> onnx.ModelProto:
        names = [f"{prefix}{i}" for i in range(3)]
        twins = "\n".join(f"{name} = MatMul (x, w{i})" for i, name in enumerate(names))
        stored = ", ".join(f"float[2,2] w{i} = {{{i},{i},{i},{i}}}" for i in range(3))
        head = f"{HEADER} twins (float[1,2] x) => (float[1,2] y) <{stored}>"
        return parser.parse_model(f"{head} {{ {twins}\n y = Sum ({', '.join(names)}) }}")

    found = partners(pair_tensors(model("a"), model("b")))
    assert found == {"b0": "a0", "b1": "a1", "b2": "a2", "y": "y"}


def test_what_has_no_partner_is_said(tiny: MakeModel) -> None:
    model = tiny("mlp")
    model.graph.node.append(helper.make_node("Neg", ["m1"], ["n"], "neg"))
    assert pair_tensors(tiny("mlp"), model).artifact_only == ("n",)
    assert pair_tensors(model, tiny("mlp")).reference_only == ("n",)


def test_an_engine_pairs_by_its_outputs_alone(tiny: MakeModel) -> None:
    pairs = pair_outputs(tiny("residual"), ["y", "r1", "a", "nothing"])
    assert [(pair.reference, pair.upstream, pair.parents) for pair in pairs.pairs] == [
        ("r1", 0, ()),
        ("a", 0b01, (0,)),
        ("y", 0b11, (1,)),
    ]
    assert set(pairs.reference_only) == {"c1", "c2", "r2", "p", "f"}


def test_upstream_is_what_onnx_says_the_tensor_is_computed_from(light_models: dict[str, Path]) -> None:
    for path in list(light_models.values())[:3]:
        model = onnx.load(path)
        pairs = pair_tensors(model, model)
        assert len(pairs.pairs) > 20
        read_by: dict[str, set[str]] = {}
        for node in model.graph.node:
            before = {name for one in node.input for name in {one} | read_by.get(one, set())}
            read_by.update((name, before) for name in node.output)
        for pair in pairs.pairs:
            expected = {i for i, other in enumerate(pairs.pairs) if other.artifact in read_by[pair.artifact]}
            assert {i for i in range(len(pairs.pairs)) if pair.upstream >> i & 1} == expected


def test_scales_of_moved_integers_are_those_of_what_they_were() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("Transpose", ["q"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("MaxPool", ["t"], ["m"], kernel_shape=[1, 1]),
    ]
    stored = [
        numpy_helper.from_array(value, name) for name, value in (("s", np.float32(0.5)), ("z", np.uint8(3)))
    ]
    forms = Forms(helper.make_graph(nodes, "moved", [], [], stored))
    form = forms.of("m")
    assert (form.scale, form.zero_point, form.channels_last) == ((0.5,), (3,), True)
    assert forms.of("x") is None


FLOATS = st.floats(-8000, 1e6, width=32) | st.sampled_from([math.nan, math.inf, -math.inf])
PAIRS = hnp.arrays(np.float32, st.tuples(st.just(2), st.integers(1, 60)), elements=FLOATS)


@given(PAIRS, st.integers(1, 61))
def test_pieces_add_up_to_the_whole(pair: np.ndarray, size: int) -> None:
    reference, found = pair
    sums = ErrorSums()
    for start in range(0, reference.size, size):
        sums.add(reference[start : start + size], found[start : start + size])
    whole = output_error(reference, found)
    assert sums.snr_db == pytest.approx(whole.snr_db, rel=1e-9, abs=1e-9)
    assert (sums.max_abs_error, sums.max_abs) == (whole.max_abs_error, whole.max_abs)
    assert sums.elements == reference.size
    assert ErrorSums(**json.loads(json.dumps(vars(sums)))) == sums


@pytest.mark.parametrize(("axis", "count"), [(1, 1), (1, 3), (2, 5)])
def test_integers_are_scaled_as_dequantize_linear_does(axis: int, count: int) -> None:
    generator = np.random.default_rng(0)
    values = generator.integers(0, 256, (2, 3, 5), dtype=np.uint8)
    scale = generator.uniform(0.01, 1, count).astype(np.float32)
    zero = generator.integers(0, 256, count, dtype=np.uint8)
    stored = tuple(
        numpy_helper.from_array(array if count > 1 else array[0], name)
        for name, array in (("s", scale), ("z", zero))
    )
    model = one_node("DequantizeLinear", {"q": 2}, {"y": 1}, stored=stored, axis=axis)
    (expected,) = ReferenceEvaluator(model).run(None, {"q": values})
    form = Form(tuple(map(float, scale)), tuple(map(int, zero)), axis)
    found = np.concatenate(list(form.pieces(form.ordered(values), 4)))
    np.testing.assert_array_equal(found.reshape(values.shape), expected)


def test_channels_last_is_read_in_the_order_of_the_reference() -> None:
    image = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    form = Form(channels_last=True)
    np.testing.assert_array_equal(form.ordered(image.transpose(0, 2, 3, 1)), image)


HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'


def test_a_part_computes_its_tensors_as_the_whole_does() -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)}
    model = random_network(20, 3)
    expected = all_at_once(model, [feeds])
    for number in range(0, 19, 3):
        part = random_network(20, 3)
        names = [f"t{number}", "t2"] if number != 2 else ["t2"]
        assert extract_tensors(part, names) == {name: name for name in names}
        assert len(part.graph.node) <= max(number, 2) + 1
        onnx.checker.check_model(part)
        for name, array in zip(names, outputs_of(part, feeds), strict=True):
            np.testing.assert_allclose(array.ravel(), expected[name], rtol=1e-5, atol=1e-6)


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
    extract_tensors(model, ["left"])
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
    extract_tensors(model, ["chosen"])
    assert [node.op_type for node in model.graph.node] == ["Neg", "If"]
    feeds = {"x": np.full((2, 4), -2.0, np.float32), "c": np.array(False)}
    onnx.checker.check_model(model)
    np.testing.assert_array_equal(outputs_of(model, feeds), [np.full((2, 4), 2.0, np.float32)])


def test_types_that_numpy_lacks_are_widened() -> None:
    model = parser.parse_model(
        HEADER
        + """half (float[2,4] x) => (float[2,4] y) {
        low = Cast <to = 16> (x)
        double = Add (low, low)
        y = Cast <to = 1> (double)
    }"""
    )
    assert extract_tensors(model, ["double"]) == {"double": "double/read"}
    (value,) = model.graph.output
    assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    onnx.checker.check_model(model)


def test_integers_are_read_behind_their_dequantize_linear(tiny: MakeModel) -> None:
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
    seen = engine_pairs(pairs, model)
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
