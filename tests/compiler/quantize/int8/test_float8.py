"""FP8 is E4M3 to the last bit: numpy computes what ONNX Runtime must, and TensorRT-RTX builds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from block_numbers import E4M3, nearest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from mode_models import normal
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, parser
from rtx_builds import rtx_build
from written_models import outputs_of

import qcompile
from qcompile.artifact import Artifact
from qcompile.compiler.quantize.int8.rewrites import round_to_float8, unfit_for_float8, weight_scales
from qcompile.errors import QuantizationError
from qcompile.model.graph import graph_precision, weighted_nodes
from qcompile.model.onnx_file import opset

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
    model.graph.initializer.extend(numpy_helper.from_array(normal(*s), n) for n, s in SHAPES.items())
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
        ("Conv", (32, 1, 3, 3), {"group": 32}, "no FP8 kernel for convolutions of groups"),
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


def test_an_fp8_graph_runs_where_any_onnx_file_runs(network: Path) -> None:
    # ONNX Runtime's optimizer makes integer kernels of FP8 pairs, and then refuses its own graph (1.31.1).
    x = normal(4, 3, 8, 8, seed=2, scale=1.0)
    with qcompile.load(network) as plain, qcompile.load(fp8(network).path) as runner:
        expected, found = plain.infer({"x": x})["y"], runner.infer({"x": x})["y"]
    assert 0 < np.abs(found - expected).max() < 0.2 * np.abs(expected).max()
