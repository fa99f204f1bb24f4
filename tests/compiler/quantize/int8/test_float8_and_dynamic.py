"""FP8 is E4M3 to the last bit, as numpy computes it; dynamic INT8 finds its scales while the model runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from block_numbers import E4M3, nearest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, parser
from rtx_builds import rtx_build
from written_models import model_of, normal, outputs_of, stored

import qcompile
from qcompile.compiler.quantize.int8.dynamic import WeightType, quantize_dynamic
from qcompile.compiler.quantize.int8.rewrites import round_to_float8, unfit_for_float8, weight_scales
from qcompile.compiler.quantize.prepare import prepare_graph
from qcompile.compiler.quantize.request import match_nodes
from qcompile.core.artifact import Artifact
from qcompile.core.processor import isa_here
from qcompile.errors import QuantizationError
from qcompile.model.graph.graph import graph_precision, opset, weighted_nodes
from qcompile.model.graph.saturating_kernels import saturating_kernels
from qcompile.model.outputs.judgement import output_error
from qcompile.model.sessions.session import make_session, session_options

Floats = NDArray[np.float32]

NETWORK = """
<ir_version: 8, opset_import: ["" : 17]>
tiny (float[batch,3,8,8] x) => (float[batch,16] y) {
    [first] a = Conv <pads = [1,1,1,1]> (x, w0)  [conv1] b = Conv <pads = [1,1,1,1]> (a, w1, b1)
    [relu1] c = Relu(b)  [conv2] d = Conv <pads = [1,1,1,1]> (c, w2, b2)  [add] e = Add(d, c)
    [pool] f = GlobalAveragePool(e)  [flat] g = Flatten(f)  [gemm] h = Gemm <transB = 1> (g, w3, b3)
    [product] i = MatMul(h, w4)  [bias] y = Add(i, b4)
}
"""
SHAPES = {
    "w0": (16, 3, 3, 3), "w1": (16, 16, 3, 3), "b1": (16,), "w2": (16, 16, 3, 3), "b2": (16,),
    "w3": (32, 16), "b3": (32,), "w4": (32, 16), "b4": (16,),
}  # fmt: skip


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A network of every kind of layer that FP8 takes, with its samples and ranges beside it."""
    model = parser.parse_model(NETWORK)
    model.graph.initializer.extend(
        numpy_helper.from_array(normal(*s, scale=0.2), n) for n, s in SHAPES.items()
    )
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    np.savez(tmp_path / "x.npz", x=normal(16, 3, 8, 8, seed=1, scale=1.0))
    qcompile.calibrate(path, str(tmp_path / "x.npz"), tmp_path / "net.ranges", method="minmax")
    return path


def fp8(path: Path, **options: Any) -> Artifact:
    """Quantize a calibrated network to FP8."""
    return qcompile.quantize(
        path, path.with_name("fp8.onnx"), ranges=path.with_suffix(".ranges"), target="tensorrt",
        precision="fp8", **options,
    )  # fmt: skip


def fake_fp8(values: Floats, scale: Any) -> Floats:
    """What a Q/DQ pair makes of values."""
    rounded = nearest(values / np.float32(scale), E4M3)
    return (rounded * np.float64(scale)).astype(np.float32)


@settings(max_examples=50, deadline=None)
@given(
    hnp.arrays(np.float32, (4, 6), elements=st.floats(-1000, 1000, width=32)),
    st.sampled_from([0, 1, None]),
    st.booleans(),
)
def test_weights_become_the_nearest_e4m3_numbers(weight: Floats, axis: int | None, half: bool) -> None:
    scales = weight_scales(weight, axis, half=half)
    shaped = scales if axis is None else scales.reshape((-1, 1) if axis == 0 else (1, -1))
    found = round_to_float8(weight, scales, axis).astype(np.float64)
    np.testing.assert_array_equal(found, nearest(weight / shaped, E4M3))
    amax = np.abs(weight).max() if axis is None else np.abs(weight).max(1 - axis)
    used = np.where(amax >= np.finfo(np.float32).tiny * 448, amax, 448)
    assert (scales * 448 >= used * (1 - 1e-6)).all()
    if half:
        np.testing.assert_array_equal(scales, scales.astype(np.float16).astype(np.float32))
    else:
        np.testing.assert_allclose(scales, used / 448, rtol=1e-6)


