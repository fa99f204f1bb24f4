"""Blocks of integers against loops by hand and against ONNX Runtime; GPTQ lowers the error of a layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mode_models import run
from numpy.typing import NDArray
from onnx import numpy_helper
from written_models import model_of, normal

from qcompile.compiler.quantize.prepare import prepare_graph
from qcompile.compiler.quantize.quantize import quantize
from qcompile.compiler.quantize.weights.hessians import collect_hessians, hessian_key
from qcompile.compiler.quantize.weights.rewrite import quantize_weights
from qcompile.compiler.quantize.weights.rounding import RoundedWeight, gptq, round_to_nearest
from qcompile.data.batches import Data
from qcompile.errors import CalibrationError, InvalidOption, QuantizationError
from qcompile.model.graph.graph import model_io
from qcompile.model.graph.onnx_file import copy_model, read_graph, save_onnx

Floats = NDArray[np.float32]


def values_of(rounded: RoundedWeight) -> Floats:
    """What the integers stand for, [N, K]."""
    scales, zeros = (
        np.repeat(values, rounded.block_size, axis=1)[:, : rounded.codes.shape[1]]
        for values in (rounded.scales, rounded.zero_points)
    )
    return (rounded.codes.astype(np.float32) - zeros) * scales  # type: ignore[no-any-return]


def by_hand(weight: Floats, bits: int, block_size: int, *, symmetric: bool) -> tuple[list[int], Floats]:
    """Codes and values of round to nearest over each block's full range, one value after the other."""
    top, middle = 2**bits - 1, 2 ** (bits - 1)
    codes: list[int] = []
    values = np.zeros_like(weight)
    for row in range(weight.shape[0]):
        for start in range(0, weight.shape[1], block_size):
            block = weight[row, start : start + block_size]
            low, high = np.float32(min(block.min(), 0)), np.float32(max(block.max(), 0))
            width = max(high, -low) if symmetric else high - low
            scale = np.float32(width / np.float32(middle - 1 if symmetric else top)) or np.float32(1)
            zero = middle if symmetric else round(float(-low / scale))
            for column, value in enumerate(block, start):
                code = min(max(round(float(value / scale)) + zero, 0), top)
                codes.append(code)
                values[row, column] = np.float32(code - zero) * scale
    return codes, values


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("rows", "columns", "block_size"), [(3, 64, 32), (1, 50, 16), (4, 7, 16), (2, 33, 32)]
)
def test_without_search_it_is_round_to_nearest_by_hand(
    rows: int, columns: int, block_size: int, bits: int, symmetric: bool
) -> None:
    weight = normal(rows, columns, seed=columns)
    found = round_to_nearest(weight, bits=bits, block_size=block_size, symmetric=symmetric, search=False)
    codes, values = by_hand(weight, bits, block_size, symmetric=symmetric)
    assert found.codes.ravel().tolist() == codes
    np.testing.assert_array_equal(values_of(found), values)


