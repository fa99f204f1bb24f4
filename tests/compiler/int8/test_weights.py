"""Weights are quantized as ONNX Runtime's own loops quantize them, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnxruntime.quantization import qdq_quantizer
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

import qcompile
from qcompile.compiler.int8 import static as static_int8
from qcompile.compiler.int8.weights import all_channels_at_once, channel_scales, quantize_channels


@contextmanager
def its_own() -> Iterator[type]:
    yield QDQQuantizer


@pytest.mark.parametrize("name", ["residual", "mlp"])
@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
def test_the_graph_is_the_one_that_onnx_runtimes_loops_give(
    name: str,
    target: str,
    tiny_file: Callable[..., Path],
    samples: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, ranges = tiny_file(name), tmp_path / "m.ranges"
    qcompile.calibrate(model, str(samples(name)), ranges)
    qcompile.quantize(model, tmp_path / "ours.onnx", ranges=ranges, target=target)  # type: ignore[arg-type]
    monkeypatch.setattr(static_int8, "all_channels_at_once", its_own)
    qcompile.quantize(model, tmp_path / "theirs.onnx", ranges=ranges, target=target)  # type: ignore[arg-type]
    ours, theirs = onnx.load(tmp_path / "ours.onnx"), onnx.load(tmp_path / "theirs.onnx")
    assert ours == theirs


def test_the_library_is_left_as_it_was() -> None:
    before = qdq_quantizer.quantize_onnx_initializer
    with all_channels_at_once():
        assert qdq_quantizer.quantize_onnx_initializer is not before
    with pytest.raises(KeyError), all_channels_at_once():
        raise KeyError
    assert qdq_quantizer.quantize_onnx_initializer is before


def test_a_channel_of_zeros_has_the_scale_one() -> None:
    scales = channel_scales(np.array([[0.0, 0.0], [-254.0, 127.0]], np.float32), 0)
    assert scales.tolist() == [1.0, 2.0]
    assert scales.dtype == np.float32


@given(
    weight=arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=1, max_dims=4, max_side=5),
        elements=st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=False),
    ),
    data=st.data(),
)
@settings(deadline=None)
def test_each_channel_by_itself_gives_the_same(weight: np.ndarray, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, weight.ndim - 1))
    scales = channel_scales(weight, axis)
    quantized = quantize_channels(weight, scales, axis)
    for index in range(weight.shape[axis]):
        channel, found = weight.take(index, axis), quantized.take(index, axis)
        amax = float(np.abs(channel).max())
        assert scales[index] == np.float32(amax / 127 if amax / 127 >= np.finfo(np.float32).tiny else 1.0)
        np.testing.assert_array_equal(found, np.clip(np.round(channel / scales[index]), -128, 127))
        assert np.abs(found.astype(int)).max(initial=0) <= 127
