"""What a graph chooses from, by graphs whose answer is plain, and by what ONNX Runtime computes there."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from detectors import detector, images
from written_models import model_of, normal, outputs_of

from qcompile.compiler.quantize.half.casts import Half
from qcompile.compiler.quantize.half.precision import to_half
from qcompile.model.graph.choices import extent_deciders, part_before, selecting_operators, selection_inputs
from qcompile.model.graph.graph import infer_shapes
from qcompile.model.graph.onnx_file import copy_model


def test_boxes_and_scores_in_front_of_a_suppression() -> None:
    model = detector()
    places = selection_inputs(model)
    assert {place.tensor for place in places} == {"all_boxes", "all_scores"}
    assert selecting_operators(model) == "NonMaxSuppression"
    probe = copy_model(model)
    probe.graph.output.extend(onnx.helper.make_empty_tensor_value_info(place.tensor) for place in places)
    x = images(1)
    for expected, found in zip(
        outputs_of(probe, x)[3:], outputs_of(part_before(model, places), x), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("text", "tensors"),
    [
        ("m = MatMul (x, w) l = Less (zero, m) p = NonZero (l) y = Cast <to = 1> (p)", ["m"]),
        ("m = MatMul (x, w) t = Transpose (m) u = Tanh (t) l = Less (zero, t) p = NonZero (l) "
         "q = Transpose (p) y = GatherND (u, q)", ["m", "u"]),
        ("m = MatMul (x, w) r = Reshape (m, flat) v, i = TopK (r, few) l = Less (zero, v) p = NonZero (l) "
         "q = Transpose (p) y = GatherND (v, q)", ["m"]),
        ("m = MatMul (x, w) s = Shape (m) p = NonZero (s) c = Cast <to = 1> (p) y = Identity (c)", []),
        ("m = MatMul (x, w) l = Less (zero, x) p = NonZero (l) q = Transpose (p) g = GatherND (x, q) "
         "y = Abs (m)", []),
        ("m = MatMul (x, w) l = Less (zero, m) y = Where (l, m, zero)", []),
    ],
    ids=["a comparison", "what is chosen", "the best of them", "extents", "nothing returned", "no choice"],
)  # fmt: skip
def test_floats_that_decide_and_floats_that_are_chosen(text: str, tensors: list[str]) -> None:
    stored = {"w": normal(6, 5), "zero": np.float32(0), "flat": np.array([-1]), "few": np.array([7])}
    read = {name: value for name, value in stored.items() if name in text}
    shape = "float[k, n] y" if "to = 1> (p)" in text or "Where" in text or "Abs" in text else "float[n] y"
    model = model_of(f"(float[4, 6] x) => ({shape}) {{ {text} }}", **read)
    assert sorted(place.tensor for place in selection_inputs(model)) == tensors


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_half_graph_whose_output_is_chosen_is_cut_in_front_of_the_choice(dtype: Half) -> None:
    text = "m = MatMul (x, w) l = Less (zero, m) p = NonZero (l) q = Transpose (p) y = GatherND (m, q)"
    model = model_of(f"(float[4, 6] x) => (float[n] y) {{ {text} }}", w=normal(6, 5), zero=np.float32(0))
    half, _ = to_half(model, dtype)
    part = part_before(half, selection_inputs(model))
    assert infer_shapes(part)[part.graph.output[0].name] == (4, 5)


def test_a_layer_behind_the_choice_leaves_the_outputs_to_be_compared() -> None:
    tail = """chosen = Unsqueeze (kept_scores, second) wide_scores = MatMul (chosen, u)
        scores = Squeeze (wide_scores, second)"""
    assert selection_inputs(detector(tail, u=np.ones((1, 1), np.float32))) == []


@pytest.mark.parametrize(
    ("body", "decider"),
    [
        ("y = NonZero (x)", "NonZero"),
        ("b = NonZero (x) f = Cast <to = 1> (b) y = Relu (f)", "NonZero"),
        ("m = Cast <to = 9> (x) l = Reshape (m, flat) y = Compress (x, l)", "Compress"),
        ("s = ReduceSum <keepdims = 0> (x) k = Cast <to = 7> (s) y = Range (zero, k, one)", "Range"),
        ("a = ArgMax <keepdims = 0> (x) c = Reshape (a, flat) y, i = TopK (x, c)", "TopK"),
        ("a = ArgMax <keepdims = 0> (x) c = Reshape (a, flat) y = Tile (x, c)", "Tile"),
        ("y = NonZero (n)", ""),
        ("s = Squeeze (n) y = Range (zero, s, one)", ""),
        ("e = Shape (x) f = Cast <to = 1> (e) h = Mul (f, half) g = Cast <to = 7> (h) y = Expand (x, g)", ""),
        ("y, i = TopK (x, n)", ""),
        ("y = Relu (x)", ""),
    ],
)  # fmt: skip
def test_extents_depend_on_values_where_computed_floats_decide_them(body: str, decider: str) -> None:
    constants = "int64 zero = {0}, int64 one = {1}, int64[1] flat = {-1}, float half = {0.5}"
    graph = f"g (float[a,b] x, int64[1] n) => (float y) <{constants}> {{ {body} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')
    assert extent_deciders(model).get("y", "") == decider


@pytest.mark.parametrize(
    ("condition", "decider"),
    [
        ("s = ReduceMax <keepdims = 0> (x) c = Greater (s, zero)", "If"),
        ("e = Shape (x) r = ReduceMax <keepdims = 0> (e) c = Cast <to = 9> (r)", ""),
    ],
)
def test_branches_of_other_extents_depend_on_their_condition(condition: str, decider: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[a,b] x) => (float y) <float zero = {{0}}> {{ {condition}
            y = If (c) <then_branch = t () => (float[a,b] p) {{ p = Relu (x) }},
                        else_branch = f () => (float[b,a] q) {{ q = Transpose (x) }}> }}"""
    assert extent_deciders(onnx.parser.parse_model(text)).get("y", "") == decider
