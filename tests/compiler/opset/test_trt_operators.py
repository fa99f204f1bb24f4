"""TensorRT's own Q/DQ become ONNX's where there is an equal, and are taken as they are where there is none.

The graphs have the structure that NVIDIA/Model-Optimizer exports (modelopt/torch/quantization/
export_onnx.py).
"""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qcompile
from qcompile.compiler.opset.trt_operators import find_trt_operators, in_standard_forms
from qcompile.engines.load import load
from qcompile.model.graph import graph_precision
from qcompile.model.onnx_file import opset


def trt(operator: str, inputs: list[str], outputs: list[str], **attributes: int) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, outputs, outputs[0], domain="trt", **attributes)


def model(
    nodes: list[onnx.NodeProto], version: int, *more: onnx.TensorProto, columns: int = 32
) -> onnx.ModelProto:
    """y [N,32] of x [N,64], a weight w [64,32] and scales s, sw."""
    rng = np.random.default_rng(0)
    stored = [
        numpy_helper.from_array(rng.standard_normal((64, 32)).astype(np.float32) / 8, "w"),
        numpy_helper.from_array(np.array(0.02, np.float32), "s"),
        numpy_helper.from_array(np.array(0.01, np.float32), "sw"),
        *more,
    ]
    read = {name for node in nodes for name in node.input}
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", 1, ["N", 64])], [value("y", 1, ["N", columns])],
        [tensor for tensor in stored if tensor.name in read],
        value_info=[value("q", TensorProto.UINT8, ["N", 64])],
    )  # fmt: skip
    imports = [helper.make_opsetid("", version), helper.make_opsetid("trt", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def fp8(version: int = 19) -> onnx.ModelProto:
    return model(
        [
            trt("TRT_FP8QuantizeLinear", ["x", "s"], ["q"]),
            trt("TRT_FP8DequantizeLinear", ["q", "s"], ["d"]),
            trt("TRT_FP8QuantizeLinear", ["w", "sw"], ["qw"]),
            trt("TRT_FP8DequantizeLinear", ["qw", "sw"], ["dw"]),
            helper.make_node("MatMul", ["d", "dw"], ["y"], "product"),
        ],
        version,
    )


def mxfp8() -> onnx.ModelProto:
    return model(
        [
            trt("TRT_MXFP8DynamicQuantize", ["x"], ["q", "sx"], axis=-1, block_size=32, output_dtype=17),
            trt("TRT_MXFP8DequantizeLinear", ["q", "sx"], ["d"], axis=-1, block_size=32, output_dtype=1),
            helper.make_node("MatMul", ["d", "w"], ["y"], "product"),
        ],
        19,
    )


def nvfp4() -> onnx.ModelProto:
    return model(
        [
            trt("TRT_FP4DynamicQuantize", ["x", "s"], ["q", "sx"], axis=-1, block_size=16, scale_type=17),
            helper.make_node("DequantizeLinear", ["sx", "s"], ["ds"], "scales"),
            trt("DequantizeLinear", ["q", "ds"], ["d"], axis=-1, block_size=16),
            helper.make_node("MatMul", ["d", "w"], ["y"], "product"),
        ],
        23,
    )


@pytest.mark.parametrize("version", [17, 19, 21])
def test_fp8_becomes_onnxs_own_and_computes_what_float8_does(version: int, tmp_path: Path) -> None:
    proto = fp8(version)
    assert graph_precision(proto) == "fp8"
    made = in_standard_forms(proto)
    onnx.checker.check_model(made, full_check=True)
    assert opset(made) == max(version, 19)
    assert find_trt_operators(made) == []
    assert graph_precision(made) == "fp8"
    onnx.save(made, tmp_path / "m.onnx")
    x = np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)

    def rounded(values: np.ndarray, scale: float) -> np.ndarray:  # type: ignore[type-arg]
        return (values / np.float32(scale)).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(
            scale
        )

    expected = rounded(x, 0.02) @ rounded(numpy_helper.to_array(proto.graph.initializer[0]), 0.01)
    with load(tmp_path / "m.onnx") as runner:
        np.testing.assert_allclose(runner.infer({"x": x})["y"], expected, rtol=1e-4, atol=1e-4)


def test_stored_bytes_get_the_type_that_they_are_of() -> None:
    float8 = np.linspace(-2, 2, 64 * 32, dtype=np.float32).reshape(64, 32).astype(ml_dtypes.float8_e4m3fn)
    stored = numpy_helper.from_array(float8.view(np.uint8), "bytes")
    nodes = [
        trt("TRT_FP8DequantizeLinear", ["bytes", "sw"], ["dw"]),
        helper.make_node("MatMul", ["x", "dw"], ["y"]),
    ]
    made = in_standard_forms(model(nodes, 19, stored))
    onnx.checker.check_model(made, full_check=True)
    (tensor,) = [one for one in made.graph.initializer if one.name == "bytes"]
    assert tensor.data_type == TensorProto.FLOAT8E4M3FN
    np.testing.assert_array_equal(numpy_helper.to_array(tensor).astype(np.float32), float8.astype(np.float32))


def test_int4_weights_in_bytes_are_packed_and_their_blocks_kept() -> None:
    weights = np.random.default_rng(0).integers(-8, 8, (64, 32), np.int8)
    scales = np.full((2, 32), 0.1, np.float32)
    stored = numpy_helper.from_array(weights, "q4"), numpy_helper.from_array(scales, "s4")
    nodes = [
        trt("TRT_INT4DequantizeLinear", ["q4", "s4"], ["dw"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "dw"], ["y"]),
    ]
    proto = model(nodes, 20, *stored)
    assert graph_precision(proto) == "int4"
    made = in_standard_forms(proto)
    onnx.checker.check_model(made, full_check=True)
    assert (opset(made), graph_precision(made)) == (21, "int4")
    (tensor,) = [one for one in made.graph.initializer if one.name == "q4"]
    np.testing.assert_array_equal(numpy_helper.to_array(tensor).astype(np.int8), weights)


def test_what_has_no_equal_stays() -> None:
    proto = mxfp8()
    assert in_standard_forms(proto) is proto
    assert find_trt_operators(proto) == ["TRT_MXFP8DequantizeLinear", "TRT_MXFP8DynamicQuantize"]
    left = in_standard_forms(nvfp4())
    assert find_trt_operators(left) == ["TRT_FP4DynamicQuantize"]
    assert [node.domain for node in left.graph.node] == ["trt", "", "", ""]


@pytest.mark.parametrize(
    ("made", "precision", "gpu"), [(fp8, "fp8", "sm89"), (mxfp8, "fp32", "sm120"), (nvfp4, "fp32", "sm120")]
)
def test_the_real_rtx_builds_each_and_what_cannot_be_compared_is_said(
    made: object, precision: str, gpu: str, tmp_path: Path
) -> None:
    onnx.save(made(), tmp_path / "m.onnx")  # type: ignore[operator]
    qcompile.inspect(tmp_path / "m.onnx")
    manifest = qcompile.build(
        tmp_path / "m.onnx", tmp_path / "m.engine", target="tensorrt-rtx", precision=precision, gpus=[gpu]
    ).manifest
    told = any("ONNX Runtime has no TRT_" in warning for warning in manifest.warnings)
    assert told == (precision == "fp32")
