"""Weights are quantized as ONNX Runtime's own loops quantize them, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import pytest
from onnxruntime.quantization import qdq_quantizer
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

import qcompile
from qcompile.compiler.quantize.int8 import static as static_int8
from qcompile.compiler.quantize.int8.static import all_channels_at_once


@contextmanager
def its_own(_: object) -> Iterator[type]:
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
    isa = "avx512-vnni"
    qcompile.quantize(model, tmp_path / "ours.onnx", ranges=ranges, target=target, isa=isa)  # type: ignore[arg-type]
    monkeypatch.setattr(static_int8, "all_channels_at_once", its_own)
    qcompile.quantize(model, tmp_path / "theirs.onnx", ranges=ranges, target=target, isa=isa)  # type: ignore[arg-type]
    ours, theirs = onnx.load(tmp_path / "ours.onnx"), onnx.load(tmp_path / "theirs.onnx")
    assert ours == theirs


def test_the_library_is_left_as_it_was() -> None:
    before = qdq_quantizer.quantize_onnx_initializer
    with all_channels_at_once({}):
        assert qdq_quantizer.quantize_onnx_initializer is not before
    with pytest.raises(KeyError), all_channels_at_once({}):
        raise KeyError
    assert qdq_quantizer.quantize_onnx_initializer is before
