"""Operators in TensorRT's forms compute the same, and its parser takes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import parser
from written_models import outputs_of

import qcompile
from qcompile.compiler.opset.plain_forms import einsums_in_lower_case, eyes_to_ranges


def model_of(text: str) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> tiny {text}')
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize(
    ("equation", "expected"),
    [
        ("bIj,bjK->bIK", "baj,bjc->bac"),
        ("...Ab,...bC->...AC", "...ab,...bc->...ac"),
        ("ij,jk->ik", "ij,jk->ik"),
    ],
)
def test_capital_axes_get_letters_that_are_free(equation: str, expected: str) -> None:
    model = model_of(f'(float[b,i,j] x) => (float y) {{ [one] y = Einsum<equation="{equation}">(x, x) }}')
    assert einsums_in_lower_case(model) == (["one"] if equation != expected else [])
    (found,) = (one.s.decode() for one in model.graph.node[0].attribute)
    assert found == expected
    x = np.random.default_rng(0).standard_normal((3, 3) if equation[0] == "i" else (2, 3, 3))
    np.testing.assert_allclose(np.einsum(found, x, x), np.einsum(equation, x, x))


@given(rows=st.integers(1, 5), columns=st.integers(1, 5), k=st.integers(-3, 3), own=st.booleans())
def test_the_identity_is_that_of_numpy(rows: int, columns: int, k: int, own: bool) -> None:
    dtype = ", dtype=7" if own else ""
    kind = "int64" if own else "float"
    model = model_of(f"(float[n,m] x) => ({kind}[n,m] y) {{ [eye] y = EyeLike<k={k}{dtype}>(x) }}")
    assert eyes_to_ranges(model) == ["eye"]
    onnx.checker.check_model(model, full_check=True)
    (found,) = outputs_of(model, np.zeros((rows, columns), np.float32))
    np.testing.assert_array_equal(found, np.eye(rows, columns, k))
    assert found.dtype == (np.int64 if own else np.float32)


@pytest.mark.parametrize(
    "text",
    [
        "(float[n,m] x) => (float[n,m] y) { e = EyeLike(x) y = Add(e, x) }",
        '(float[n,4] x) => (float[n,n] y) { y = Einsum<equation="Nc,Mc->NM">(x, x) }',
        """(float[n,8,4] x) => (float[n,2,4,4] y) <int64[2] image = {4,4}, int64[2] block = {2,2}> {
            y = Col2Im<strides=[2,2]>(x, image, block) }""",
    ],
)
def test_an_engine_is_built_of_what_the_parser_refuses_as_it_is(text: str, tmp_path: Path) -> None:
    onnx.save(model_of(text), tmp_path / "m.onnx")
    shapes = {"x": (2, 8, 4) if "Col2Im" in text else (3, 4)}
    made = qcompile.build(
        tmp_path / "m.onnx", tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"],
        min_shapes=shapes, opt_shapes=shapes, max_shapes=shapes,
    )  # fmt: skip
    assert made.path.stat().st_size
