"""Operators in TensorRT's forms compute the same, and its parser takes them."""

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
from written_models import model_of, normal, outputs_of

import qcompile
from qcompile.compiler.opset.byte_forms import bytes_to_floats
from qcompile.compiler.opset.scatter_forms import scatters_to_masks
from qcompile.compiler.opset.tensorrt_forms import (
    ceilings_to_integers,
    counts_to_integers,
    einsums_in_lower_case,
    elus_to_exponents,
    eyes_to_ranges,
    folds_to_transposes,
    write_kernel_shapes,
)
from qcompile.model.graph.graph import attribute


@pytest.mark.parametrize(
    ("equation", "expected"),
    [
        ("bIj,bjK->bIK", "baj,bjc->bac"),
        ("...Ab,...bC->...AC", "...ab,...bc->...ac"),
        ("ij,jk->ik", "ij,jk->ik"),
    ],
)
def test_capital_axes_get_letters_that_are_free(equation: str, expected: str) -> None:
    model = model_of(
        f'(float[b,i,j] x) => (float y) {{ [one] y = Einsum<equation="{equation}">(x, x) }}', opset=18
    )
    assert einsums_in_lower_case(model) == (["one"] if equation != expected else [])
    (found,) = (one.s.decode() for one in model.graph.node[0].attribute)
    assert found == expected
    x = np.random.default_rng(0).standard_normal((3, 3) if equation[0] == "i" else (2, 3, 3))
    np.testing.assert_allclose(np.einsum(found, x, x), np.einsum(equation, x, x))


@given(rows=st.integers(1, 5), columns=st.integers(1, 5), k=st.integers(-3, 3), own=st.booleans())
def test_the_identity_is_that_of_numpy(rows: int, columns: int, k: int, own: bool) -> None:
    dtype = ", dtype=7" if own else ""
    kind = "int64" if own else "float"
    model = model_of(f"(float[n,m] x) => ({kind}[n,m] y) {{ [eye] y = EyeLike<k={k}{dtype}>(x) }}", opset=18)
    assert eyes_to_ranges(model) == ["eye"]
    onnx.checker.check_model(model, full_check=True)
    (found,) = outputs_of(model, np.zeros((rows, columns), np.float32))
    np.testing.assert_array_equal(found, np.eye(rows, columns, k))
    assert found.dtype == (np.int64 if own else np.float32)


