"""What exporters leave in attention goes, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from qcompile.compiler.simplify.attention import simplify_attention

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
SCORES = "g (float[b,4,6] x, bool[b,1,4,4] m) => (float[b,2,4,3] y)"
ATTENTION = """
    q0 = MatMul(x, wq)  q1 = Add(q0, bq)  q2 = Reshape(q1, heads)  q = Transpose <perm = [0,2,1,3]> (q2)
    k0 = MatMul(x, wk)  k1 = Reshape(k0, heads)  k2 = Transpose <perm = [0,2,1,3]> (k1)
    k3 = Reshape(k2, flat)  k4 = Transpose <perm = [0,2,1]> (k3)  k = Reshape(k4, back)
    v0 = MatMul(x, wv)  v1 = Reshape(v0, heads)  v = Transpose <perm = [0,2,1,3]> (v1)
    qs = Mul(q, c)  ks = Mul(k, c)
    s0 = MatMul(qs, ks)  mask = Where(m, zero, lowest)  s = Add(s0, mask)
    p = Softmax <axis = -1> (s)  nan = IsNaN(p)  clean = Where(nan, zero, p)
    y = MatMul(clean, v)
"""
CONSTANTS: dict[str, NDArray[Any]] = {
    "heads": np.array([-1, 4, 2, 3]),
    "flat": np.array([-1, 4, 3]),
    "back": np.array([-1, 2, 3, 4]),
    "c": np.float32(0.7),
    "zero": np.float32(0),
    "lowest": np.float32(-3.4028235e38),
}
ALL = {"guard dropped": 1, "transpositions merged": 1, "scale folded into weights": 2}


def make(body: str = ATTENTION, signature: str = SCORES, **changed: Any) -> onnx.ModelProto:
    """A model of ONNX's text form with random weights wq, wk, wv, bq and the constants."""
    model = parser.parse_model(f"{HEAD} {signature} {{ {body} }}")
    generator = np.random.default_rng(0)
    weights = {n: generator.standard_normal((6, 6)).astype(np.float32) for n in ("wq", "wk", "wv")}
    weights["bq"] = generator.standard_normal(6).astype(np.float32)
    for name, array in {**CONSTANTS, **weights, **changed}.items():
        if any(name in node.input for node in model.graph.node):
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: onnx.ModelProto, batch: int = 2) -> list[NDArray[Any]]:
    """The outputs on fixed input, whose last sample is masked as a whole."""
    generator = np.random.default_rng(1)
    mask = generator.random((batch, 1, 4, 4)) < 0.7
    mask[-1] = False
    feeds = {"x": generator.standard_normal((batch, 4, 6)).astype(np.float32), "m": mask}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}
    return list(session.run(None, {name: array for name, array in feeds.items() if name in wanted}))


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def test_all_three_go_and_the_outputs_stay_also_where_a_row_is_masked_as_a_whole() -> None:
    model = make()
    before = run(model)
    assert simplify_attention(model) == ALL
    onnx.checker.check_model(model, full_check=True)
    assert operators(model) == {
        "MatMul": 5, "Add": 2, "Reshape": 3, "Transpose": 3, "Where": 1, "Softmax": 1,
    }  # fmt: skip
    np.testing.assert_allclose(run(model)[0], before[0], rtol=1e-5, atol=1e-6)
    assert simplify_attention(model) == {}


def test_a_guard_against_masks_of_minus_infinity_stays() -> None:
    model = make(lowest=np.float32(-np.inf))
    before = run(model)
    assert not before[0][-1].any(), "the guard makes zeros of the row that is masked as a whole"
    assert "guard dropped" not in simplify_attention(model)
    np.testing.assert_allclose(run(model)[0], before[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "scores", ["s = Add(s0, given)", "l = Log(s0) s = Add(l, mask)", "s = Div(s0, given)"]
)
def test_a_guard_stays_where_scores_may_hold_an_infinity_or_nan(scores: str) -> None:
    signature = SCORES.replace("bool[b,1,4,4] m", "bool[b,1,4,4] m, float[b,1,4,4] given")
    model = make(ATTENTION.replace("s = Add(s0, mask)", scores), signature)
    assert "guard dropped" not in simplify_attention(model)
    assert operators(model)["IsNaN"] == 1


def test_a_guard_that_puts_in_something_else_stays() -> None:
    model = make(zero=np.float32(0.5))
    assert "guard dropped" not in simplify_attention(model)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("k4 = Transpose <perm = [0,2,1]> (k3)", "k4 = Transpose <perm = [0,1,2]> (k3)"),
        ("k2 = Transpose <perm = [0,2,1,3]> (k1)", "k2 = Transpose <perm = [0,1,2,3]> (k1)"),
    ],
)
def test_other_transpositions_stay(old: str, new: str) -> None:
    model = make(ATTENTION.replace(old, new), "g (float[b,4,6] x, bool[b,1,4,4] m) => (float[b,h,s,d] y)",
                 flat=np.array([-1, 3, 4]) if "[0,1,2]>" in new else np.array([-1, 4, 3]),
                 back=np.array([-1, 2, 3, 4]))  # fmt: skip
    before = run(model)
    assert "transpositions merged" not in simplify_attention(model)
    np.testing.assert_allclose(run(model)[0], before[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kept", ["q", "q1", "qs", "k4", "p"])
def test_what_is_an_output_of_the_model_keeps_its_value(kept: str) -> None:
    model = make()
    model.graph.output.append(onnx.helper.make_tensor_value_info(kept, onnx.TensorProto.FLOAT, None))
    before = run(model)
    simplify_attention(model)
    for found, expected in zip(run(model), before, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_scale_on_a_weight_that_two_products_share_is_not_folded() -> None:
    model = make(ATTENTION.replace("MatMul(x, wk)", "MatMul(x, wq)"))
    before = run(model)
    assert "scale folded into weights" not in simplify_attention(model)
    np.testing.assert_allclose(run(model)[0], before[0], rtol=1e-5, atol=1e-6)


def test_a_scale_of_several_numbers_is_not_folded() -> None:
    body = ATTENTION.replace("ks = Mul(k, c)", "ks = Mul(k, column)")
    model = make(body, c=np.float32([0.5, 1, 2]), column=np.float32([[1], [2], [3]]))
    assert "scale folded into weights" not in simplify_attention(model)