def test_the_graph_computes_what_numpy_does_with_every_number_rounded(network: Path) -> None:
    artifact = fp8(network)
    model, x = onnx.load(artifact.path), normal(4, 3, 8, 8, seed=2, scale=1.0)
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    float_model = onnx.load(network)
    weights = {t.name: numpy_helper.to_array(t) for t in float_model.graph.initializer}
    made_by = {node.output[0]: node for node in model.graph.node}
    (h, found) = outputs_of(model, x, "h", "i")
    quantize = made_by[made_by[next(n for n in model.graph.node if n.name == "product").input[0]].input[0]]
    amax = np.abs(outputs_of(float_model, np.load(network.with_name("x.npz"))["x"], "h")[0]).max()
    np.testing.assert_allclose(stored[quantize.input[1]], amax / 448, rtol=1e-5)
    columns = np.abs(weights["w4"]).max(0) / 448
    rounded = nearest(weights["w4"] / columns.astype(np.float32), E4M3) * columns
    expected = fake_fp8(h, stored[quantize.input[1]]) @ rounded.astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_activations_are_quantized_by_scales_and_weights_are_stored_as_float8(network: Path) -> None:
    artifact = fp8(network)
    model, manifest = onnx.load(artifact.path), artifact.manifest
    onnx.checker.check_model(model, full_check=True)
    assert opset(model) == 19
    assert model.ir_version >= 9
    types = {t.name: t.data_type for t in model.graph.initializer}
    assert set(types.values()) == {TensorProto.FLOAT, TensorProto.FLOAT8E4M3FN}
    assert all(node.input[0] not in types for node in model.graph.node if node.op_type == "QuantizeLinear")
    for node in weighted_nodes(model)["fp8"]:
        weight = next(n for n in model.graph.node if n.output[0] == node.input[1])
        assert types[weight.input[0]] == types[weight.input[2]] == TensorProto.FLOAT8E4M3FN
    assert manifest.precision == graph_precision(model) == "fp8"
    assert manifest.proof["nodes_by_precision"]["fp8"] == {"Conv": 2, "Gemm": 1, "MatMul": 1}  # type: ignore[index]
    reason = "its 3 and 16 channels fit no FP8 kernel, which takes multiples of 16"
    assert manifest.proof["left_in_float"] == {"first": reason}
    assert float(manifest.checks[0].detail.split()[0]) > 20
    assert not manifest.proof["corrected_biases"]  # there are no samples


def test_biases_are_corrected_where_there_are_samples(network: Path) -> None:
    data = str(network.with_name("x.npz"))
    x = np.load(data)["x"]
    expected = outputs_of(onnx.load(network), x)[0]
    plain = outputs_of(onnx.load(fp8(network, correct_bias=False, data=data).path), x)[0]
    artifact = fp8(network, data=data)
    corrected = outputs_of(onnx.load(artifact.path), x)[0]
    assert artifact.manifest.proof["corrected_biases"] == 4
    assert np.abs((corrected - expected).mean(0)).max() < np.abs((plain - expected).mean(0)).max()


def rescaled(network: Path, names: tuple[str, ...], factor: float) -> Path:
    """The network with other weights, calibrated again."""
    model = onnx.load(network)
    for tensor in model.graph.initializer:
        if tensor.name in names:
            values = numpy_helper.to_array(tensor) * np.float32(factor)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(model, network)
    qcompile.calibrate(network, str(network.with_name("x.npz")), network.with_suffix(".ranges"))
    return network


@pytest.mark.parametrize("names", [("w4", "b4"), ("w3", "b3")])
def test_small_weights_and_activations_keep_their_scales_beside_float16(
    names: tuple[str, str], network: Path
) -> None:
    """Of which the least that float16 holds with all its bits, 6.1e-5, is not the end."""
    artifact = fp8(rescaled(network, names, 1e-3), float_precision="fp16")
    assert artifact.manifest.proof["left_in_fp32"] == {}
    assert float(artifact.manifest.checks[0].detail.split()[0]) > 15


