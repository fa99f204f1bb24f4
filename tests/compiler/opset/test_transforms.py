"""Transforms as products and convolutions, for runtimes without them, against numpy and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from written_models import model_of, normal, outputs_of

from qcompile.compiler.opset.dft import dft_to_products
from qcompile.compiler.opset.stft import stft_to_convolutions

OPSET_17 = "[dft] f = DFT<axis = 1, onesided = 1>(x, length) y = ReduceSumSquare<axes = [2]>(f)"


def pairs(values: NDArray[np.complex128]) -> NDArray[np.float64]:
    return np.stack([values.real, values.imag], -1).reshape(-1)


def transformed(body: str, shape: str, opset: int, **stored: NDArray[Any]) -> onnx.ModelProto:
    result = ",".join(f"r{axis}" for axis in range(shape.count(",") + 1))
    return model_of(f"(float[{shape}] x) => (float[{result}] y) {{ {body} }}", opset=opset, **stored)


CASES = {
    "real": (OPSET_17, "n,16,1", 17, {"length": np.array(16)}),
    "padded": (OPSET_17, "n,12,1", 17, {"length": np.array(16)}),
    "cut": (OPSET_17.replace(", onesided = 1", ""), "n,20,2", 17, {"length": np.array(16)}),
    "inverse": (OPSET_17.replace("onesided", "inverse"), "n,16,2", 17, {"length": np.array(16)}),
    "another axis": ("y = DFT(x, , axis)", "n,8,3,2", 20, {"axis": np.array(1)}),
    "the last axis": ("y = DFT(x)", "n,3,8,1", 20, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_product_computes_what_the_operator_does(name: str) -> None:
    body, shape, opset, stored = CASES[name]
    model = transformed(body, shape, opset, **stored)
    x = np.random.default_rng(0).standard_normal((3, *map(int, shape.split(",")[1:]))).astype(np.float32)
    (expected,) = outputs_of(model, x)
    assert len(dft_to_products(model)) == 1
    onnx.checker.check_model(model, full_check=True)
    assert "DFT" not in {node.op_type for node in model.graph.node}
    np.testing.assert_allclose(outputs_of(model, x)[0], expected, rtol=1e-4, atol=1e-4)


ANY_LENGTH = {
    "real": ("y = DFT<axis = 1>(x)", 17),
    "onesided": ("y = DFT<axis = 1, onesided = 1>(x)", 17),
    "pairs": ("y = DFT<axis = 1>(x)", 17),
    "inverse": ("y = DFT<axis = 1, inverse = 1>(x)", 17),
    "opset 20": ("y = DFT(x, , axis)", 20),
}


@pytest.mark.parametrize("length", [1, 7, 16])
@pytest.mark.parametrize("name", ANY_LENGTH)
def test_a_length_of_run_time_is_computed_in_the_graph(name: str, length: int) -> None:
    """Against numpy, along an axis that is not the last one of the signal."""
    body, opset = ANY_LENGTH[name]
    parts = 1 if name in ("real", "onesided") else 2
    stored = {"axis": np.array(1)} if opset == 20 else {}
    model = transformed(body, f"n,m,3,{parts}", opset, **stored)
    assert len(dft_to_products(model)) == 1
    onnx.checker.check_model(model, full_check=True)
    assert "DFT" not in {node.op_type for node in model.graph.node}
    x = np.random.default_rng(0).standard_normal((2, length, 3, parts)).astype(np.float32)
    (found,) = outputs_of(model, x)
    signal = x[..., 0] if parts == 1 else x @ np.array([1, 1j])
    function = {"inverse": np.fft.ifft, "onesided": np.fft.rfft}.get(name, np.fft.fft)
    expected = function(signal, axis=1)
    np.testing.assert_allclose(found @ np.array([1, 1j]), expected, atol=1e-4)


@pytest.mark.parametrize("length", [16, 20, 37])
@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize(
    ("inputs", "shape"),
    [("hop, window", "n,m,1"), ("hop, window, points", "n,m"), ("hop, , points", "n,m,1")],
)
@pytest.mark.parametrize("onesided", [0, 1])
def test_short_transforms_are_those_of_numpy(
    inputs: str, shape: str, opset: int, length: int, onesided: int
) -> None:
    window = np.hamming(16).astype(np.float32) if "window" in inputs else np.ones(16, np.float32)
    stored = {"hop": np.array(4), "window": window, "points": np.array(16)}
    body = f"[frames] y = STFT<onesided = {onesided}>(x, {inputs})"
    text = f"(float[{shape}] x) => (float[n,frames,bins,2] y) {{ {body} }}"
    model = model_of(text, opset=opset, **{name: value for name, value in stored.items() if name in inputs})
    assert stft_to_convolutions(model) == ["frames"]
    onnx.checker.check_model(model, full_check=True)
    x = normal(3, length, 1) if shape.count(",") == 2 else normal(3, length)
    (found,) = outputs_of(model, x)
    frames = np.lib.stride_tricks.sliding_window_view(x.reshape(3, length), 16, axis=1)[:, ::4] * window
    expected = np.fft.rfft(frames) if onesided else np.fft.fft(frames)
    np.testing.assert_allclose(found @ np.array([1, 1j]), expected, atol=1e-4)


def test_short_transforms_with_a_window_of_run_time_stay() -> None:
    text = "(float[n,m,1] x, float[16] w) => (float[n,f,b,2] y) { y = STFT(x, hop, w) }"
    assert not stft_to_convolutions(model_of(text, opset=17, hop=np.array(4)))


def test_a_transform_of_great_length_or_of_other_points_stays() -> None:
    for shape, length in (("n,m,1", np.array(16)), ("n,4096,2", np.array(4096))):
        model = transformed(OPSET_17, shape, 17, length=length)
        assert dft_to_products(model) == []
        assert "DFT" in {node.op_type for node in model.graph.node}