BYTES = """(uint8[n,8,8,3] x) => (float[n,6,4,4] y, uint8[n,4,8,3] cut)
<int64[1] zero = {0}, int64[1] four = {4}, int64[1] one = {1}, uint8[3] colour = {250, 3, 128},
float[4] scales = {1, 1, 0.5, 0.5}, uint8 least = {9}> {
    cut = Slice(x, zero, four, one)  tall = Concat <axis = 1> (cut, cut)  bright = Max(tall, colour)
    is = Greater(bright, least)  chosen = Where(is, bright, least)
    turned = Transpose <perm = [0, 3, 1, 2]> (chosen)
    small = Resize <mode = "nearest"> (turned, , scales)  y1 = Cast <to = 1> (small)
    other = Transpose <perm = [0, 3, 1, 2]> (x)  f = Cast <to = 1> (other)
    y2 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (f)  y = Concat <axis = 1> (y1, y2)
}"""
BUILT: dict[str, tuple[str, dict[str, tuple[int, ...]], int]] = {
    "an identity": ("(float[n,m] x) => (float[n,m] y) { e = EyeLike(x) y = Add(e, x) }", {"x": (3, 4)}, 0),
    "an Einsum in capitals": (
        '(float[n,4] x) => (float[n,n] y) { y = Einsum<equation="Nc,Mc->NM">(x, x) }', {"x": (3, 4)}, 0,
    ),
    "a fold": (
        """(float[n,8,4] x) => (float[n,2,4,4] y) <int64[2] image = {4,4}, int64[2] block = {2,2}> {
        y = Col2Im<strides=[2,2]>(x, image, block) }""", {"x": (2, 8, 4)}, 0,
    ),
    "an Elu behind a recurrent layer": (
        """(float[8,n,8] x) => (float[n,8,8] y) <float[1,32,8] w, float[1,32,8] r, float[8,8,3] k,
        int64[1] one = {1}> { l = LSTM <hidden_size = 8> (x, w, r) s = Squeeze(l, one)
        t = Transpose <perm = [1, 2, 0]> (s) a = Elu(t) c = Conv <pads = [1, 1]> (a, k) y = Elu(c) }""",
        {"x": (8, 2, 8)}, 3,
    ),
    "a fold of blocks that overlap": (
        """(float[n,8,9] x) => (float[n,2,4,4] y) <int64[2] image = {4,4}, int64[2] block = {2,2}> {
        y = Col2Im<strides=[1,1]>(x, image, block) }""", {"x": (2, 8, 9)}, 1,
    ),
    "a transform": (
        """(float[n,16,1] x) => (float[n,r,1] y) <int64 length = {16}> {
        f = DFT<axis = 1, onesided = 1>(x, length) y = ReduceSumSquare<axes = [2]>(f) }""",
        {"x": (2, 16, 1)}, 1,
    ),
    "a sum over edges": (  # the sum is a product, too
        """(float[nodes,3] x, int64[2,edges] edges) => (float[nodes,3] y) <float[3,3] w, int64 source = {0},
        int64 target = {1}, int64[1] last = {-1}> {
        h = MatMul(x, w) from = Gather <axis = 0> (edges, source) to = Gather <axis = 0> (edges, target)
        messages = Gather <axis = 0> (h, from) index = Unsqueeze(to, last)
        [sum] y = ScatterND <reduction = "add"> (x, index, messages) }""",
        {"x": (5, 3), "edges": (2, 8)}, 2,
    ),
    "a maximum over edges": (
        """(float[nodes,3] x, int64[edges,3] index, float[edges,3] u) => (float[nodes,3] y) {
        y = ScatterElements <reduction = "max"> (x, index, u) }""",
        {"x": (5, 3), "index": (8, 3), "u": (8, 3)}, 0,
    ),
    "bytes": (BYTES, {"x": (2, 8, 8, 3)}, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", BUILT)
def test_an_engine_is_built_of_what_the_parser_refuses_as_it_is(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    text, shapes, products = BUILT[name]
    model, opset = tmp_path / "m.onnx", 17 if "DFT" in text else 18
    onnx.save(model_of(text, opset=opset), model)
    built = qcompile.build(
        model, tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"],
        min_shapes=shapes, opt_shapes=shapes, max_shapes=shapes,
    )  # fmt: skip
    assert built.path.stat().st_size
    assert built.manifest.proof["reached_in_precision"] == products
    if "DFT" in text:
        pytest.importorskip("openvino")  # which has none either
        proof = qcompile.build(model, tmp_path / "o.onnx", target="openvino").manifest.proof
        assert proof["reached_in_precision"] == products


PLACES = """(float[n,3,h,w] x) => (float[n,3] y) <int64 last = {3}, float zero = {0}, float one = {1},
float[3,3,1,1] k, int64[1] axis = {2}> { c = Conv(x, k) e = Shape(x) g = Gather(e, last) f = Cast <to = 1> (g)
[count] r = Range(zero, f, one) s = ReduceSum <keepdims = 0> (c, axis) p = Softmax(s) m = Mul(p, r)
y = ReduceSum <keepdims = 0> (m, axis) }"""
"""Where the largest values of the columns are, as estimators of poses compute it."""


def test_places_are_counted_in_integers() -> None:
    model, x = model_of(PLACES, opset=18), normal(2, 3, 4, 5)
    expected = outputs_of(model, x)
    assert counts_to_integers(model) == ["count"]
    onnx.checker.check_model(model, full_check=True)
    np.testing.assert_array_equal(outputs_of(model, x), expected)
    assert not counts_to_integers(model)


WINDOWED = """(float[n,length,4] x) => (float[n,blocks,32] y) <float eight = {8}, int64 width = {8},
int64 axis = {1}, float[4,4] w, int64[1] one = {1}, int64[1] zero = {0}, int64[3] shape = {0, -1, 32},
float none = {0}> {
    m = MatMul(x, w)
    e = Shape(x) l = Gather(e, axis) f = Cast <to = 1> (l) d = Div(f, eight) c = Ceil(d)
    [count] k = Cast <to = 7> (c) total = Mul(k, width) lack = Sub(total, l)
    lacks = Unsqueeze(lack, zero) pads = Concat <axis = 0> (zero, zero, zero, zero, lacks, zero)
    p = Pad(m, pads, none) y = Reshape(p, shape) }"""
"""What local attention does: its length is padded to whole windows."""


@pytest.mark.parametrize("length", [1, 7, 8, 9, 17])
def test_windows_are_counted_in_integers(length: int) -> None:
    model, x = model_of(WINDOWED, opset=18), normal(2, length, 4)
    expected = outputs_of(model, x)
    assert ceilings_to_integers(model) == ["count"]
    onnx.checker.check_model(model, full_check=True)
    assert not {"Ceil", "Div"} & {node.op_type for node in model.graph.node if node.output[0] in "cd"}
    np.testing.assert_array_equal(outputs_of(model, x), expected)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (PLACES, [(2, 3, 4, 5), (2, 3, 4, 9), (4, 3, 8, 16)]),
        (WINDOWED, [(1, 8, 4), (2, 17, 4), (4, 64, 4)]),
    ],
    ids=["places", "windows"],
)
def test_what_is_counted_stays_beside_fp16(text: str, shapes: list[tuple[int, ...]], tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    onnx.save(model_of(text, opset=18), tmp_path / "m.onnx")
    least, usual, most = ({"x": shape} for shape in shapes)
    built = qcompile.build(
        tmp_path / "m.onnx", tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"], precision="fp16",
        min_shapes=least, opt_shapes=usual, max_shapes=most,
    )  # fmt: skip
    assert built.path.stat().st_size


@pytest.mark.parametrize("source", ["f = Cast <to = 1> (a)", "f = Neg(x)"])
def test_what_is_no_extent_is_rounded_up_as_it_was(source: str) -> None:
    text = f"""(float[n] x, int64[n] a) => (int64[n] y) <float eight = {{8}}>
    {{ {source} d = Div(f, eight) c = Ceil(d) y = Cast <to = 7> (c) }}"""
    assert not ceilings_to_integers(model_of(text, opset=18))


def fold(image: tuple[int, int], block: tuple[int, int], attributes: str) -> onnx.ModelProto:
    """A Col2Im."""
    text = f"(float[n,c,l] x) => (float[n,d,h,w] y) {{ [fold] y = Col2Im<{attributes}>(x, image, block) }}"
    return model_of(text, opset=18, image=np.array(image), block=np.array(block))


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


@given(
    block=st.tuples(st.integers(1, 3), st.integers(1, 3)), image=st.tuples(*[st.integers(7, 10)] * 2),
    stride=st.tuples(*[st.integers(1, 3)] * 2), padding=st.tuples(*[st.integers(0, 1)] * 2),
    dilation=st.tuples(*[st.integers(1, 2)] * 2),
)  # fmt: skip
def test_blocks_that_overlap_or_are_padded_are_those_of_pytorch(
    block: tuple[int, int],
    image: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> None:
    words = {"strides": stride, "pads": padding * 2, "dilations": dilation}
    model = fold(image, block, ", ".join(f"{name}={[*value]}" for name, value in words.items()))
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    x = torch.nn.functional.unfold(torch.randn(2, 3, *image), block, **options)
    assert folds_to_transposes(model) == ["fold"]
    onnx.checker.check_model(model)
    expected = torch.nn.functional.fold(x, image, block, **options).numpy()
    np.testing.assert_allclose(outputs_of(model, x.numpy())[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("extents", [(7, 9), (8, 12), (5, 5)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
def test_an_image_of_run_time_is_that_of_pytorch(extents: tuple[int, int], stride: tuple[int, int]) -> None:
    words = f"strides=[{stride[0]},{stride[1]}], pads=[1,0,1,0], dilations=[1,2]"
    text = f"""(float[n,c,l] x, int64[2] image) => (float[n,d,h,w] y)
    {{ [fold] y = Col2Im<{words}>(x, image, block) }}"""
    model = model_of(text, opset=18, block=np.array((3, 2)))
    options: dict[str, Any] = {"stride": stride, "padding": (1, 0), "dilation": (1, 2)}
    x = torch.nn.functional.unfold(torch.randn(2, 3, *extents), (3, 2), **options)
    assert folds_to_transposes(model) == ["fold"]
    onnx.checker.check_model(model, full_check=True)
    expected = torch.nn.functional.fold(x, extents, (3, 2), **options).numpy()
    (found,) = outputs_of(model, {"x": x.numpy(), "image": np.array(extents)})
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_bytes_are_moved_in_float32_and_stay_what_they_are() -> None:
    model = model_of(BYTES, opset=18)
    x = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)
    expected = outputs_of(model, x)
    assert len(bytes_to_floats(model)) == 10
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node].count("Cast") == 4  # in, out, and the user's two
    for array, other in zip(outputs_of(model, x), expected, strict=True):
        np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-7), ("float16", 1e-3)])
def test_an_elu_is_that_of_onnx_runtime_and_never_overflows(dtype: str, error: float) -> None:
    kind = dtype.replace("32", "")
    model = model_of(f"({kind}[n] x) => ({kind}[n] y) {{ [elu] y = Elu <alpha = 0.5> (x) }}", opset=18)
    x = np.array([-60000, -20, -1, -0.01, 0, 0.01, 20, 60000], dtype)
    positive = np.maximum(x, 0).astype(np.float64)
    expected = positive + 0.5 * np.expm1(np.minimum(x, 0).astype(np.float64))
    assert elus_to_exponents(model) == ["elu"]
    onnx.checker.check_model(model, full_check=True)
    np.testing.assert_allclose(outputs_of(model, x)[0], expected, rtol=error, atol=error)


REDUCED = {
    "rows of messages": ("ScatterND <reduction = {0!r}>", (5, 3), (8, 1), (8, 3)),
    "a matrix of edges": ("ScatterND <reduction = {0!r}>", (5, 3), (2, 4, 1), (2, 4, 3)),
    "numbers": ("ScatterElements <reduction = {0!r}>", (5,), (8,), (8,)),
    "another index in each column": ("ScatterElements <reduction = {0!r}>", (5, 3), (8, 3), (8, 3)),
    "the last axis": ("ScatterElements <reduction = {0!r}, axis = -1>", (3, 5), (3, 8), (3, 8)),
}


@pytest.mark.parametrize("name", REDUCED)
@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["float", "int64"])
def test_a_scatter_that_reduces_computes_the_same(name: str, reduction: str, dtype: str) -> None:
    operator, *shapes = REDUCED[name]
    generator = np.random.default_rng(0)
    data, updates = (
        generator.integers(-9, 9, shape).astype(dtype.replace("float", "float32")) for shape in shapes[::2]
    )
    index = generator.integers(-5, 5, shapes[1])  # from the end, too
    axes = [",".join({5: "n", 8: "e"}.get(extent, str(extent)) for extent in shape) for shape in shapes]
    model = model_of(
        f"({dtype}[{axes[0]}] x, int64[{axes[1]}] i, {dtype}[{axes[2]}] u) => ({dtype}[{axes[0]}] y) "
        f"{{ [sum] y = {operator.format(reduction)} (x, i, u) }}".replace("'", '"'),
        opset=18,
    )
    feeds = {"x": data, "i": index, "u": updates}
    (expected,) = outputs_of(model, feeds)
    assert scatters_to_masks(model) == ["sum"]
    onnx.checker.check_model(model, full_check=True)
    assert not {"ScatterND", "ScatterElements"} & {node.op_type for node in model.graph.node}
    np.testing.assert_allclose(outputs_of(model, feeds)[0], expected, rtol=1e-5)


def test_an_index_that_is_repeated_over_rows_makes_a_product_of_the_sum() -> None:
    text = """(float[n,3] x, int64[e,1] i, float[e,3] u) => (float[n,3] y) {
        shape = Shape(u) index = Expand(i, shape)
        [sum] y = ScatterElements <reduction = "add"> (x, index, u) }"""
    model = model_of(text, opset=18)
    feeds = {"x": normal(4, 3), "i": np.array([[1], [3], [1]]), "u": normal(3, 3)}
    (expected,) = outputs_of(model, feeds)
    assert scatters_to_masks(model) == ["sum"]
    assert "MatMul" in {node.op_type for node in model.graph.node}
    np.testing.assert_allclose(outputs_of(model, feeds)[0], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "(float[n,3] x, int64[e,2] i, float[e,2] u) => (float[n,3] y) "  # two columns of three
        '{ y = ScatterElements <reduction = "add"> (x, i, u) }',
        "(float[n,3] x, int64[e,2] i, float[e] u) => (float[n,3] y) "
        '{ y = ScatterND <reduction = "add"> (x, i, u) }',
        "(float[n,3] x, int64[e,3] i, float[e,3] u) => (float[n,3] y) { y = ScatterElements (x, i, u) }",
    ],
)
def test_other_scatters_stay(text: str) -> None:
    assert scatters_to_masks(model_of(text, opset=18)) == []