def error(weight: Floats, found: RoundedWeight) -> float:
    return float(((weight - values_of(found)).astype(np.float64) ** 2).sum())


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 16),
    rows=st.integers(1, 4),
    columns=st.integers(1, 70),
    bits=st.sampled_from([4, 8]),
    block_size=st.sampled_from([0, 16, 32]),
    symmetric=st.booleans(),
    magnitude=st.sampled_from([1e-30, 1e-3, 1.0, 1e20]),
)
def test_the_search_never_loses_and_without_it_no_value_is_off_by_more_than_half_a_step(
    seed: int, rows: int, columns: int, bits: int, block_size: int, symmetric: bool, magnitude: float
) -> None:
    weight = normal(rows, columns, seed=seed) * np.float32(magnitude)
    weight[0, : columns // 2] = 0
    plain = round_to_nearest(weight, bits=bits, block_size=block_size, symmetric=symmetric, search=False)
    size = min(block_size or columns, columns)
    steps = np.repeat(plain.scales, size, axis=1)[:, :columns]
    assert (np.abs(weight - values_of(plain)) <= 0.5001 * steps).all()
    searched = round_to_nearest(weight, bits=bits, block_size=block_size, symmetric=symmetric)
    if magnitude > 1e-10:  # squares of less are no float32
        assert error(weight, searched) <= error(weight, plain) * 1.0001
    for found in (plain, searched):
        assert found.scales.shape == found.zero_points.shape == (rows, -(-columns // size))
        assert (found.scales > 0).all()
        assert found.codes.max() < 2**bits
        assert not values_of(found)[weight == 0].any()  # zero is exact
        assert not symmetric or (found.zero_points == 2 ** (bits - 1)).all()


def correlated(samples: int, columns: int, seed: int) -> Floats:
    """Inputs whose features depend on each other, as a network's do."""
    generator = np.random.default_rng(seed)
    mixing = generator.standard_normal((columns // 4, columns)) * generator.lognormal(size=columns)
    noise = 0.1 * generator.standard_normal((samples, columns))
    return (generator.standard_normal((samples, columns // 4)) @ mixing + noise).astype(np.float32)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("bits", "block_size", "columns", "symmetric"),
    [(4, 32, 128, False), (4, 0, 300, True), (8, 64, 150, False), (4, 16, 40, True)],
)
def test_gptq_lowers_the_error_of_the_output(
    bits: int, block_size: int, columns: int, symmetric: bool, seed: int
) -> None:
    weight, x = normal(24, columns, seed=seed), correlated(1024, columns, seed)
    plain = round_to_nearest(weight, bits=bits, block_size=block_size, symmetric=symmetric)
    hessian = 2 * x.T @ x
    found = gptq(weight, hessian, bits=bits, block_size=block_size, symmetric=symmetric)
    fresh = correlated(4096, columns, seed)[1024:]  # other samples of the same kind
    lost = [((fresh @ (weight - values_of(result)).T) ** 2).sum() for result in (found, plain)]
    assert lost[0] < 0.8 * lost[1]


@pytest.mark.parametrize("factor", [1.0, 1e-6, 400.0])
@pytest.mark.parametrize(("block_size", "columns"), [(32, 100), (0, 300), (16, 16), (256, 600)])
def test_gptq_of_features_that_do_not_depend_on_each_other_is_round_to_nearest(
    block_size: int, columns: int, factor: float
) -> None:
    weight = normal(5, columns)
    hessian = np.eye(columns) * factor
    found = gptq(weight, hessian, bits=4, block_size=block_size, symmetric=False)
    plain = round_to_nearest(weight, bits=4, block_size=block_size, symmetric=False)
    np.testing.assert_array_equal(found.codes, plain.codes)
    np.testing.assert_array_equal(values_of(found), values_of(plain))


def test_gptq_is_the_papers_loop_over_columns() -> None:
    """Written as in the paper before its blocks: the inverse Hessian shrinks by Gaussian elimination."""
    columns = 200  # more than one lazy block
    weight, x = normal(3, columns, seed=1), correlated(500, columns, 1).astype(np.float64)
    hessian = x.T @ x
    plain = round_to_nearest(weight, bits=8, block_size=0, symmetric=True)
    scale = plain.scales[:, 0].astype(np.float64)
    inverse = np.linalg.inv(hessian + 0.01 * np.trace(hessian) / columns * np.eye(columns))
    left, expected = weight.astype(np.float64), np.empty(weight.shape)
    for column in range(columns):
        expected[:, column] = np.clip(np.rint(left[:, column] / scale), -128, 127) * scale
        missed = (left[:, column] - expected[:, column]) / inverse[column, column]
        left -= np.outer(missed, inverse[column])
        inverse -= np.outer(inverse[:, column], inverse[column]) / inverse[column, column]
    found = gptq(weight, hessian, bits=8, block_size=0, symmetric=True)
    # A value at the edge between two steps may go to the other one, by float32 against float64.
    assert np.mean(np.abs(values_of(found) - expected) > 0.5 * scale[:, None]) < 0.05
    lost = [((x @ (weight - values).T) ** 2).sum() for values in (values_of(found), expected)]
    assert lost[0] == pytest.approx(lost[1], rel=0.1)


def test_inputs_that_are_always_zero_do_no_harm() -> None:
    weight, x = normal(4, 64), correlated(256, 64, 0)
    x[:, ::3] = 0
    found = gptq(weight, x.T @ x, bits=4, block_size=32, symmetric=False)
    assert np.abs(values_of(found) - weight).max() < 2
    zeros = gptq(weight, np.zeros((64, 64)), bits=4, block_size=32, symmetric=False)
    plain = round_to_nearest(weight, bits=4, block_size=32, symmetric=False)
    np.testing.assert_array_equal(zeros.codes, plain.codes)


@pytest.mark.parametrize("hessian", [np.eye(7), np.full((8, 8), np.nan), -np.eye(8)])
def test_a_wrong_hessian_is_an_error(hessian: NDArray[np.float64]) -> None:
    with pytest.raises(QuantizationError, match="Hessian"):
        gptq(normal(2, 8), hessian, bits=4, block_size=16, symmetric=True)


def test_clipping_an_outlier_pays() -> None:
    weight = normal(64, 64)
    errors = [
        error(weight, round_to_nearest(weight, bits=4, block_size=64, symmetric=True, search=search))
        for search in (True, False)
    ]
    assert errors[0] < 0.85 * errors[1]


FORMS = ["nbits", "qdq"]


def build(body: str, opset: int = 17, **weights: NDArray[Any]) -> onnx.ModelProto:
    """A prepared model: `(float[m,8] x) => (float[m,4] y) { ... }` with weights."""
    return prepare_graph(model_of(body, opset=opset, **weights))


def nibbles(content: bytes) -> list[int]:
    """The codes of 4 bits, the low half of each byte first."""
    return [half for byte in content for half in (byte & 15, byte >> 4)]


def unpacked(model: onnx.ModelProto, bits: int, rows: int, columns: int, block: int, kind: str) -> Floats:
    """The weight [rows, columns] that the initializers of "nbits" stand for, value by value."""
    stored = {tensor.name.rpartition("/")[2]: tensor for tensor in model.graph.initializer}
    count = -(-columns // block)
    read = nibbles if bits == 4 else list
    codes = np.array(read(stored[kind].raw_data)).reshape(rows, -1)
    zeros = np.array(read(stored["zero_point"].raw_data)).reshape(rows, -1)
    scales = numpy_helper.to_array(stored["scale"])
    assert scales.shape == (rows, count)
    weight = np.zeros((rows, columns), np.float32)
    for row in range(rows):
        for column in range(columns):
            at = column // block
            weight[row, column] = (codes[row, column] - zeros[row, at]) * scales[row, at]
    return weight


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("k", "n", "block"), [(64, 8, 32), (100, 5, 32), (65, 1, 16), (40, 3, 64), (300, 2, 128), (257, 1, 256)]
)
def test_matmulnbits_computes_with_what_is_stored(k: int, n: int, block: int, bits: int) -> None:
    weight, x = normal(k, n), normal(2, 3, k)
    model = build(f"(float[a,b,{k}] x) => (float[a,b,{n}] y) {{ y = MatMul(x, w) }}", w=weight)
    found, proof = quantize_weights(copy_model(model), bits=bits, block_size=block)
    (node,) = found.graph.node
    assert (node.op_type, node.domain) == ("MatMulNBits", "com.microsoft")
    stored = next(attribute.i for attribute in node.attribute if attribute.name == "block_size")
    assert stored == block or k <= block  # a row of one block is stored in blocks that waste least
    by_hand = unpacked(found, bits, n, k, stored, "blocks").T
    assert np.abs(by_hand - weight).max() < (1.0 if bits == 4 else 0.06)
    np.testing.assert_allclose(run(found, x=x), x @ by_hand, atol=1e-5 * np.abs(x @ by_hand).max() + 1e-5)
    assert (proof["planned"], proof["quantized"], proof["left_in_float"]) == ({"MatMul": 1},) * 2 + ({},)
    assert model.graph.node[0].op_type == "MatMul"  # the given model is left as it is


@pytest.mark.parametrize("quant_format", FORMS)
@pytest.mark.parametrize(("bits", "block"), [(4, 32), (8, 0)])
@pytest.mark.parametrize("bias", ["b", "row", "made"])
@pytest.mark.parametrize("transposed", [0, 1])
def test_a_gemm_keeps_its_bias(transposed: int, bias: str, block: int, bits: int, quant_format: str) -> None:
    weight = normal(72, 6)
    body = (
        f"(float[4,72] x) => (float[4,6] y) {{ made = Relu(b) y = Gemm<transB={transposed}>(x, w, {bias}) }}"
    )
    stored = weight.T.copy() if transposed else weight
    model = build(body, w=stored, b=normal(6), row=normal(4, 6))
    found, _ = quantize_weights(copy_model(model), bits=bits, block_size=block, quant_format=quant_format)
    x = normal(4, 72)
    close = 0.35 if bits == 4 else 0.02
    lost = run(found, x=x) - run(model, x=x)
    assert 0 < np.abs(lost).max() < close * np.sqrt(72)
    assert np.sqrt((lost**2).mean()) < close * 0.5 * np.sqrt(72)
    wanted = "MatMulNBits" if quant_format == "nbits" else "DequantizeLinear"
    assert wanted in [node.op_type for node in found.graph.node]


def dequantized(model: onnx.ModelProto, bits: int, block: int) -> Floats:
    """The values of the one DequantizeLinear of a model, by hand; its blocks lie along the last axis."""
    stored = {tensor.name.rpartition("/")[2]: tensor for tensor in model.graph.initializer}
    tensor, scales = stored[f"int{bits}"], numpy_helper.to_array(stored["scale"])
    assert tensor.data_type == (onnx.TensorProto.INT4 if bits == 4 else onnx.TensorProto.INT8)
    read = nibbles(tensor.raw_data) if bits == 4 else list(tensor.raw_data)
    codes = np.array([code - 2**bits if code >= 2 ** (bits - 1) else code for code in read], np.float32)
    codes = codes.reshape(tensor.dims[0], -1)
    scales = scales.reshape(tensor.dims[0], -1)
    values = [
        codes[:, c] * scales[:, c // block if scales.shape[1] > 1 else 0] for c in range(codes.shape[1])
    ]
    return np.stack(values, axis=1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [0, 16, 64])
def test_a_conv_reads_dequantized_blocks_of_its_flattened_weight(block: int, bits: int) -> None:
    weight = normal(6, 24, 3, 2)
    body = "(float[2,24,8,8] x) => (float[2,6,h,v] y) { y = Conv<strides=[2,1]>(x, w) }"
    model = build(body, w=weight)
    found, _ = quantize_weights(copy_model(model), bits=bits, block_size=block, quant_format="qdq")
    onnx.checker.check_model(found, full_check=True)
    # 144 values a channel: TensorRT takes only blocks that divide them.
    size = {0: 144, 16: 16, 64: 48}[block]
    assert 6 * 144 // size in [np.prod(t.dims) for t in found.graph.initializer if t.name.endswith("/scale")]
    by_hand = dequantized(found, bits, size).reshape(weight.shape)
    assert 0 < np.abs(by_hand - weight).max() < (0.9 if bits == 4 else 0.05)
    x = normal(2, 24, 8, 8)
    np.testing.assert_allclose(run(found, x=x), run(build(body, w=by_hand), x=x), atol=1e-4)
    with pytest.raises(QuantizationError, match="'nbits' has no Conv"):
        quantize_weights(copy_model(model), bits=bits)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("width", "block"), [(64, 32), (40, 16), (10, 64)])
def test_an_embedding_is_looked_up_in_blocks(width: int, block: int, bits: int) -> None:
    table = normal(30, width)
    body = f"(int64[a,b] i) => (float[a,b,{width}] y) {{ y = Gather(t, i) }}"
    indices = np.array([[0, 29, -1], [7, 7, 3]])
    model = build(body, t=table)
    found, _ = quantize_weights(copy_model(model), bits=bits, block_size=block)
    by_hand = unpacked(found, bits, 30, width, block if width > block else 16, "rows")
    np.testing.assert_array_equal(run(found, i=indices), by_hand[indices])
    assert np.abs(by_hand - table).max() < (0.8 if bits == 4 else 0.04)
    found, _ = quantize_weights(copy_model(model), bits=bits, block_size=block, quant_format="qdq")
    np.testing.assert_array_equal(run(found, i=indices), dequantized(found, bits, block)[indices])
    assert np.abs(dequantized(found, bits, block) - table).max() < (0.8 if bits == 4 else 0.04)


@pytest.mark.parametrize("quant_format", FORMS)
def test_four_bits_by_default_are_six_and_a_half_times_smaller_than_float32(quant_format: str) -> None:
    model = build("(float[m,768] x) => (float[m,3072] y) { y = MatMul(x, w) }", w=normal(768, 3072))
    found, proof = quantize_weights(copy_model(model), bits=4, quant_format=quant_format)
    sizes: Any = proof["weight_bytes"]
    assert sizes["before"] == 768 * 3072 * 4
    assert sizes["after"] == sum(len(tensor.raw_data) for tensor in found.graph.initializer)
    assert len(model.SerializeToString()) / len(found.SerializeToString()) >= 6.5
    assert sizes["before"] / sizes["after"] >= 6.5
    _, finer = quantize_weights(copy_model(model), bits=4, quant_format=quant_format, block_size=32)
    finer_sizes: Any = finer["weight_bytes"]
    assert finer_sizes["before"] / finer_sizes["after"] < 6.5  # why 32 is not the default


TIED = """(int64[m] i) => (float[m,40] y, float[m,50] z) {
    e = Gather(t, i) h = MatMul(e, w) y = MatMul(h, w) z = Gemm<transB=1>(y, t) }"""


@pytest.mark.parametrize(("quant_format", "wide"), [("nbits", 7), ("qdq", 4)])
def test_a_weight_that_several_nodes_read_is_quantized_once(quant_format: str, wide: int) -> None:
    model = build(TIED, w=normal(40, 40) * 0.2, t=normal(50, 40))
    found, proof = quantize_weights(copy_model(model), bits=8, quant_format=quant_format)
    assert proof["quantized"] == {"Gather": 1, "MatMul": 2, "Gemm": 1}
    assert len(found.graph.initializer) == wide  # "nbits" packs a table's rows otherwise than a product's
    feeds = {"i": np.arange(5)}
    np.testing.assert_allclose(run(found, **feeds), run(model, **feeds), atol=0.15)


@pytest.mark.parametrize("quant_format", FORMS)
def test_what_stays_in_float_has_its_reason_and_its_weight(quant_format: str) -> None:
    body = """(float[8,40] x, float[40,8] v) => (float[8,8] y) {
        [shared] a = MatMul(x, w) [kept] b = MatMul(a, w) [two] c = MatMul(b, v)
        [left] d = MatMul(u, c) [tiny] e = MatMul(d, s) f = MatMul(e, u)
        [over] g = Gemm<transA=1>(f, u) [times] h = MatMul(g, u) sum = Add(h, w2) y = MatMul(sum, u) }"""
    weights = {"w": normal(40, 40), "w2": normal(8, 8), "u": normal(8, 8), "s": normal(8, 8)[:, :8]}
    model = build(body, **weights)
    found, proof = quantize_weights(
        copy_model(model),
        bits=8,
        quant_format=quant_format,
        excluded={"kept": "excluded by 'kept'"},
        block_size=16,
    )
    left: Any = proof["left_in_float"]
    reasons = {"kept": "excluded by", "two": "run time", "left": "left operand", "over": "transposed"}
    assert all(text in left[name] for name, text in reasons.items())
    assert "w" in {tensor.name for tensor in found.graph.initializer}  # the excluded node reads it
    feeds = {"x": normal(8, 40) * 0.1, "v": normal(40, 8) * 0.1}
    expected_y = run(model, **feeds)
    np.testing.assert_allclose(run(found, **feeds), expected_y, atol=0.05 * np.abs(expected_y).max())


def data_of(path: Path, samples: Path) -> Data:
    return Data(str(samples), model_io(read_graph(path).load()).inputs, batch_size=8)


REFUSALS: dict[str, tuple[str, str, dict[str, NDArray[Any]], dict[str, Any]]] = {
    "power of two": ("float[m,64] x", "y = MatMul(x, w)", {"w": normal(64, 9)}, {"block_size": 48}),
    "16 to 256": ("float[m,64] x", "y = MatMul(x, w)", {"w": normal(64, 9)}, {"block_size": 512}),
    "nothing to quantize": ("float[m,9] x", "y = Sigmoid(x)", {}, {}),
    "and two share a byte": ("int64[m] x", "y = Gather(w, x)", {"w": normal(30, 41)}, {}),
    "an odd number of values, which TensorRT refuses": (
        "float[m,65] x", "y = MatMul(x, w)", {"w": normal(65, 33)}, {"quant_format": "qdq"}
    ),
    "of 36 bytes would take": ("float[m,1] x", "y = MatMul(x, w)", {"w": normal(1, 9)}, {}),
    "'w' holds NaN": ("float[m,64] x", "y = MatMul(x, w)", {"w": np.full((64, 9), np.nan, "f")}, {}),
    "'a': its Hessian is missing": (
        "float[m,16] x", "a = MatMul(x, w) y = MatMul(a, v)", {"w": normal(16, 16), "v": normal(16, 9)},
        {"hessians": lambda _keys: {"x": np.eye(16)}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSALS)
def test_what_cannot_be_quantized_is_refused_with_the_reason(message: str) -> None:
    signature, body, weights, options = REFUSALS[message]
    model = build(f"({signature}) => (float[m,n] y) {{ {body} }}", **weights)
    with pytest.raises((InvalidOption, QuantizationError, CalibrationError), match=message):
        quantize_weights(copy_model(model), bits=4, **options)


@pytest.mark.parametrize(
    "settings", ["pads=[1,0,2,1], strides=[2,1]", 'auto_pad="SAME_UPPER", strides=[1,1]', "dilations=[2,1]"]
)
def test_the_hessian_of_a_conv_is_that_of_its_patches(settings: str, tmp_path: Path) -> None:
    """A Conv of any weight is that weight times the patches: unit weights give the patches themselves."""
    body = f"(float[n,3,7,6] x) => (float[n,18,h,v] y) {{ [conv] y = Conv<{settings}>(x, w) }}"
    units = np.eye(18, dtype=np.float32).reshape(18, 3, 3, 2)
    model = build(body, w=units)
    (name,) = map(hessian_key, model.graph.node)
    path, npz = tmp_path / "m.onnx", tmp_path / "x.npz"
    save_onnx(model, path)
    x = normal(5, 3, 7, 6)
    np.savez(npz, x=x)
    patches = np.moveaxis(run(model, x=x), 1, -1).reshape(-1, 18)
    found = collect_hessians(read_graph(path), [name], data_of(path, npz), 100)
    np.testing.assert_allclose(found[name], 2 * patches.T @ patches, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("quant_format", "name"), [("nbits", "mlp"), ("qdq", "mlp"), ("qdq", "residual")])
def test_gptq_loses_less_of_a_models_output_than_rounding(
    quant_format: str, name: str, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    path, npz = tiny_file(name), tmp_path / "correlated.npz"
    mixing = normal(3, 256 if name == "residual" else 16)
    features = normal(64, 3) @ mixing + 0.05 * normal(64, mixing.shape[1])
    x = features.reshape(64, 4, 8, 8) if name == "residual" else features
    np.savez(npz, x=x[:48])
    lost = {}
    for rounding in ("rtn", "gptq"):
        found = quantize(
            path, tmp_path / "q.onnx", mode="weights", precision="int4", block_size=16, data=str(npz),
            rounding=rounding, quant_format=quant_format, allow_loss=True,
        ).path  # fmt: skip
        lost[rounding] = float(((run(found, x=x[48:]) - run(path, x=x[48:])) ** 2).sum())
    assert lost["gptq"] < 0.8 * lost["rtn"]


def test_an_old_opset_becomes_21_for_blocks_and_the_weights_are_kept() -> None:
    body = """(float[m,80] x) => (float[m,80] y) {
        [first] a = MatMul(x, w) [second] b = MatMul(a, v) s = Constant<value = int64[1] {1}>()
        r = ReduceMean<axes=[1]>(b) y = Add(b, r) }"""
    model = build(body, opset=13, w=normal(80, 80), v=normal(80, 80))
    found, _ = quantize_weights(
        copy_model(model), bits=8, quant_format="qdq", excluded={"second": "excluded"}
    )
    onnx.checker.check_model(found, full_check=True)
    assert [item.version for item in found.opset_import if item.domain == ""] == [21]
    assert [value.name for value in found.graph.input] == ["x"]
    np.testing.assert_allclose(run(found, x=normal(3, 80)), run(model, x=normal(3, 80)), atol=4)