def test_activations_beyond_float16_stay_in_float32_beside_it(network: Path) -> None:
    artifact = fp8(rescaled(network, ("w3", "b3"), 1e6), float_precision="fp16")
    assert np.isfinite(outputs_of(onnx.load(artifact.path), normal(2, 3, 8, 8, seed=3, scale=1.0))[0]).all()
    left = artifact.manifest.proof["left_in_fp32"]
    assert isinstance(left, dict)
    assert {"gemm", "product"} <= left.keys()
    assert "beyond float16's 65504" in left["h_DequantizeLinear"]


def test_a_network_of_small_convolutions_alone_has_nothing_for_fp8(
    tiny_file: Callable[..., Path], samples: Any
) -> None:
    path = tiny_file("residual")
    qcompile.calibrate(path, str(samples("residual")), path.with_suffix(".ranges"))
    with pytest.raises(QuantizationError, match=r"nothing to quantize: node 'conv1': its 4 and 4 channels"):
        fp8(path, exclude=["Gemm"])


@pytest.mark.parametrize(
    ("operator", "shape", "options", "reason"),
    [
        ("Conv", (16, 16, 3, 3), {}, None),
        ("Conv", (48, 16, 5, 5), {}, None),
        ("Conv", (24, 8, 3, 3), {}, "its 8 and 24 channels fit no FP8 kernel"),
        ("Conv", (40, 16, 1, 1), {}, "its 16 and 40 channels fit no FP8 kernel"),
        ("Conv", (16, 16, 7, 7), {}, "its filter of 49 elements is above the 32"),
        ("Conv", (32, 1, 3, 3), {"group": 32}, "no FP8 kernel for grouped convolutions"),
        ("ConvTranspose", (16, 16, 2, 2), {}, "no FP8 kernel for ConvTranspose"),
        ("Gemm", (5, 7), {}, None),
        ("MatMul", (5, 7), {}, None),
    ],
)
def test_layers_without_a_kernel_stay_in_float(
    operator: str, shape: tuple[int, ...], options: dict[str, int], reason: str | None
) -> None:
    node = helper.make_node(operator, ["x", "w"], ["y"], "layer", **options)
    found = unfit_for_float8(node, {"w": numpy_helper.from_array(np.zeros(shape, np.float32), "w")})
    assert (found is None) is (reason is None)
    assert (reason or "") in (found or "")


@pytest.mark.parametrize("float_precision", ["fp32", "fp16", "bf16"])
def test_tensorrt_rtx_builds_it_for_gpus_that_have_fp8_and_refuses_others(
    network: Path, float_precision: str
) -> None:
    artifact = fp8(network, float_precision=float_precision)
    counts = artifact.manifest.proof["nodes_by_precision"]
    assert counts["fp8"] == {"Conv": 2, "Gemm": 1, "MatMul": 1}  # type: ignore[index]
    assert counts[float_precision] == {"Conv": 1}  # type: ignore[index]
    assert float(artifact.manifest.checks[0].detail.split()[0]) > 20
    model = onnx.load(artifact.path)
    built = [len(rtx_build(model, gpu)[1]) for gpu in ("SM89", "SM120", "SM86")]
    assert min(built[:2]) > 10_000
    assert built[2] == 0


@pytest.mark.parametrize("integers", [True, False])
def test_no_session_optimizes_fp8_to_something_else(integers: bool, network: Path) -> None:
    """1.31.1 refuses its own graph, and computes other values without integers; 1.32.0 always does."""
    path, x = fp8(network).path, normal(4, 3, 8, 8, seed=2, scale=1.0)
    (found,) = make_session(path, session_options(integers=integers)).run(["y"], {"x": x})
    (expected,) = outputs_of(path, x, "y")
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


