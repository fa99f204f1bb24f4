"""LSTMs written as products, against ONNX Runtime's own LSTM kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import qcompile
from qcompile.compiler.check import OnnxReference
from qcompile.compiler.opset.lstm_products import closed_lstms, lstm_inputs, open_lstms, quantize_states
from qcompile.compiler.opset.tensorrt_forms import find_trt_operators, in_standard_forms
from qcompile.engines.load import load
from qcompile.model.graph import graph_precision
from qcompile.model.onnx_file import opset

INPUT, HIDDEN = 6, 5
OUTPUTS = ("y", "y_h", "y_c")


def lstm(
    direction: str = "bidirectional", *, bias: bool = True, opset: int = 20, outputs: int = 3, **more: Any
) -> onnx.ModelProto:
    """x [length, batch, 6] through one LSTM of 5; `more` are attributes, or inputs by their position."""
    generator = np.random.default_rng(0)
    ways = 2 if direction == "bidirectional" else 1
    shapes = {"w": (ways, 4 * HIDDEN, INPUT), "r": (ways, 4 * HIDDEN, HIDDEN), "b": (ways, 8 * HIDDEN)}
    stored = [
        numpy_helper.from_array(generator.normal(0, 0.6, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    names = ["x", "w", "r", "b" if bias else "", "", "", "", ""]
    for position in ("4", "5", "6", "7"):
        names[int(position)] = more.pop(f"input_{position}", "")
    node = helper.make_node(
        "LSTM", names, list(OUTPUTS[:outputs]), "lstm", hidden_size=HIDDEN, direction=direction, **more
    )
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (
            ("x", ["length", "batch", INPUT]),
            ("y", ["length", ways, "batch", HIDDEN]),
            ("y_h", [ways, "batch", HIDDEN]),
            ("y_c", [ways, "batch", HIDDEN]),
        )
    ]
    graph = helper.make_graph([node], "g", values[:1], values[1 : 1 + outputs], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def computed(model: onnx.ModelProto, x: NDArray[np.float32], folder: Path) -> list[NDArray[Any]]:
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / "m.onnx")
    return list(OnnxReference(folder / "m.onnx")({"x": x}))


@given(
    direction=st.sampled_from(["forward", "reverse", "bidirectional"]),
    bias=st.booleans(),
    opset=st.sampled_from([13, 17, 18, 20]),
    outputs=st.integers(1, 3),
    length=st.integers(1, 7),
    batch=st.integers(1, 4),
)
@settings(max_examples=25, deadline=None)
def test_an_opened_lstm_computes_the_same(
    direction: str, bias: bool, opset: int, outputs: int, length: int, batch: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("lstm")
    x = np.random.default_rng(1).standard_normal((length, batch, INPUT)).astype(np.float32)
    model = lstm(direction, bias=bias, opset=opset, outputs=outputs)
    expected = computed(model, x, folder)
    assert open_lstms(model) == ["lstm"]
    assert "LSTM" not in {node.op_type for node in model.graph.node}
    for array, other in zip(expected, computed(model, x, folder), strict=True):
        np.testing.assert_allclose(other, array, atol=2e-6)


def test_the_state_is_multiplied_in_integers_and_keeps_its_signal(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((32, 4, INPUT)).astype(np.float32)
    model = lstm()
    expected = computed(model, x, tmp_path)[0]
    open_lstms(model)
    assert quantize_states(model) == 2
    found = computed(model, x, tmp_path)[0]
    noise = float(((found - expected) ** 2).sum())
    assert noise > 0
    assert 10 * np.log10(float((expected**2).sum()) / noise) > 35


def test_weights_of_the_state_have_a_scale_per_channel() -> None:
    model = lstm("forward")
    weight = numpy_helper.to_array(model.graph.initializer[1])[0]  # [4 * hidden, hidden]
    open_lstms(model)
    quantize_states(model)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    (scale,) = [array for name, array in stored.items() if name.endswith("state_weight/scale")]
    np.testing.assert_allclose(scale, np.abs(weight).max(1) / 127, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"clip": 3.0}, "not the usual ones"),
        ({"input_forget": 1}, "not the usual ones"),
        ({"activations": ["Relu", "Tanh", "Tanh"]}, "not the usual ones"),
        ({"input_4": "lengths"}, "sequence lengths"),
        ({"input_7": "peepholes"}, "peepholes"),
        ({"input_5": "state"}, "first state"),
    ],
)
def test_other_lstms_stay_and_say_why(options: dict[str, Any], reason: str) -> None:
    model = lstm("forward", **options)
    before = model.SerializeToString()
    assert open_lstms(model) == []
    assert reason in closed_lstms(model)["lstm"]
    assert lstm_inputs(model) == set()
    assert model.SerializeToString() == before


def test_what_is_excluded_by_name_stays() -> None:
    model = lstm()
    assert open_lstms(model, exclude={"lstm"}) == []
    assert closed_lstms(model) == {"lstm": "it was excluded"}
    assert lstm_inputs(model) == {"x"}


def test_tensorrt_builds_it_with_the_products_of_states_in_int8(tmp_path: Path) -> None:
    model = lstm()
    open_lstms(model)
    quantize_states(model)
    onnx.save(model, tmp_path / "m.onnx")
    shapes = {f"{kind}_shapes": {"x": (8, n, INPUT)} for kind, n in (("min", 1), ("opt", 4), ("max", 32))}
    built = qcompile.build(
        tmp_path / "m.onnx", tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"],
        allow_fallback=True, **shapes,  # type: ignore[arg-type]
    )  # fmt: skip
    found = built.manifest.proof["layers_by_precision"]
    assert found == {"fp32": {"MATRIX_MULTIPLY": 2}, "int8": {"MATRIX_MULTIPLY": 2}}


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
