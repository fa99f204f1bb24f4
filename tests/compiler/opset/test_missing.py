"""Operators that a reader lacks are written in those that it has, to the same values; others are refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from two_opsets import model, operators, run

from qcompile.compiler.opset.lower import require_operators, without_missing
from qcompile.engines.tensorrt.parser_operators import parser_of
from qcompile.errors import UnsupportedOperator
from qcompile.model.onnx_file import copy_model, model_io, opset
from qcompile.model.random_input import random_feeds

VERSIONS = {"8.5.3.1": 16, "10.0.1": 20, "10.13.0": 23}


def reads(version: str) -> frozenset[str]:
    parser = parser_of(version)
    assert parser is not None
    return parser.operators


CASES = {
    "IsInf": ("8.5.3", model(16, "(float[6] x) => (bool[6] y)", "y = IsInf(x)")),
    "IsInf of one sign": (
        "8.5.3",
        model(16, "(float[6] x) => (bool[6] y)", "y = IsInf <detect_positive=0> (x)"),
    ),
    "CastLike": ("8.6.1", model(15, "(float[6] x, int32[1] t) => (int32[6] y)", "y = CastLike(x, t)")),
    "Mish": ("8.6.1", model(18, "(float[6] x) => (float[6] y)", "y = Mish(x)")),
    "Gelu": ("8.6.1", model(20, "(float[6] x) => (float[6] y)", "y = Gelu(x)")),
    "LayerNormalization": (
        "8.5.3",
        model(
            17, "(float[2, 6] x, float[6] s) => (float[2, 6] y)", "y = LayerNormalization <axis=-1> (x, s)"
        ),
    ),
    "RMSNormalization": (
        "10.14.1",
        model(23, "(float[2, 6] x, float[6] s) => (float[2, 6] y)", "y = RMSNormalization <axis=-1> (x, s)"),
    ),
    "RotaryEmbedding": (
        "10.14.1",
        model(
            23,
            "(float[2, 4, 3, 8] x, float[2, 3, 4] c, float[2, 3, 4] s) => (float[2, 4, 3, 8] y)",
            "y = RotaryEmbedding (x, c, s)",
        ),
    ),
    "Attention": (
        "10.13.0",
        model(
            23,
            "(float[2, 4, 3, 8] q, float[2, 4, 3, 8] k, float[2, 4, 3, 8] v) => (float[2, 4, 3, 8] y)",
            "y = Attention (q, k, v)",
        ),
    ),
    "HannWindow": (
        "10.3.0",
        model(17, "() => (float[n] y)", "n = Constant <value_int=8> () y = HannWindow(n)"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_version_lacks_is_written_in_what_it_has(case: str) -> None:
    version, before = CASES[case]
    lacking = case.split()[0]
    assert lacking not in reads(version)
    after = copy_model(before)
    assert without_missing(after, reads(version))
    assert opset(after) == opset(before)
    onnx.checker.check_model(after, full_check=True)
    assert lacking not in operators(after)
    require_operators(after, reads(version), "tensorrt", "m.onnx")
    feeds = random_feeds(model_io(before).inputs)
    if "IsInf" in case:
        feeds = {"x": np.array([1, np.inf, -np.inf, np.nan, 0, -3], np.float32)}
    for expected, found in zip(run(before, feeds), run(after, feeds), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def test_what_a_version_has_stays() -> None:
    proto = model(17, "(float[2, 6] x, float[6] s) => (float[2, 6] y)", "y = LayerNormalization (x, s)")
    assert without_missing(proto, reads("8.6.1")) == []
    assert operators(proto) == ["LayerNormalization"]


def test_an_operator_inside_a_branch_is_written_in_others_too() -> None:
    body = (
        "y = If (c) <then_branch = a () => (bool[6] t) { t = IsInf(x) }, "
        "else_branch = b () => (bool[6] e) { e = IsNaN(x) }>"
    )
    proto = model(16, "(bool c, float[6] x) => (bool[6] y)", body)
    assert without_missing(proto, reads("8.5.3"))
    onnx.checker.check_model(proto, full_check=True)
    feeds = {"c": np.array(True), "x": np.array([1, np.inf, -np.inf, np.nan, 0, -3], np.float32)}
    np.testing.assert_array_equal(run(proto, feeds)[0], np.isinf(feeds["x"]))


def test_what_has_no_other_form_is_refused_with_operator_node_and_version() -> None:
    proto = model(16, "(float[2, 2] x) => (float y)", "y = Det(x)")
    proto.graph.node[0].name = "determinant"
    assert without_missing(proto, reads("8.5.3")) == []
    with pytest.raises(
        UnsupportedOperator, match=r"m\.onnx: tensorrt 8\.5\.3 has no Det: node 'determinant'"
    ) as found:
        require_operators(proto, reads("8.5.3"), "tensorrt 8.5.3", "m.onnx")
    assert found.value.data["operator"] == "Det"
    assert "`plugins`" in found.value.hint


def test_a_name_that_onnx_does_not_define_is_left_to_the_reader() -> None:
    proto = model(16, "(float[2] x) => (float[2] y)", "y = EfficientNMS_TRT(x)")
    assert without_missing(proto, reads("8.5.3")) == []
    require_operators(proto, reads("8.5.3"), "tensorrt 8.5.3", "m.onnx")