HIDDEN = 4
TYPES: tuple[WeightType, ...] = ("int8", "uint8")
ONNX_TYPES = {"int8": onnx.TensorProto.INT8, "uint8": onnx.TensorProto.UINT8}


def recurrent(operator: str, gates: int) -> onnx.ModelProto:
    """A recurrent layer and a MatMul: x [5,1,8] to y [5,1,1,3]."""
    rows = gates * HIDDEN
    return model_of(f"""(float[5,1,8] x) => (float[5,1,1,3] y)
        <float[1,{rows},8] w, float[1,{rows},{HIDDEN}] r, float[{HIDDEN},3] v> {{
        [recurrent] h = {operator}<hidden_size={HIDDEN}>(x, w, r) [head] y = MatMul(h, v) }}""")


def with_states(operator: str, direction: str) -> tuple[onnx.ModelProto, dict[str, NDArray[np.generic]]]:
    """A recurrent layer with all its inputs and outputs, and feeds: 3 sequences of up to 5 steps."""
    gates, ways = {"LSTM": 4, "GRU": 3}[operator], 2 if direction == "bidirectional" else 1
    state, rows = f"float[{ways},3,{HIDDEN}]", gates * HIDDEN
    feeds: dict[str, NDArray[np.generic]] = {
        "x": normal(5, 3, 8), "lens": np.array([5, 2, 3], np.int32), "h0": normal(ways, 3, HIDDEN, seed=1),
    }  # fmt: skip
    inputs = f"float[5,3,8] x, int32[3] lens, {state} h0"
    outputs = f"float[5,{ways},3,{HIDDEN}] y, {state} yh"
    weights = f"float[{ways},{rows},8] w, float[{ways},{rows},{HIDDEN}] r, float[{ways},{2 * rows}] b"
    how = f'hidden_size={HIDDEN}, direction="{direction}"'
    node = f"y, yh = GRU<linear_before_reset=1, {how}>(x, w, r, b, lens, h0)"
    if operator == "LSTM":
        feeds["c0"] = normal(ways, 3, HIDDEN, seed=2)
        inputs, outputs = f"{inputs}, {state} c0", f"{outputs}, {state} yc"
        weights += f", float[{ways},{3 * HIDDEN}] p"
        node = f"y, yh, yc = LSTM<{how}>(x, w, r, b, lens, h0, c0, p)"
    return model_of(f"({inputs}) => ({outputs}) <{weights}> {{ [recurrent] {node} }}"), feeds


def quantized(
    model: onnx.ModelProto, path: Path, *exclude: str, weight_type: WeightType = "int8"
) -> tuple[onnx.ModelProto, dict[str, int], dict[str, int]]:
    """Prepare and quantize for this processor; return the written model, what was planned and reached."""
    kernels = saturating_kernels("onnxruntime", isa_here())
    ready = prepare_graph(model)
    written, planned, reached = quantize_dynamic(
        ready, excluded=match_nodes(ready.graph, exclude), weight_type=weight_type, kernels=kernels
    )
    onnx.checker.check_model(written)
    onnx.save(written, path)
    return written, planned, reached


@pytest.mark.parametrize(
    ("name", "operator", "shape", "scales"),
    [("mlp", "MatMul", (16, 16), [(32,), (8,)]), ("residual", "Gemm", (4, 4, 8, 8), [(3,)])],
)
def test_every_product_is_quantized_per_output_channel_and_convolutions_are_left_alone(
    name: str, operator: str, shape: tuple[int, ...], scales: list[tuple[int]],
    tiny: Callable[..., onnx.ModelProto], tmp_path: Path,
) -> None:  # fmt: skip
    model = tiny(name)
    written, planned, reached = quantized(model, tmp_path / "m.onnx")
    assert (planned, reached) == ({operator: len(scales)}, {"MatMulInteger": len(scales)})
    arrays = stored(written)
    integers = [node for node in written.graph.node if node.op_type == "MatMulInteger"]
    assert {arrays[node.input[1]].dtype.name for node in integers} == {"int8"}
    assert {array.shape for key, array in arrays.items() if key.endswith("scale")} == set(scales)
    assert [node.op_type for node in written.graph.node].count("Conv") == (2 if name == "residual" else 0)
    x = normal(*shape)
    assert output_error(outputs_of(model, x)[0], outputs_of(written, x)[0]).snr_db > 25


