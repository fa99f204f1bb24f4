"""QuantizeLinear as `onnx_reference` spells it out, against ONNX Runtime, and where the two differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
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


@pytest.mark.parametrize("kind", list(FLOAT8))
def test_float8_saturates_and_rounds_halves_to_even(kind: str) -> None:
    zero = helper.make_tensor("z", FLOAT8[kind], [], bytes(1), raw=True)
    model = one_node("QuantizeLinear", {"x": 1, "s": 1}, {"q": FLOAT8[kind]}, stored=(zero,))
    model.graph.node.append(helper.make_node("DequantizeLinear", ["q", "s"], ["y"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, None))
    random = np.random.default_rng(2)
    x = (random.standard_normal(4000) * np.exp(random.uniform(-12, 14, 4000))).astype(np.float32)
    ends = np.float32([np.inf, -np.inf, np.nan, 1e38])
    for scale in (1.0, 0.5, 0.013):
        feeds = {"x": np.concatenate([x, np.arange(-500, 500, 0.25, np.float32), ends])}
        feeds["s"] = np.asarray(scale, np.float32)
        np.testing.assert_array_equal(computed(model, feeds)["y"], by_reference(model, feeds))


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