def conv_3x5() -> onnx.ModelProto:
    """A convolution of 3x5 that does not say so."""
    weight = np.random.default_rng(1).standard_normal((2, 2, 3, 5)).astype(np.float32)
    text = "(float[1,2,6,6] x) => (float[1,2,6,6] y) { y = Conv <pads = [1, 2, 1, 2]> (x, w) }"
    return model_of(text, w=weight)


def feeds() -> dict[str, Any]:
    return {"x": np.random.default_rng(0).standard_normal((1, 2, 6, 6)).astype(np.float32)}


def conv(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == "Conv")


def test_a_kernel_shape_is_written_where_the_weights_are_behind_qdq() -> None:
    model, plain = quantized(conv_3x5(), feeds()), conv_3x5()
    (before,) = outputs_of(model, feeds())
    assert write_kernel_shapes(model)
    assert attribute(conv(model), "kernel_shape") == [3, 5]
    np.testing.assert_array_equal(outputs_of(model, feeds())[0], before)
    assert not write_kernel_shapes(model), "it is there now"
    assert not write_kernel_shapes(plain), "the parser has the weights"
    assert attribute(conv(plain), "kernel_shape") is None


@pytest.mark.parametrize("target", ["tensorrt-rtx", "onnxruntime"])
def test_it_is_lowered_for_tensorrt_alone(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qcompile.building import build as building

    source = tmp_path / "q.onnx"
    onnx.save(quantized(conv_3x5(), feeds()), source)
    seen: list[Any] = []

    def keep(_: object, request: Any) -> None:
        seen.append(attribute(conv(onnx.load(request.model)), "kernel_shape"))
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "build_engine", keep)
    gpus = {"gpus": ["sm86"]} if target == "tensorrt-rtx" else {}
    with pytest.raises(KeyboardInterrupt):
        qcompile.build(source, tmp_path / "m", target=target, precision="int8", **gpus)
    assert seen == [[3, 5] if target == "tensorrt-rtx" else None]