@pytest.mark.parametrize("weight_type", TYPES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
def test_directions_lengths_and_states_survive(
    operator: str, direction: str, weight_type: WeightType, tmp_path: Path
) -> None:
    model, feeds = with_states(operator, direction)
    written, planned, reached = quantized(model, tmp_path / "m.onnx", weight_type=weight_type)
    integer = {"LSTM": "DynamicQuantizeLSTM", "GRU": "GRU (weights only)"}[operator]
    assert (planned, reached) == ({operator: 1}, {integer: 1})
    for expected, found in zip(outputs_of(model, feeds), outputs_of(written, feeds), strict=True):
        assert output_error(expected, found).snr_db > 30
    for name in feeds:  # and each input still matters
        changed = feeds | {name: np.ones_like(feeds[name])}
        for expected, found in zip(outputs_of(model, changed), outputs_of(written, changed), strict=True):
            assert output_error(expected, found).snr_db > 30


@pytest.mark.parametrize("weight_type", TYPES)
def test_the_integers_of_a_product_and_of_an_lstm_are_of_the_type_asked_for(
    weight_type: WeightType, tmp_path: Path
) -> None:
    model = recurrent("LSTM", 4)
    written, _, reached = quantized(model, tmp_path / "m.onnx", weight_type=weight_type)
    assert reached == {"DynamicQuantizeLSTM": 1, "MatMulInteger": 1}
    stored = {tensor.name: tensor.data_type for tensor in written.graph.initializer}
    lstm, product = (
        next(node for node in written.graph.node if node.op_type == kind)
        for kind in ("DynamicQuantizeLSTM", "MatMulInteger")
    )
    weights = [*(lstm.input[index] for index in (1, 2, 9, 11)), product.input[1], product.input[3]]
    assert {stored[name] for name in weights} == {ONNX_TYPES[weight_type]}
    x = normal(5, 1, 8)
    assert output_error(outputs_of(model, x)[0], outputs_of(written, x)[0]).snr_db > 25


def test_a_gru_is_stored_as_int8_and_becomes_float_when_it_is_loaded(tmp_path: Path) -> None:
    model = recurrent("GRU", 3)
    written, planned, reached = quantized(model, tmp_path / "m.onnx")
    assert planned == {"GRU": 1, "MatMul": 1}
    assert reached == {"GRU (weights only)": 1, "MatMulInteger": 1}
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in written.graph.initializer}
    assert (stored["w/int8"].dtype, stored["w/int8"].shape) == (np.int8, (1, 12, 8))
    assert stored["w/scale"].shape == stored["r/scale"].shape == (1, 12, 1)  # one for each gate's row
    assert {"w", "r"} & set(stored) == set()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    onnxruntime.InferenceSession(tmp_path / "m.onnx", options, providers=["CPUExecutionProvider"])
    loaded = onnx.load(tmp_path / "loaded.onnx")
    gru = next(node for node in loaded.graph.node if node.op_type == "GRU")
    floats = {tensor.name: numpy_helper.to_array(tensor) for tensor in loaded.graph.initializer}
    original = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for name, found in (("w", floats[gru.input[1]]), ("r", floats[gru.input[2]])):
        assert (np.abs(found - original[name]) <= stored[f"{name}/scale"] / 2 * (1 + 1e-5)).all()
    x = normal(5, 1, 8)
    assert output_error(outputs_of(model, x)[0], outputs_of(written, x)[0]).snr_db > 25


