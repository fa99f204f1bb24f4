"""Operators in TensorRT's forms compute the same, and its parser takes them.

Blocks side by side are put back to an image as PyTorch's fold does; others keep Col2Im.

Sums over the edges of a graph, as a product with a matrix of ones: the same numbers, and RTX builds it.

A convolution whose weights are quantized says its kernel_shape, which TensorRT's parser needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from carried_graphs import quantized
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper, parser
from written_models import outputs_of

import qcompile
from qcompile.compiler.opset.plain_forms import (
    einsums_in_lower_case,
    eyes_to_ranges,
    folds_to_transposes,
    scatter_adds_to_products,
    write_kernel_shapes,
)
from qcompile.model.graph import attribute


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


def fold(image: tuple[int, int], block: tuple[int, int], attributes: str) -> onnx.ModelProto:
    """A Col2Im."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> tiny (float[n,c,l] x) => (float[n,d,h,w] y)'
        f"{{ [fold] y = Col2Im<{attributes}>(x, image, block) }}"
    )
    for name, values in (("image", image), ("block", block)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(values), name))
    onnx.checker.check_model(model)
    return model


@given(
    channels=st.integers(1, 3), rows=st.integers(1, 3), columns=st.integers(1, 3),
    down=st.integers(1, 3), across=st.integers(1, 3),
)  # fmt: skip
def test_the_image_is_that_of_pytorch(channels: int, rows: int, columns: int, down: int, across: int) -> None:
    image, block = (rows * down, columns * across), (rows, columns)
    model = fold(image, block, f"strides=[{rows},{columns}]")
    assert folds_to_transposes(model)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Reshape", "Transpose", "Reshape"]
    x = np.random.default_rng(0).standard_normal((2, channels * rows * columns, down * across))
    expected = torch.nn.functional.fold(torch.from_numpy(x), image, block, stride=block).numpy()
    np.testing.assert_array_equal(outputs_of(model, x.astype(np.float32))[0], expected.astype(np.float32))


@pytest.mark.parametrize(
    "attributes",
    ["strides=[1,1]", "strides=[2,2], pads=[1,1,1,1]", "strides=[2,2], dilations=[2,2]", "strides=[2,1]"],
)
def test_blocks_that_overlap_or_are_padded_stay(attributes: str) -> None:
    model = fold((4, 4), (2, 2), attributes)
    before = model.SerializeToString()
    assert folds_to_transposes(model) == []
    assert model.SerializeToString() == before


GRAPH = """<ir_version: 8, opset_import: ["" : 18]>
graph (float[nodes,3] x, int64[2,edges] edges) => (float[nodes,3] y)
<int64 source = {0}, int64 target = {1}, int64[1] last = {-1}> {
    from = Gather <axis = 0> (edges, source)
    to = Gather <axis = 0> (edges, target)
    messages = Gather <axis = 0> (x, from)
    index = Unsqueeze(to, last)
    [sum] y = ScatterND <reduction = "add"> (x, index, messages)
}"""


def test_rows_are_added_as_numpy_adds_them() -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((5, 3)).astype(np.float32)
    edges = generator.integers(0, 5, (2, 40))  # several edges lead to each node
    expected = x.copy()
    np.add.at(expected, edges[1], x[edges[0]])
    model = parser.parse_model(GRAPH)
    assert scatter_adds_to_products(model) == ["sum"]
    onnx.checker.check_model(model, full_check=True)
    assert "ScatterND" not in {node.op_type for node in model.graph.node}
    (found,) = outputs_of(model, {"x": x, "edges": edges})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changed", ['reduction = "mul"', 'reduction = "none"'])
def test_what_does_not_add_stays(changed: str) -> None:
    model = parser.parse_model(GRAPH.replace('reduction = "add"', changed))
    assert scatter_adds_to_products(model) == []


def test_rtx_builds_a_sum_over_edges(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    text = GRAPH.replace("from = Gather", "h = MatMul(x, w) from = Gather").replace("(x, from)", "(h, from)")
    model = parser.parse_model(text)
    weight = np.random.default_rng(1).standard_normal((3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "graph.onnx")
    shapes = {"x": (5, 3), "edges": (2, 8)}
    built = qcompile.build(
        tmp_path / "graph.onnx", tmp_path / "graph.engine", target="tensorrt-rtx", precision="fp16",
        gpus=["sm86"], min_shapes=shapes, opt_shapes=shapes, max_shapes={"x": (50, 3), "edges": (2, 80)},
    )  # fmt: skip
    proof = built.manifest.proof
    assert proof["reached_in_precision"] == proof["planned_in_precision"] == 2  # the sum is a product, too


TEXT = """<ir_version: 8, opset_import: ["" : 17]>
    tiny (float[1,2,6,6] x) => (float[1,2,6,6] y) { y = Conv <pads = [1, 2, 1, 2]> (x, w) }"""


def conv_3x5() -> onnx.ModelProto:
    """A convolution of 3x5 that does not say so."""
    model = parser.parse_model(TEXT)
    weight = np.random.default_rng(1).standard_normal((2, 2, 3, 5)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model


def feeds() -> dict[str, Any]:
    return {"x": np.random.default_rng(0).standard_normal((1, 2, 6, 6)).astype(np.float32)}


def conv(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == "Conv")


def test_it_is_written_where_the_weights_are_behind_qdq() -> None:
    model = quantized(conv_3x5(), feeds())
    (before,) = outputs_of(model, feeds())
    assert write_kernel_shapes(model)
    assert attribute(conv(model), "kernel_shape") == [3, 5]
    np.testing.assert_array_equal(outputs_of(model, feeds())[0], before)
    assert not write_kernel_shapes(model), "it is there now"


def test_weights_that_are_initializers_need_none() -> None:
    model = conv_3x5()
    assert not write_kernel_shapes(model)
    assert attribute(conv(model), "kernel_shape") is None


@pytest.mark.parametrize("target", ["tensorrt-rtx", "onnxruntime"])
def test_it_is_lowered_for_tensorrt_alone(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qcompile.engines import build as building

    source = tmp_path / "q.onnx"
    onnx.save(quantized(conv_3x5(), feeds()), source)
    seen: list[Any] = []

    def keep(request: Any) -> None:
        seen.append(attribute(conv(onnx.load(request.model)), "kernel_shape"))
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "build_engine", keep)
    gpus = {"gpus": ["sm86"]} if target == "tensorrt-rtx" else {}
    with pytest.raises(KeyboardInterrupt):
        qcompile.build(source, tmp_path / "m.engine", target=target, precision="int8", **gpus)
    assert seen == [[3, 5] if target == "tensorrt-rtx" else None]
