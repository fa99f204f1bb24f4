"""Sizes that do not fit Tensor Cores: hand-computed, against padded models, and a MobileNet."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from qcompile.model.multiply_adds import multiply_adds
from qcompile.model.tensor_cores import ALIGNMENT, LayerSizes, next_multiple, tensor_core_sizes


def model_of(body: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {body}')
    model.graph.initializer.extend(
        numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in weights.items()
    )
    return model


def convolution(cin: int, cout: int, group: int = 1, batch: str = "1") -> onnx.ModelProto:
    body = (
        f"(float[{batch},{cin},8,8] x) => (float[b,{cout},6,6] y) {{ [a] y = Conv<group = {group}>(x, w) }}"
    )
    return model_of(body, w=(cout, cin // group, 3, 3))


def product(k: int, n: int, rows: str = "1") -> onnx.ModelProto:
    return model_of(f"(float[{rows},{k}] x) => (float[m,{n}] y) {{ [a] y = MatMul(x, w) }}", w=(k, n))


def only(model: onnx.ModelProto, precision: str = "fp16") -> LayerSizes:
    (layer,) = tensor_core_sizes(model, precision).layers
    return layer


def test_the_first_convolution_of_an_image_reads_three_channels() -> None:
    layer = only(convolution(3, 16))
    assert (layer.k, layer.padded_k, layer.n, layer.padded_n) == (3, 8, 16, 16)
    assert layer.kind == "unaligned"
    assert layer.wasted_share == pytest.approx(5 / 8)
    assert only(convolution(3, 16), "tf32").wasted_share == pytest.approx(1 / 4)
    assert only(convolution(3, 16), "int8").wasted_share == pytest.approx(13 / 16)


def test_the_vocabulary_of_gpt2_is_padded_by_seven_words() -> None:
    layer = only(product(16, 50257, rows="batch"))
    assert (layer.padded_n, layer.m) == (50264, None)
    assert layer.wasted_share == pytest.approx(7 / 50264)
    assert only(product(16, 50257), "int8").padded_n == 50272


@pytest.mark.parametrize(
    ("precision", "multiple"),
    [("tf32", 4), ("fp16", 8), ("bf16", 8), ("int8", 16), ("fp8", 16), ("int4", 32), ("nvfp4", 32)],
)
def test_the_multiple_of_a_precision_is_sixteen_bytes(precision: str, multiple: int) -> None:
    assert ALIGNMENT[precision] == multiple
    assert only(convolution(multiple, 2 * multiple), precision).kind == "aligned"
    assert only(convolution(multiple, multiple + 1), precision).kind == "unaligned"


def test_int8_of_sixteen_channels_is_below_what_tensorrt_asks_for() -> None:
    assert only(convolution(16, 16), "int8").below_tensorrt
    assert not only(convolution(32, 32), "int8").below_tensorrt
    assert not only(convolution(8, 8), "fp16").below_tensorrt


def test_a_batch_of_one_wastes_rows_and_an_open_batch_is_not_judged() -> None:
    assert only(product(64, 64, rows="1")).wasted_rows == pytest.approx(7 / 8)
    assert only(product(64, 64, rows="12")).padded_m == 16
    assert only(product(64, 64, rows="batch")).wasted_rows == 0.0
    assert only(product(64, 64, rows="1")).kind == "aligned"


def test_groups_are_judged_one_by_one() -> None:
    grouped = only(convolution(24, 48, group=2))
    assert (grouped.groups, grouped.k, grouped.n, grouped.padded_k) == (2, 12, 24, 16)
    assert grouped.wasted_share == pytest.approx(1 / 4)
    depthwise = only(convolution(24, 24, group=24))
    assert (depthwise.kind, depthwise.wasted_share) == ("depthwise", 0.0)


def test_a_gemm_of_transposed_operands_and_a_transposed_convolution() -> None:
    body = "(float[5,3] x) => (float[3,7] y) { [a] y = Gemm<transA = 1, transB = 1>(x, w) }"
    gemm = only(model_of(body, w=(7, 5)))
    assert (gemm.m, gemm.k, gemm.n) == (3, 5, 7)
    body = "(float[1,6,4,4] x) => (float[1,10,6,6] y) { [a] y = ConvTranspose<group = 2>(x, w) }"
    upwards = only(model_of(body, w=(6, 5, 3, 3)))
    assert (upwards.groups, upwards.k, upwards.n) == (2, 3, 5)


def test_attention_multiplies_what_has_no_weights() -> None:
    body = "(float[2,4,9,20] q, float[2,4,20,9] k) => (float[2,4,9,9] y) { [a] y = MatMul(q, k) }"
    layer = only(model_of(body))
    assert (layer.m, layer.k, layer.n) == (9, 20, 9)
    assert layer.wasted_share == pytest.approx(1 - 20 * 9 / (24 * 16))


@settings(max_examples=60)
@given(st.sampled_from(sorted(ALIGNMENT)), st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 2, 3]))
def test_the_waste_is_that_of_the_padded_model(precision: str, k: int, n: int, group: int) -> None:
    """The oracle: a model of the padded sizes, whose multiply-adds are counted."""
    multiple = ALIGNMENT[precision]
    if group > 1 and k == 1:
        return  # depthwise
    layer = only(convolution(k * group, n * group, group), precision)
    wide = [math.ceil(size / multiple) * multiple * group for size in (k, n)]
    (padded,) = multiply_adds(convolution(*wide, group)).values()
    assert layer.multiply_adds / (1 - layer.wasted_share) == pytest.approx(padded)
    assert (layer.kind == "aligned") == (layer.multiply_adds == padded)


@given(st.integers(0, 10**6), st.integers(1, 64))
def test_the_next_multiple_is_the_least(extent: int, multiple: int) -> None:
    found = next_multiple(extent, multiple)
    assert found % multiple == 0
    assert extent <= found < extent + multiple


def test_the_shares_of_a_whole_model() -> None:
    """Three layers by hand: 8 -> 8 fits, 8 -> 10 is odd, 10 -> 16 is odd; 1x1 convolutions on 4 pixels."""
    body = (
        "(float[1,8,2,2] x) => (float[1,16,2,2] y) "
        "{ [a] p = Conv(x, u) [b] q = Conv(p, v) [c] y = Conv(q, w) }"
    )
    model = model_of(body, u=(8, 8, 1, 1), v=(10, 8, 1, 1), w=(16, 10, 1, 1))
    sizes = tensor_core_sizes(model)
    counts, padded = [4 * 64, 4 * 80, 4 * 160], [4 * 64, 4 * 128, 4 * 256]
    assert [one.name for one in sizes.layers] == ["c", "b", "a"]
    assert sizes.multiply_adds == sum(counts)
    assert sizes.unaligned_share == pytest.approx((counts[1] + counts[2]) / sum(counts))
    assert sizes.wasted_share == pytest.approx(1 - sum(counts) / sum(padded))


def test_a_model_that_multiplies_nothing_has_no_layers() -> None:
    sizes = tensor_core_sizes(model_of("(float[2,4] x) => (float[2,4] y) { [a] y = Relu(x) }"))
    assert (sizes.layers, sizes.wasted_share, sizes.unaligned_share) == ((), 0.0, 0.0)


def mobilenet(width: float, classes: int) -> Any:
    """MobileNetV2 (Sandler et al., 2018, table 2); channels are multiples of 8, as in the paper."""
    import torch
    from torch import nn

    def scaled(channels: int) -> int:
        rounded = max(8, int(channels * width + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * channels * width else rounded

    layers: list[nn.Module] = [nn.Conv2d(3, scaled(32), 3, 2, 1)]
    inner = scaled(32)
    table = ((1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1))
    for expansion, channels, count in table:
        for _ in range(count):
            wide, outer = inner * expansion, scaled(channels)
            if expansion > 1:
                layers.append(nn.Conv2d(inner, wide, 1))
            layers += [nn.Conv2d(wide, wide, 3, 1, 1, groups=wide), nn.Conv2d(wide, outer, 1)]
            inner = outer
    layers += [nn.Conv2d(inner, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, classes)]
    torch.manual_seed(0)
    return nn.Sequential(*layers).eval()


def test_of_a_mobilenet_of_a_third_of_the_width_stem_and_classifier_do_not_fit(tmp_path: Path) -> None:
    import torch

    import qcompile

    module = mobilenet(0.35, 1001)
    made = qcompile.export(module, tmp_path / "m.onnx", inputs=["x:1x3x16x16"])
    sizes = tensor_core_sizes(onnx.load(made.path))
    odd = [one for one in sizes.layers if one.kind == "unaligned"]
    assert sorted((one.k, one.n) for one in odd) == [(3, 16), (1280, 1001)]
    convolutions = [one for one in module.modules() if isinstance(one, torch.nn.Conv2d)]
    depthwise = [one for one in convolutions if one.groups > 1]
    assert len([one for one in sizes.layers if one.kind == "depthwise"]) == len(depthwise) == 17
    assert len(sizes.layers) == len(convolutions) + 1