@pytest.mark.parametrize("exclude", [(), ("second",)])
@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_layers_that_share_weights_are_each_computed_right(
    operator: str, gates: int, exclude: tuple[str, ...], tmp_path: Path
) -> None:
    """ONNX Runtime's quantizer reshapes an LSTM's weight in place, whoever else reads it."""
    weight = f"float[1,{gates * 8},8]"
    model = model_of(f"""(float[5,2,8] x) => (float[5,1,2,8] y) <{weight} w, {weight} r> {{
        [first] a, h = {operator}<hidden_size=8>(x, w, r)
        [second] y = {operator}<hidden_size=8>(x, w, r, , , h) }}""")
    written, planned, reached = quantized(model, tmp_path / "m.onnx", *exclude)
    assert sum(planned.values()) == sum(reached.values()) == 2 - len(exclude)
    x = normal(5, 2, 8)
    assert output_error(outputs_of(model, x)[0], outputs_of(written, x)[0]).snr_db > 30


def test_an_excluded_product_reads_the_float_weight_that_it_shares(tmp_path: Path) -> None:
    text = "(float[6,8] x) => (float[6,8] a, float[6,8] y) { a = MatMul(x, w) y = MatMul(x, w) }"
    model = model_of(text, w=normal(8, 8))
    written, _, reached = quantized(model, tmp_path / "m.onnx", "MatMul_y")
    assert reached == {"MatMulInteger": 1}
    x = {"x": normal(6, 8)}
    rounded, exact = outputs_of(written, dict(x))
    np.testing.assert_allclose(exact, outputs_of(model, dict(x))[1], rtol=1e-6)
    assert 25 < output_error(exact, rounded).snr_db < 60


@pytest.mark.parametrize(
    "graph",
    [
        """(float[2,7,8] x) => (float[2,7,5] y) <float[8,8] v, float[2,8,5] w> {
            h = MatMul(x, v) y = MatMul(h, w) }""",
        """(float[8,8] x) => (float[8,5] y) <float[8,8] v, float[8,5] w> {
            h = MatMul(x, v) y = Gemm <transA = 1> (h, w) }""",
        """(float[6,8] x) => (float[6,8] y) <float[8,8] v, float[64] w, int64[2] s = {8, 8}> {
            h = MatMul(x, v) made = Reshape(w, s) y = MatMul(h, made) }""",
        """(float[6,8] x) => (float[6,5] y) <float[8,8] v, float[8,5] w, float[5] b> {
            h = MatMul(x, v) made = Exp(b) y = Gemm <alpha = 3.0> (h, w, made) }""",
        # ONNX Runtime's quantizer transposes it twice: 5 dB were left of a Transformer.
        """(float[6,8] x) => (float[6,8] y) <float[8,8] w, float[8] b, float[8,8] v> {
            h = Gemm<transB=1>(x, w, b) r = Relu(h) g = Gemm<transB=1>(r, w, b) y = MatMul(g, v) }""",
    ],
    ids=[
        "a batch of weights",
        "a transposed activation",
        "a weight made by a node",
        "a factor",
        "a shared one",
    ],
)
def test_a_node_that_is_hard_to_quantize_does_not_keep_another_from_it(graph: str, tmp_path: Path) -> None:
    model = model_of(graph)
    written, planned, reached = quantized(model, tmp_path / "m.onnx")
    assert sum(planned.values()) == reached["MatMulInteger"] >= graph.count("transB") + 1
    x = normal(*(dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim))
    assert output_error(outputs_of(model, x)[0], outputs_of(written, x)[0]).snr_db > 25


def test_attention_of_onnx_has_no_weights(tmp_path: Path) -> None:
    model = model_of(
        """(float[1,7,8] x) => (float[1,7,8] y) {
        q = MatMul(x, w) y = Attention <q_num_heads=2, kv_num_heads=2> (q, k, v) }""",
        opset=23, w=normal(8, 8), k=normal(1, 5, 8), v=normal(1, 5, 8),
    )  # fmt: skip
    assert quantized(model, tmp_path / "m.onnx")[1] == {"MatMul": 1}


def test_a_model_with_nothing_to_quantize_is_an_error(
    tiny: Callable[..., onnx.ModelProto], tmp_path: Path
) -> None:
    for exclude in ((), ("add_one",)):
        with pytest.raises(QuantizationError, match="nothing to quantize") as caught:
            quantized(tiny("elementwise"), tmp_path / "m.onnx", *exclude)
        assert "static" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
