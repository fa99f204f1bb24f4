"""An exported graph with trained scales becomes complete for its target, and computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession, SessionOptions
from torch import nn

from qcompile.compiler.quantize.qat.finish_qdq import finish_qdq
from qcompile.errors import InvalidOption, QuantizationError
from qcompile.model.graph import weighted_nodes
from qcompile.progress import quiet


def run(model: onnx.ModelProto, x: NDArray[Any], optimized: Path | None = None) -> NDArray[Any]:
    onnx.checker.check_model(model, full_check=True)
    options = SessionOptions()
    options.log_severity_level = 3
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    session = InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    result: NDArray[Any] = session.run(None, {"x": x})[0]
    return result


def to_onnx(model: nn.Module, x: torch.Tensor) -> onnx.ModelProto:
    with quiet():
        exported = torch.onnx.export(
            torch.export.export(model, (x,)), dynamo=True, verbose=False, input_names=["x"],
            output_names=["y"], opset_version=20,
        )  # fmt: skip
    proto: onnx.ModelProto = exported.model_proto
    return proto


def stored(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def quantized_weight(bias: float) -> onnx.ModelProto:
    """x [2,4], a stored weight behind DequantizeLinear and Transpose, then a Gemm, as exported."""
    generator = np.random.default_rng(0)
    arrays = {
        "xs": np.float32(0.02), "xz": np.uint8(100),
        "w": generator.integers(-127, 128, (4, 3)).astype(np.int8),
        "ws": np.array([0.02, 0.03, 1e-6], np.float32), "wz": np.zeros(3, np.int8),
        "b": np.array([bias, -bias, bias], np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=1),
        helper.make_node("Transpose", ["wd"], ["wt"]),
        helper.make_node("Gemm", ["xd", "wt", "b"], ["y"], "gemm", transB=1),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, s]) for n, s in (("x", 4), ("y", 3))]
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


@pytest.mark.parametrize(("bias", "kernel"), [(0.5, "QGemm"), (1e4, "Gemm")])
def test_a_bias_is_int32_where_it_fits(bias: float, kernel: str, tmp_path: Path) -> None:
    model, x = quantized_weight(bias), np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)
    finished = finish_qdq(model, "onnxruntime")
    assert any(array.dtype == np.int32 for array in stored(finished).values()) is (kernel == "QGemm")
    expected = run(model, x)
    np.testing.assert_allclose(run(finished, x, tmp_path / "o.onnx"), expected, rtol=1e-5, atol=1e-3)
    assert kernel in {node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_finishing_twice_changes_nothing_more(target: Any) -> None:
    once = finish_qdq(quantized_weight(0.5), target)
    assert finish_qdq(once, target) == once


def test_tensorrt_is_given_no_zero_point() -> None:
    model = quantized_weight(0.5)
    with pytest.raises(QuantizationError, match="'x' has a zero point of 100"):
        finish_qdq(model, "tensorrt")
    with pytest.raises(InvalidOption, match="'cpu' is unknown"):
        finish_qdq(model, "cpu")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_model_trained_with_torchao_keeps_its_scales() -> None:
    with quiet():
        pytest.importorskip("torchao")
        from torchao.quantization.pt2e import move_exported_model_to_eval
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
        )
        shapes = ({0: torch.export.Dim.AUTO},)
        x = torch.randn(2, 3, 6, 6)
        captured = torch.export.export(model.train(), (x,), dynamic_shapes=shapes).module()
        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_qat=True))
        prepared = prepare_qat_pt2e(captured, quantizer)
        for _ in range(3):
            prepared(x)
        move_exported_model_to_eval(prepared)
        converted = convert_pt2e(prepared)
    graph = finish_qdq(to_onnx(converted, x), "onnxruntime")
    trained_scales = {
        np.float32(node.args[1])
        for node in converted.graph.nodes
        if "quantize_per_tensor" in str(node.target)
    }
    values = stored(graph)
    scales = {values[n.input[1]].item() for n in graph.graph.node if n.op_type == "QuantizeLinear"}
    assert scales == trained_scales
    assert not weighted_nodes(graph)["fp32"]
    expected = converted(x).detach().numpy()
    noise = expected - run(graph, x.numpy())
    assert np.square(noise).sum() < np.square(expected).sum() / 1000  # 30 dB
