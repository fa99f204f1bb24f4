"""Products of integers and their requantization: ONNX Runtime against plain numpy, bit by bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from example_counts import EXAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from one_node import one_node
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from qdq_reference.formats import LIMITS
from qdq_reference.products import (
    conv_integer,
    matmul_integer,
    nbits_weight,
    qlinear_conv,
    qlinear_matmul,
)
from runtimes import on_onnxruntime

Array = NDArray[Any]
TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
PAIRS = list(itertools.product(TYPES, TYPES))


def integers(random: np.random.Generator, kind: str, *shape: int, seven_bits: bool = False) -> Array:
    """All values alike; of 7 bits where two products are summed in int16, on x86 without VNNI."""
    low, high = LIMITS[kind]
    if seven_bits:
        low, high = (-64, 63) if kind == "int8" else (0, 127)
    return random.integers(low, high, shape, endpoint=True).astype(kind)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_every_pair_of_bytes_is_multiplied_exactly(a: str, b: str) -> None:
    x = np.arange(LIMITS[a][0], LIMITS[a][1] + 1).astype(a)[:, None]
    w = np.arange(LIMITS[b][0], LIMITS[b][1] + 1).astype(b)[None]
    inputs = {"x": TYPES[a], "w": TYPES[b], "zx": TYPES[a], "zw": TYPES[b]}
    if (a, b) == ("int8", "uint8"):
        pytest.skip("ONNX Runtime's CPU has no kernel of int8 by uint8")
    model = one_node("MatMulInteger", inputs, {"y": TensorProto.INT32})
    for zero_a, zero_b in itertools.product((0, *LIMITS[a]), (0, *LIMITS[b])):
        zeros = np.asarray(zero_a, a), np.asarray(zero_b, b)
        feeds = {"x": x, "w": w, "zx": zeros[0], "zw": zeros[1]}
        ours = matmul_integer(x, w, *zeros)
        np.testing.assert_array_equal(ours, (x.astype(int) - zero_a) * (w.astype(int) - zero_b))
        np.testing.assert_array_equal(on_onnxruntime(model, feeds)["y"], ours)


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_sums_of_products_are_exact_for_any_shape(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a, b = data.draw(st.sampled_from([pair for pair in PAIRS if pair != ("int8", "uint8")]))
    rows, columns = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 20))
    depth = data.draw(st.integers(1, 70))
    x, w = (
        integers(random, a, rows, depth, seven_bits=True),
        integers(random, b, depth, columns, seven_bits=True),
    )
    per_column = data.draw(st.booleans())
    zw = integers(random, b, columns) if per_column else integers(random, b, 1)[0]
    zx = integers(random, a, 1)[0]
    feeds = {"x": x, "w": w, "zx": np.asarray(zx), "zw": np.asarray(zw)}
    inputs = {"x": TYPES[a], "w": TYPES[b], "zx": TYPES[a], "zw": TYPES[b]}
    model = one_node("MatMulInteger", inputs, {"y": TensorProto.INT32})
    ours = matmul_integer(x, w, zx, zw)
    np.testing.assert_array_equal(on_onnxruntime(model, feeds)["y"], ours)
    np.testing.assert_array_equal(ReferenceEvaluator(model).run(None, feeds)[0], ours)


def convolution(data: st.DataObject, random: np.random.Generator) -> tuple[Array, Array, dict[str, Any]]:
    """A uint8 image, an int8 filter, and attributes that fit both."""
    axes, group = data.draw(st.sampled_from([1, 2, 2, 2])), data.draw(st.sampled_from([1, 1, 2, 4]))
    per_group, outputs = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)) * group
    kernel = [data.draw(st.integers(1, 3)) for _ in range(axes)]
    how = {
        "strides": [data.draw(st.integers(1, 2)) for _ in range(axes)],
        "dilations": [data.draw(st.integers(1, 2)) for _ in range(axes)],
        "pads": [data.draw(st.integers(0, 2)) for _ in range(2 * axes)],
        "group": group,
    }
    size = [data.draw(st.integers(6, 9)) for _ in range(axes)]
    x = integers(random, "uint8", data.draw(st.integers(1, 2)), per_group * group, *size)
    return x, integers(random, "int8", outputs, per_group, *kernel, seven_bits=True), how


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_a_convolution_of_integers_is_exact_for_any_shape(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x, w, how = convolution(data, random)
    w = w.astype(np.int16)
    w = (w + 64).astype(np.uint8)  # ConvInteger of ONNX Runtime takes uint8 by uint8
    zx, zw = integers(random, "uint8", 1)[0], integers(random, "uint8", 1)[0]
    inputs = {
        "x": TensorProto.UINT8,
        "w": TensorProto.UINT8,
        "zx": TensorProto.UINT8,
        "zw": TensorProto.UINT8,
    }
    model = one_node("ConvInteger", inputs, {"y": TensorProto.INT32}, **how)
    feeds = {"x": x, "w": w, "zx": np.asarray(zx), "zw": np.asarray(zw)}
    ours = conv_integer(x, w, int(zx), int(zw), **how)
    np.testing.assert_array_equal(on_onnxruntime(model, feeds)["y"], ours)


def differ_by_a_step_on_ties(found: Array, ours: Array, exact: NDArray[np.float64]) -> None:
    """Equal, or one step apart where the exact quotient lies within float32's roundings of a tie."""
    apart = np.abs(found.astype(int) - ours)
    assert apart.max(initial=0) <= 1
    away = np.abs(np.abs(exact - np.floor(exact)) - 0.5)
    assert (away[apart > 0] <= 8 * 2.0**-24 * np.abs(exact[apart > 0])).all()


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_a_requantized_convolution_is_bit_exact_but_for_ties(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x, w, how = convolution(data, random)
    channels = w.shape[0]
    zx, zy = np.asarray(integers(random, "uint8", 1)[0]), np.asarray(integers(random, "uint8", 1)[0])
    per_channel = data.draw(st.booleans())
    sx, sy = (np.asarray(np.exp(random.uniform(-7, 0)), np.float32) for _ in range(2))
    sw = np.asarray(np.exp(random.uniform(-7, 0, channels if per_channel else ())), np.float32)
    zw = np.zeros(sw.shape, np.int8)
    bias = random.integers(-5000, 5000, channels).astype(np.int32)
    kinds = {"x": 2, "sx": 1, "zx": 2, "w": 3, "sw": 1, "zw": 3, "sy": 1, "zy": 2, "b": 6}
    model = one_node("QLinearConv", kinds, {"y": TensorProto.UINT8}, **how)
    feeds = dict(zip(kinds, (x, sx, zx, w, sw, zw, sy, zy, bias), strict=True))
    ours = qlinear_conv(x, sx, zx, w, sw, zw, sy, zy, bias, **how)
    sums = conv_integer(x, w, int(zx), **how).astype(np.float64)
    shape = (-1, *[1] * (sums.ndim - 2))
    exact = (sums + bias.reshape(shape)) * float(sx) * np.atleast_1d(sw).astype(np.float64).reshape(shape)
    differ_by_a_step_on_ties(on_onnxruntime(model, feeds)["y"], ours, exact / float(sy))


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_a_requantized_product_is_bit_exact_but_for_ties(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows, depth, columns = (data.draw(st.integers(1, most)) for most in (5, 60, 20))
    b_kind = data.draw(st.sampled_from(["int8", "uint8"]))
    a = integers(random, "uint8", rows, depth)
    b = integers(random, b_kind, depth, columns, seven_bits=True)
    za, zy = np.asarray(integers(random, "uint8", 1)[0]), np.asarray(integers(random, "uint8", 1)[0])
    sa, sy = (np.asarray(np.exp(random.uniform(-7, 0)), np.float32) for _ in range(2))
    sb = np.asarray(np.exp(random.uniform(-7, 0)), np.float32)
    zb = np.asarray(integers(random, b_kind, 1, seven_bits=True)[0])
    kinds = {"a": 2, "sa": 1, "za": 2, "b": TYPES[b_kind], "sb": 1, "zb": TYPES[b_kind], "sy": 1, "zy": 2}
    model = one_node("QLinearMatMul", kinds, {"y": TensorProto.UINT8})
    feeds = dict(zip(kinds, (a, sa, za, b, sb, zb, sy, zy), strict=True))
    ours = qlinear_matmul(a, sa, za, b, sb, zb, sy, zy)
    exact = matmul_integer(a, b, za, zb).astype(np.float64) * float(sa) * float(sb) / float(sy)
    differ_by_a_step_on_ties(on_onnxruntime(model, feeds)["y"], ours, exact)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_weights_of_few_bits_are_unpacked_as_their_schema_says(bits: int, zeros: bool) -> None:
    random = np.random.default_rng(bits)
    rows, columns, size = 6, 40, 16
    blocks = -(-columns // size)
    packed = random.integers(0, 255, (rows, blocks, size * bits // 8), endpoint=True).astype(np.uint8)
    scales = np.exp(random.uniform(-3, 0, rows * blocks)).astype(np.float32)
    packed_zeros = random.integers(0, 255, rows * -(-blocks * bits // 8), endpoint=True).astype(np.uint8)
    inputs = {"x": 1, "w": 2, "s": 1} | ({"z": 2} if zeros else {})
    how = {"K": columns, "N": rows, "bits": bits, "block_size": size}
    model = one_node("MatMulNBits", inputs, {"y": 1}, domain="com.microsoft", **how)
    x = np.eye(columns, dtype=np.float32)  # the product is the weight itself
    feeds = {"x": x, "w": packed, "s": scales, "z": packed_zeros}
    found = on_onnxruntime(model, {name: feeds[name] for name in inputs})["y"]
    weight = nbits_weight(
        packed, scales, packed_zeros if zeros else None, rows=rows, columns=columns, bits=bits
    )
    np.testing.assert_allclose(found, weight.T, rtol=4 * 2.0**-24, atol=0)
