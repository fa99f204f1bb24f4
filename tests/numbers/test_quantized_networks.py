"""Our quantized models on ONNX Runtime and OpenVINO: every integer is one that the reference allows.

What is allowed: the roundings of all numbers near the exact quotient, see `onnx_reference.py`. Two
optimizations of ONNX Runtime compute something else on purpose, for graphs of other targets:
WeightBiasQuantization rounds float biases to int32, and a stored int4 weight is multiplied by
activations of 8 bits. The graphs for OpenVINO and TensorRT therefore run as they are written.

Weights are those for "avx2" wherever kernels are fused: x86 without VNNI sums two products in int16.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun
from onnx.reference.ops._op_list import load_op
from onnx_reference import OWN, integers_of, judged, watched
from quantized_networks import NETWORKS, network, samples, saved
from runtimes import OPENVINO_SLACK, on_onnxruntime, on_openvino, optimized_operators

import qcompile
from qcompile.compiler.quantize.int8 import dynamic, placement, tensorrt
from qcompile.compiler.quantize.weights import rewrite
from qcompile.errors import QuantizationError
from qcompile.model.graph import WEIGHTED
from qcompile.model.saturating_kernels import probe

Quantized = Callable[..., onnx.ModelProto]

SCHEMES: dict[str, dict[str, Any]] = {
    "onnxruntime": {"target": "onnxruntime", "isa": "avx2"},
    "openvino": {"target": "openvino", "isa": "avx2"},
    "tensorrt": {"target": "tensorrt"},
    "dynamic": {"target": "onnxruntime", "mode": "dynamic", "weight_type": "uint8"},
    "int4": {"target": "onnxruntime", "mode": "weights", "precision": "int4"},
    "int4 qdq": {"target": "openvino", "mode": "weights", "precision": "int4"},
}
FUSED = {
    "QLinearConv", "QGemm", "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearConcat",
    "QLinearAveragePool", "QLinearGlobalAveragePool", "MatMulIntegerToFloat",
}  # fmt: skip
DYNAMIC = ("transformer", "gru", "shared", "residual")
PRODUCTS = ("transformer", "lstm", "gru", "shared", "residual")
CASES = [
    (name, scheme)
    for name in NETWORKS
    for scheme in SCHEMES
    if scheme not in ("dynamic", "int4") or name in (DYNAMIC if scheme == "dynamic" else PRODUCTS)
]


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Quantized:
    """`quantized("unet", "openvino", exclude=...)`: a network after qcompile."""
    folder = tmp_path_factory.mktemp("networks")
    made: dict[str, tuple[Path, Path]] = {}

    def make(name: str, scheme: str, **options: Any) -> onnx.ModelProto:
        if name not in made:
            (folder / name).mkdir()
            path, data = saved(network(name), folder / name)
            made[name] = path, qcompile.calibrate(path, str(data), folder / name / "m.ranges").path
        path, ranges = made[name]
        told = {**SCHEMES[scheme], **options}
        if told.get("mode", "static") == "static":
            told["ranges"] = ranges
        return onnx.load(qcompile.quantize(path, folder / "q.onnx", allow_loss=True, **told).path)

    return make


def require_openvino(scheme: str) -> None:
    """Skip where OpenVINO is missing, or its kernels pair other weights than those a scheme is fitted to.

    Where kernels add two products in int16, a convolution of three channels has other pairs in OpenVINO (of
    each position) than in ONNX Runtime (of all positions).
    """
    pytest.importorskip("openvino")
    if scheme == "onnxruntime" and probe("openvino"):
        pytest.skip("OpenVINO adds two products in int16 here, and the weights are fitted to ONNX Runtime")


@pytest.mark.parametrize(("name", "scheme"), CASES)
def test_every_integer_of_onnx_runtime_is_one_that_the_reference_allows(
    name: str, scheme: str, quantized: Quantized
) -> None:
    model = quantized(name, scheme)
    feeds = samples(model, 3)
    shown, names = watched(model)
    for optimize in (False, True) if SCHEMES[scheme]["target"] == "onnxruntime" else (False,):
        found = on_onnxruntime(shown, feeds, optimize=optimize)
        deviations, count = judged(model, feeds, integers_of(model, found, names))
        assert deviations == []
        assert count >= sum(found[value.name].size for value in model.graph.output)


@pytest.mark.parametrize("scheme", ["onnxruntime", "openvino", "int4 qdq"])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_every_integer_of_openvino_is_one_that_the_reference_allows(
    name: str, scheme: str, quantized: Quantized
) -> None:
    require_openvino(scheme)
    model = quantized(name, scheme)
    feeds = samples(model, 3)
    shown, names = watched(model, dequantized=True)
    given = integers_of(model, on_openvino(shown, feeds), names)
    assert judged(model, feeds, given, slack=OPENVINO_SLACK)[0] == []


def test_the_fused_kernels_of_onnx_runtime_are_among_what_is_judged(
    quantized: Quantized, tmp_path: Path
) -> None:
    made = set[str]()
    for name in ("residual", "grouped", "unet", "excited", "transformer"):
        made |= optimized_operators(watched(quantized(name, "onnxruntime"))[0], tmp_path)
    made |= optimized_operators(quantized("transformer", "dynamic"), tmp_path)
    assert made >= FUSED


def test_excluded_layers_are_computed_in_float_on_both_runtimes(quantized: Quantized) -> None:
    model = quantized("residual", "onnxruntime", exclude=["Conv_2"])
    feeds = samples(model, 3)
    shown, names = watched(model)
    found = on_onnxruntime(shown, feeds, optimize=True)
    assert judged(model, feeds, integers_of(model, found, names))[0] == []


def scale_off(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    change(model, node.input[1], lambda scale: (scale * 1.01).astype(np.float32))


def zero_point_off(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    change(model, node.input[2], lambda zero: zero + np.ones((), zero.dtype))


def change(model: onnx.ModelProto, name: str, function: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    for tensor in model.graph.initializer:
        if tensor.name == name:
            values = function(onnx.numpy_helper.to_array(tensor))
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(values), name))


@pytest.mark.parametrize("fault", [scale_off, zero_point_off])
@pytest.mark.parametrize("runtime", [on_onnxruntime, on_openvino])
@pytest.mark.parametrize("scheme", ["onnxruntime", "openvino"])
def test_a_planted_fault_is_found(fault: Any, runtime: Any, scheme: str, quantized: Quantized) -> None:
    if runtime is on_openvino:
        require_openvino(scheme)
    model = quantized("residual", scheme)
    feeds = samples(model, 3)
    planted = onnx.ModelProto()
    planted.CopyFrom(model)
    quantizes = [node for node in planted.graph.node if node.op_type == "QuantizeLinear"]
    fault(planted, quantizes[1])
    shown, names = watched(planted, dequantized=runtime is on_openvino)
    found = runtime(shown, feeds)
    # Integers are told by the planted scale; what they should have been, by the right one.
    given, slack = integers_of(planted, found, names), OPENVINO_SLACK if runtime is on_openvino else 0.0
    assert judged(model, feeds, given, slack=slack)[0]
    assert judged(planted, feeds, given, slack=slack)[0] == []


def test_a_planted_axis_is_found(quantized: Quantized) -> None:
    model = quantized("shared", "int4 qdq")
    planted = onnx.ModelProto()
    planted.CopyFrom(model)
    (node,) = [n for n in planted.graph.node if n.op_type == "DequantizeLinear" and "w0" in n.input[0]]
    (axis,) = [item for item in node.attribute if item.name == "axis"]
    axis.i = 1 - axis.i
    change(planted, node.input[1], np.transpose)
    feeds = samples(model, 3)
    assert judged(model, feeds, on_onnxruntime(planted, feeds))[0]
    assert judged(planted, feeds, on_onnxruntime(planted, feeds))[0] == []


def test_networks_without_anything_to_quantize_are_refused_and_not_passed_over(quantized: Quantized) -> None:
    with pytest.raises(QuantizationError, match="nothing to quantize"):
        quantized("grouped", "dynamic")


WITHOUT_REFERENCE = {"Attention"}
"""Of ONNX Runtime's domain, which exporters of PyTorch do not write."""


def placed() -> set[str]:
    """The operators of the code's own lists."""
    return {
        *WEIGHTED,
        *placement._BETWEEN,
        *placement.SAME_SCALE,
        *(operator for operators in placement._WEIGHTED.values() for operator in operators),
        *tensorrt._FUSED,
        *tensorrt._CONVOLUTIONS,
        *dynamic.DYNAMIC_OPERATORS,
        *rewrite._TAKEN,
    }


def test_every_operator_that_is_quantized_has_a_reference() -> None:
    own = {operator.__name__ for operator in OWN}
    for name in placed() - own - WITHOUT_REFERENCE:
        spelled_out = onnx.defs.get_schema(name).has_function
        assert spelled_out or issubclass(load_op("", name), OpRun), f"{name}: add it to onnx_reference.py"
