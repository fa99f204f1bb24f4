"""Weights become the nearest numbers of NVFP4 and MXFP8, and their codes mean these numbers."""

from __future__ import annotations

import numpy as np
import pytest
from block_numbers import E2M1, E4M3, E8M0, fake_mxfp8, fake_nvfp4, nearest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from qcompile.compiler.quantize.blocks.formats import quantize_weight, tensor_scale

Floats = NDArray[np.float32]


def test_the_numbers_are_those_of_the_formats() -> None:
    assert E2M1.tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert (E4M3[1], E4M3[8], E4M3[-1]) == (2.0**-9, 2.0**-6, 448)
    assert (E8M0[0], E8M0[127], E8M0[-1]) == (2.0**-127, 1, 2.0**127)


WEIGHTS = hnp.arrays(np.float32, (3, 64), elements=st.floats(-1000, 1000, width=32))


@settings(max_examples=40, deadline=None)
@given(WEIGHTS)
def test_nvfp4_is_the_nearest_number_of_its_block(weight: Floats) -> None:
    stored = quantize_weight(weight, "nvfp4")
    amax = np.abs(weight).max()
    assert stored.scale == (np.float32(amax / 2688) if amax / 2688 >= np.finfo(np.float32).tiny else 1)
    scales = stored.block_scales.astype(np.float64)
    largest = np.abs(weight.reshape(3, 4, 16)).max(-1) / np.float32(6) / stored.scale
    np.testing.assert_array_equal(scales, np.maximum(nearest(largest, E4M3), 2.0**-9))
    steps = weight.reshape(3, 4, 16) / (scales.astype(np.float32) * stored.scale)[..., None]
    np.testing.assert_array_equal(
        stored.values.astype(np.float64), nearest(steps, E2M1).reshape(weight.shape)
    )


@settings(max_examples=40, deadline=None)
@given(WEIGHTS)
def test_mxfp8_clips_nothing_and_is_the_nearest_number(weight: Floats) -> None:
    stored = quantize_weight(weight, "mxfp8")
    assert stored.block_scales.dtype == np.uint8
    scales = 2.0 ** (stored.block_scales.astype(np.float64) - 127)
    amax = np.abs(weight.reshape(3, 2, 32)).max(-1).astype(np.float64)
    assert (amax <= 448 * scales).all()
    assert ((amax > 224 * scales) | (amax == 0) | (scales == 2.0**-127)).all()
    np.testing.assert_array_equal(
        stored.values.astype(np.float64),
        nearest((weight.reshape(3, 2, 32) / scales[..., None]), E4M3).reshape(3, 64),
    )


def test_what_is_dequantized_is_what_the_codes_mean() -> None:
    weight = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    scale = tensor_scale(float(np.abs(weight).max()))
    found = quantize_weight(weight, "nvfp4").dequantized()
    np.testing.assert_allclose(found, fake_nvfp4(weight, scale), rtol=1e-6)
    np.testing.assert_array_equal(quantize_weight(weight, "mxfp8").dequantized(), fake_mxfp8(weight))


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp8"])
def test_blocks_of_zeros_and_of_tiny_values_stay_finite(kind: str) -> None:
    weight = np.zeros((2, 64), np.float32)
    weight[0, :32] = 1e-30
    weight[1, 40] = 1.0
    found = quantize_weight(weight, kind).dequantized()  # type: ignore[arg-type]
    assert np.isfinite(found).all()
    assert found[1, 40] == 1.0
    assert not found[0, 32:].any()


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp8"])
def test_the_largest_number_of_a_format_is_reached(kind: str) -> None:
    weight = np.full((1, 32), 448 * 2.0**-5, np.float32)
    found = quantize_weight(weight, kind).dequantized()  # type: ignore[arg-type]
    np.testing.assert_allclose(found, weight, rtol=1e-6)
