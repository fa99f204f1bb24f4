"""Weights alone in 4 or 8 bits, through `quantize`: numpy says what the file must compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from mode_models import WIDTH, Floats, forward, run, snr_db
from numpy.typing import NDArray
from onnx import numpy_helper

from qcompile.compiler.quantize.quantize import quantize
from qcompile.errors import InvalidOption


def dequantized(
    path: Path, name: str, shape: tuple[int, int], *, bits: int, quant_format: str, block: int
) -> Floats:
    """The weight [K, N], or [N, K] for w4, that the file's integers stand for."""
    tensors = {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}
    axis = 1 if name == "w4" else 0
    prefix = f"{name}/axis{axis}"
    rows, columns = shape[:: 1 if axis else -1]
    scales = numpy_helper.to_array(tensors[f"{prefix}/scale"])
    if quant_format == "qdq":
        codes = numpy_helper.to_array(tensors[f"{prefix}/int{bits}"]).astype(np.float32)
        scales = np.expand_dims(scales, axis) if scales.ndim == 1 else scales
        scales = np.repeat(scales, codes.shape[axis] // scales.shape[axis], axis)
        return codes * scales

    def unpacked(kind: str) -> NDArray[Any]:
        content = np.frombuffer(tensors[f"{prefix}/{kind}"].raw_data, np.uint8)
        halves = np.stack([content & 15, content >> 4], -1) if bits == 4 else content
        found: NDArray[Any] = halves.reshape(rows, -1).astype(np.float32)
        return found

    at = np.arange(columns) // block
    array = (unpacked("blocks")[:, :columns] - unpacked("zero_point")[:, at]) * scales.reshape(rows, -1)[
        :, at
    ]
    return np.asarray(array if axis else array.T, np.float32)


@pytest.mark.parametrize(("target", "quant_format"), [("onnxruntime", "nbits"), ("tensorrt", "qdq")])
@pytest.mark.parametrize("rounding", ["rtn", "gptq"])
@pytest.mark.parametrize(("precision", "block"), [("int4", 16), ("int4", 32), ("int8", 64)])
def test_weights_alone_are_what_onnx_runtime_multiplies_by(
    precision: str, block: int, rounding: str, target: str, quant_format: str, layers: Any, tmp_path: Path
) -> None:
    model, weights, data, x = layers
    artifact = quantize(
        model, tmp_path / "q.onnx", mode="weights", precision=precision, target=target,  # type: ignore[arg-type]
        block_size=block, rounding=rounding, data=str(data), allow_loss=True,
    )  # fmt: skip
    proof = artifact.manifest.proof
    assert proof["quantized"] == proof["planned"] == {"MatMul": 3, "Gemm": 1}
    assert (proof["quant_format"], proof["left_in_float"]) == (quant_format, {})
    bits = int(precision.removeprefix("int"))
    read = {
        name: dequantized(artifact.path, name, w.shape, bits=bits, quant_format=quant_format, block=block)
        for name, w in weights.items()
    }
    for name, weight in weights.items():
        assert read[name].shape == weight.shape
        assert snr_db(weight, read[name]) > (12 if bits == 4 else 38)
    np.testing.assert_allclose(run(artifact.path, x=x), forward(read, x), rtol=1e-3, atol=1e-4)
    if quant_format == "qdq":
        types = {t.name: t.data_type for t in onnx.load(artifact.path).graph.initializer}
        kind = onnx.TensorProto.INT4 if bits == 4 else onnx.TensorProto.INT8
        assert sum(found == kind for found in types.values()) == 4


def test_gptq_loses_less_of_the_first_product_on_its_samples_than_rounding(
    layers: Any, tmp_path: Path
) -> None:
    model, weights, data, x = layers
    found = {}
    for rounding in ("rtn", "gptq"):
        path = quantize(
            model, tmp_path / f"{rounding}.onnx", mode="weights", precision="int4", data=str(data),
            rounding=rounding, allow_loss=True,
        ).path  # fmt: skip
        read = dequantized(path, "w1", (WIDTH, WIDTH), bits=4, quant_format="nbits", block=64)
        found[rounding] = snr_db(x @ weights["w1"], x @ read)
    assert found["gptq"] > found["rtn"] + 1


def test_gptq_without_samples_is_refused(layers: Any, tmp_path: Path) -> None:
    options = {"rounding": "gptq"}
    with pytest.raises(InvalidOption, match="needs samples"):
        quantize(layers[0], tmp_path / "q.onnx", mode="weights", precision="int4", **options)


def test_onnx_runtimes_own_form_is_refused_for_tensorrt(layers: Any, tmp_path: Path) -> None:
    options = {"quant_format": "nbits"}
    with pytest.raises(InvalidOption, match="`quant_format` 'nbits' needs ONNX Runtime's own operators"):
        quantize(
            layers[0], tmp_path / "q.onnx", mode="weights", precision="int4", target="tensorrt", **options
        )
