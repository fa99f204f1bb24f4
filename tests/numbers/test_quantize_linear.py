"""QuantizeLinear as `onnx_reference` spells it out, against ONNX Runtime, and where the two differ."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_reference import LIMITS, OWN
from written_models import computed, one_node

TYPES = {kind: getattr(TensorProto, kind.upper()) for kind in LIMITS}
FLOAT8 = {"float8_e4m3fn": TensorProto.FLOAT8E4M3FN, "float8_e5m2": TensorProto.FLOAT8E5M2}
SCALES = [1.0, 0.1, 1e-3, 1e-38, 1e-40, 1e-45, 3e38, np.inf]
"""Plain, denormal, huge; infinity, which makes every finite number 0."""

_ENDS = [np.arange(end - 300, end + 300) for end in (-65536, -32768, 0, 32768, 65536)]
_TIES = np.concatenate(_ENDS).astype(np.float32) + np.float32(0.5)


def by_reference(model: onnx.ModelProto, feeds: dict[str, NDArray[Any]]) -> NDArray[Any]:
    with np.errstate(all="ignore"):
        return np.asarray(ReferenceEvaluator(model, new_ops=OWN).run(None, feeds)[0])


def quantizer(kind: str, dtype: int = TensorProto.FLOAT, **how: Any) -> onnx.ModelProto:
    return one_node("QuantizeLinear", {"x": dtype, "s": dtype, "z": TYPES[kind]}, {"y": TYPES[kind]}, **how)


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "int16"])
def test_every_tie_scale_and_zero_point_is_quantized_as_the_specification_says(kind: str) -> None:
    low, high = LIMITS[kind]
    model, random = quantizer(kind), np.random.default_rng(0)
    for scale in SCALES:
        finite = np.float32(min(scale, 1e30))
        with np.errstate(over="ignore"):
            x = np.concatenate(
                [_TIES, _TIES * finite, random.standard_normal(999).astype(np.float32) * 300 * finite]
            )
        x = np.append(x[np.isfinite(x)], np.float32([3.4e38, -3.4e38, 1e-45, -0.0]))
        x = x if scale == np.inf else np.append(x, np.float32([np.inf, -np.inf]))
        for zero in {0, low, high, 3}:
            feeds = {"x": x, "s": np.asarray(scale, np.float32), "z": np.asarray(zero, kind)}
            np.testing.assert_array_equal(computed(model, feeds)["y"], by_reference(model, feeds))


def test_a_float16_quotient_beyond_int32_wraps_in_onnx_runtime() -> None:
    """1.31.1 converts it to int32 without a limit. qcompile keeps Q/DQ of such small scales in float32."""
    feeds = {"x": np.float16([60000.0]), "s": np.asarray(6e-8, np.float16), "z": np.asarray(3, np.uint8)}
    model = quantizer("uint8", TensorProto.FLOAT16)
    assert by_reference(model, feeds) == 255
    assert computed(model, feeds)["y"] != 255, "mended"


@settings(max_examples=int(os.environ.get("QCOMPILE_TEST_EXAMPLES", "25")))  # few in CI
@given(st.data())
def test_axes_blocks_and_zero_points_are_spread_as_the_specification_says(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    block = data.draw(st.sampled_from([0, 0, 1, 2, 3, 5]))
    kind = data.draw(st.sampled_from(["uint8", "int8", "int16", "uint16"]))
    parameters: tuple[int, ...] = (shape[axis],)
    if block:
        blocks = list(shape)
        blocks[axis] = -(-shape[axis] // block)
        parameters = tuple(blocks)
        block = -(-shape[axis] // blocks[axis])  # the smallest of the sizes that these scales allow
        if -(-shape[axis] // block) != blocks[axis] or parameters == (1,):
            return  # ONNX Runtime takes the one value of a tensor of one axis for a scalar
    s = np.exp(random.uniform(-6, 2, parameters)).astype(np.float32)
    z = random.integers(*LIMITS[kind], parameters, endpoint=True).astype(kind)
    x = (random.standard_normal(shape) * 50).astype(np.float32)
    how = {"axis": axis, **({"block_size": block} if block else {})}
    model = quantizer(kind, **how)
    integers = by_reference(model, {"x": x, "s": s, "z": z})
    np.testing.assert_array_equal(computed(model, {"x": x, "s": s, "z": z})["y"], integers)
    inputs = {"x": TYPES[kind], "s": TensorProto.FLOAT, "z": TYPES[kind]}
    back, feeds = one_node("DequantizeLinear", inputs, {"y": 1}, **how), {"x": integers, "s": s, "z": z}
    np.testing.assert_array_equal(computed(back, feeds)["y"], by_reference(back, feeds))


def float8_model(kind: str, *, saturate: int = 1) -> onnx.ModelProto:
    zero = helper.make_tensor("z", FLOAT8[kind], [], bytes(1), raw=True)
    model = one_node(
        "QuantizeLinear", {"x": 1, "s": 1}, {"q": FLOAT8[kind]}, stored=(zero,), saturate=saturate
    )
    model.graph.node.append(helper.make_node("DequantizeLinear", ["q", "s"], ["y"]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("y", 1, None))
    return model


@pytest.mark.parametrize("kind", list(FLOAT8))
def test_float8_saturates_and_rounds_halves_to_even(kind: str) -> None:
    random = np.random.default_rng(2)
    x = (random.standard_normal(4000) * np.exp(random.uniform(-12, 14, 4000))).astype(np.float32)
    x = np.concatenate(
        [x, np.arange(-500, 500, 0.25, np.float32), np.float32([np.inf, -np.inf, np.nan, 1e38])]
    )
    for scale in (1.0, 0.5, 0.013):
        feeds = {"x": x, "s": np.asarray(scale, np.float32)}
        model = float8_model(kind)
        np.testing.assert_array_equal(computed(model, feeds)["y"], by_reference(model, feeds))


def test_float8_without_saturation_is_not_what_onnx_runtime_computes() -> None:
    """1.31.1: between the largest number and the next one it rounds E4M3FN down, and makes NaN of E5M2.
    qcompile always saturates."""
    for kind, x, right, wrong in (
        ("float8_e4m3fn", 480.0, np.nan, 448.0),
        ("float8_e5m2", 63000.0, np.inf, np.nan),
    ):
        feeds, model = (
            {"x": np.float32([x]), "s": np.asarray(1.0, np.float32)},
            float8_model(kind, saturate=0),
        )
        theirs = np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])
        np.testing.assert_array_equal(theirs, np.float32([right]))
        np.testing.assert_array_equal(computed(model, feeds)["y"], np.float32([wrong]))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_weights_of_few_bits_are_unpacked_as_their_schema_says(bits: int, zeros: bool) -> None:
    random = np.random.default_rng(bits)
    rows, columns, size = 6, 40, 16
    blocks = -(-columns // size)
    feeds = {
        "x": np.eye(columns, dtype=np.float32),  # the product is the weight itself
        "w": random.integers(0, 255, (rows, blocks, size * bits // 8), endpoint=True).astype(np.uint8),
        "s": np.exp(random.uniform(-3, 0, rows * blocks)).astype(np.float32),
        "z": random.integers(0, 255, rows * -(-blocks * bits // 8), endpoint=True).astype(np.uint8),
    }
    inputs = {"x": 1, "w": 2, "s": 1} | ({"z": 2} if zeros else {})
    how = {"K": columns, "N": rows, "bits": bits, "block_size": size}
    model = one_node("MatMulNBits", inputs, {"y": 1}, domain="com.microsoft", **how)
    feeds = {name: feeds[name] for name in inputs}
    expected = by_reference(model, feeds)
    np.testing.assert_allclose(computed(model, feeds)["y"], expected, rtol=4 * 2.0**-24, atol=0)
