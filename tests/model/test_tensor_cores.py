"""Sizes that do not fit Tensor Cores: hand-computed, and against padded models."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from qcompile.model.multiply_adds import ALIGNMENT, multiply_adds, tensor_core_advice


def model_of(body: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {body}')
    model.graph.initializer.extend(
        numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in weights.items()
    )
    return model


def convolution(cin: int, cout: int, group: int = 1) -> onnx.ModelProto:
    body = f"(float[1,{cin},8,8] x) => (float[b,{cout},6,6] y) {{ [a] y = Conv<group = {group}>(x, w) }}"
    return model_of(body, w=(cout, cin // group, 3, 3))


def product(k: int, n: int) -> onnx.ModelProto:
    return model_of(f"(float[1,{k}] x) => (float[m,{n}] y) {{ [a] y = MatMul(x, w) }}", w=(k, n))


@pytest.mark.parametrize(
    ("model", "precision", "advice"),
    [
        (convolution(3, 16), "fp16", "K 3 -> 8, 62.5% zeros"),  # of an image
        (convolution(3, 16), "tf32", "K 3 -> 4, 25.0% zeros"),
        (convolution(3, 16), "int8", "K 3 -> 16, 81.2% zeros"),
        (product(16, 50257), "fp16", "N 50257 -> 50264, 0.0% zeros"),  # the vocabulary of GPT-2
        (product(16, 50257), "int8", "N 50257 -> 50272, 0.0% zeros"),
        (convolution(24, 48, group=2), "fp16", "K 12 -> 16, 25.0% zeros"),
        (convolution(24, 24, group=24), "fp16", "depthwise"),
        (model_of("(float[5,3] x) => (float[3,7] y) { [a] y = Gemm<transA = 1, transB = 1>(x, w) }",
                  w=(7, 5)), "fp16", "K 5 -> 8, N 7 -> 8, 45.3% zeros"),
        (model_of("(float[1,6,4,4] x) => (float[1,10,6,6] y) { [a] y = ConvTranspose<group = 2>(x, w) }",
                  w=(6, 5, 3, 3)), "fp16", "K 3 -> 8, N 5 -> 8, 76.6% zeros"),
        (model_of("(float[2,4,9,20] q, float[2,4,20,9] k) => (float[2,4,9,9] y) { [a] y = MatMul(q, k) }"),
         "fp16", "K 20 -> 24, N 9 -> 16, 53.1% zeros"),
    ],
)  # fmt: skip
def test_the_next_multiples_and_the_zeros_are_named(
    model: onnx.ModelProto, precision: str, advice: str
) -> None:
    assert tensor_core_advice(model, precision) == {"a": advice}


@pytest.mark.parametrize(
    ("precision", "multiple"),
    [("tf32", 4), ("fp16", 8), ("bf16", 8), ("int8", 16), ("fp8", 16), ("int4", 32), ("nvfp4", 32)],
)
def test_the_multiple_of_a_precision_is_sixteen_bytes(precision: str, multiple: int) -> None:
    assert ALIGNMENT[precision] == multiple
    assert tensor_core_advice(convolution(multiple, 2 * multiple), precision) == {"a": "fits"}
    assert tensor_core_advice(convolution(multiple, multiple + 1), precision) != {"a": "fits"}


@settings(max_examples=60)
@given(st.sampled_from(sorted(ALIGNMENT)), st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 2, 3]))
def test_the_zeros_are_those_of_the_padded_model(precision: str, k: int, n: int, group: int) -> None:
    """The oracle: a model of the padded sizes, whose multiply-adds are counted."""
    if group > 1 and k == 1:
        return  # depthwise
    model, multiple = convolution(k * group, n * group, group), ALIGNMENT[precision]
    wide = [math.ceil(size / multiple) * multiple * group for size in (k, n)]
    ((before,), (after,)) = (multiply_adds(one).values() for one in (model, convolution(*wide, group)))
    said = tensor_core_advice(model, precision)["a"]
    zeros = 0.0 if said == "fits" else float(said.rpartition(", ")[2].removesuffix("% zeros"))
    assert zeros == pytest.approx(100 * (1 - before / after), abs=0.051)
    assert (said == "fits") == (before == after)


def test_a_model_that_multiplies_nothing_has_no_advice() -> None:
    assert tensor_core_advice(model_of("(float[2,4] x) => (float[2,4] y) { [a] y = Relu(x) }")) == {}
