"""Einsum becomes MatMul, Mul or ReduceSum, which quantizers know; numpy's einsum is the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_models import model_of, outputs_of

from qcompile.compiler.simplify.einsums import einsums_to_products
from qcompile.compiler.simplify.simplify import simplify

EXTENTS = dict(zip("abcdefgh", (2, 3, 4, 5, 2, 3, 4, 5), strict=True))


def of_equation(equation: str, *shapes: tuple[Any, ...], opset: int = 17, **stored: Any) -> onnx.ModelProto:
    inputs = {f"x{index}": ",".join(map(str, shape)) for index, shape in enumerate(shapes)}
    declared = ", ".join(f"float[{shape}] {name}" for name, shape in inputs.items())
    letters = equation.partition("->")[2].replace("...", "zz")
    result = f"[{','.join(f'r{axis}' for axis in range(len(letters)))}]" if letters else ""
    body = f'[e] y = Einsum <equation = "{equation}"> ({", ".join([*inputs, *stored])})'
    return model_of(f"({declared}) => (float{result} y) {{ {body} }}", opset=opset, **stored)


def ran(model: onnx.ModelProto, *arrays: Any) -> Any:
    onnx.checker.check_model(model, full_check=True)
    return outputs_of(model, {f"x{index}": array for index, array in enumerate(arrays)})[0]


def arrays_of(*shapes: tuple[int, ...]) -> list[Any]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("opset", [12, 20])
@pytest.mark.parametrize(
    ("equation", "operator"),
    [
        ("bhid,bhjd->bhij", "MatMul"),  # scores of attention
        ("bhij,bhjd->bhid", "MatMul"),
        ("bid,de->bie", "MatMul"),
        ("bn,bnd->bd", "MatMul"),
        ("bnd,bd->bn", "MatMul"),
        ("abd,dce->abce", "MatMul"),  # a weight by heads
        ("abcd,cde->abe", "MatMul"),  # heads back together
        ("bd,bd->b", "MatMul"),
        ("ac,bc->ab", "MatMul"),
        ("ab,bc->ca", "MatMul"),
        ("abc,bdc->bad", "MatMul"),
        ("a,b->ab", "Mul"),
        ("abc,b->cba", "Mul"),
        ("abc->ca", "ReduceSum"),
        ("abc->cab", "Transpose"),
    ],
)
def test_of_known_extents(equation: str, operator: str, opset: int) -> None:
    terms = equation.partition("->")[0].split(",")
    extents = EXTENTS | {"n": 6, "i": 3, "j": 4}
    arrays = arrays_of(*(tuple(extents[letter] for letter in term) for term in terms))
    model = of_equation(equation, *(array.shape for array in arrays), opset=opset)
    assert einsums_to_products(model) == ["e"]
    made = [node.op_type for node in model.graph.node]
    assert "Einsum" not in made
    assert operator in made
    np.testing.assert_allclose(ran(model, *arrays), np.einsum(equation, *arrays), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes", "dynamic"),
    [
        ("bhid,bhjd->bhij", [(2, 3, 5, 4), (2, 3, 7, 4)], [("b", 3, "i", 4), ("b", 3, "j", 4)]),
        ("bnd,de->bne", [(2, 5, 4), (4, 6)], [("b", "n", 4), (4, 6)]),
        ("bnd,dhe->bhne", [(2, 5, 4), (4, 3, 6)], [("b", "n", 4), (4, 3, 6)]),
        ("bhne,hed->bnd", [(2, 3, 5, 4), (3, 4, 6)], [("b", 3, "n", 4), (3, 4, 6)]),
        ("bjd,ij->bid", [(2, 5, 4), (3, 5)], [("b", "j", 4), ("i", "j")]),
        ("...id,...jd->...ij", [(2, 3, 5, 4), (2, 3, 7, 4)], [("b", 3, "i", 4), ("b", 3, "j", 4)]),
    ],
)
def test_of_dynamic_extents(equation: str, shapes: Any, dynamic: Any) -> None:
    arrays = arrays_of(*shapes)
    model = of_equation(equation, *dynamic)
    assert einsums_to_products(model) == ["e"]
    np.testing.assert_allclose(ran(model, *arrays), np.einsum(equation, *arrays), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "dynamic"),
    [
        ("aab,bc->ac", [(3, 3, 4), (4, 5)]),  # a diagonal
        ("ab,bc->a", [(3, 4), (4, 5)]),  # c is summed in one operand
        ("ab,ab->", [(3, 4), (3, 4)]),
        ("ab,bc->ac", [(3, 1), (4, 5)]),  # b is broadcast
        ("abd,dce->abce", [("a", "b", 4), (4, "c", "e")]),  # two extents that no Reshape can say
    ],
)
def test_what_is_no_product_stays(equation: str, dynamic: Any) -> None:
    model = of_equation(equation, *dynamic)
    before = model.SerializeToString()
    assert einsums_to_products(model) == []
    assert model.SerializeToString() == before


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_equation_computes_what_numpy_does(data: st.DataObject) -> None:
    letters = st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True)
    terms = ["".join(data.draw(letters)) for _ in range(data.draw(st.integers(1, 2)))]
    known = sorted(set("".join(terms)))
    result = "".join(data.draw(st.permutations(data.draw(st.lists(st.sampled_from(known), unique=True)))))
    equation = f"{','.join(terms)}->{result}"
    arrays = arrays_of(*(tuple(EXTENTS[letter] for letter in term) for term in terms))
    if result:  # a scalar has no shape to declare
        model = of_equation(equation, *(array.shape for array in arrays))
        einsums_to_products(model)
        np.testing.assert_allclose(ran(model, *arrays), np.einsum(equation, *arrays), rtol=1e-4, atol=1e-4)


def test_simplify_makes_products_whose_weights_stand_ready(tmp_path: Path) -> None:
    (weight,) = arrays_of((4, 3, 6))
    path = tmp_path / "model.onnx"
    onnx.save(of_equation("bnd,dhe->bhne", ("b", "n", 4), weight=weight), path)
    artifact = simplify(path, tmp_path / "simple.onnx")
    nodes = onnx.load(artifact.path).graph.node
    assert sorted(node.op_type for node in nodes) == ["MatMul", "Reshape", "Transpose"]
    (x,) = arrays_of((2, 5, 4))
    np.testing.assert_allclose(
        ran(onnx.load(artifact.path), x), np.einsum("bnd,dhe->bhne", x, weight), rtol=1e-5, atol=1e-5
    )
