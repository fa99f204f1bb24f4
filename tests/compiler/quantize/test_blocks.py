"""Weights become the nearest numbers of NVFP4 and MXFP8, and their codes mean these numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from block_numbers import E2M1, E4M3, fake_mxfp8, fake_nvfp4, nearest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper, parser
from rtx_builds import rtx_build
from written_models import model_of, normal, outputs_of

import qcompile
from qcompile.artifact import Artifact
from qcompile.calibration import Ranges, load_ranges
from qcompile.compiler.quantize.blocks.formats import quantize_weight, simulated, tensor_scale
from qcompile.compiler.quantize.blocks.rewrite import to_blocks
from qcompile.errors import CalibrationError, InvalidOption, QuantizationError
from qcompile.model.graph import graph_precision, weighted_nodes
from qcompile.spec.words import BLOCK_FORMATS, BlockFormat

Floats = NDArray[np.float32]


WEIGHTS = hnp.arrays(np.float32, (3, 64), elements=st.floats(-1000, 1000, width=32))


@settings(max_examples=40, deadline=None)
@given(WEIGHTS)
def test_nvfp4_is_the_nearest_number_of_its_block(weight: Floats) -> None:
    stored = quantize_weight(weight, "nvfp4")
    amax = np.abs(weight).max()
    assert stored.scale == (np.float32(amax / 2688) if amax / 2688 >= np.finfo(np.float32).tiny else 1)
    scales = stored.block_scales.astype(np.float64)
    largest = np.abs(weight.reshape(3, 4, 16)).max(-1) / np.float32(6) / stored.scale
    np.testing.assert_array_equal(scales, np.maximum(nearest(largest, E4M3), 2.0**-9))
    steps = weight.reshape(3, 4, 16) / (scales.astype(np.float32) * stored.scale)[..., None]
    np.testing.assert_array_equal(
        stored.values.astype(np.float64), nearest(steps, E2M1).reshape(weight.shape)
    )


@settings(max_examples=40, deadline=None)
@given(WEIGHTS)
def test_mxfp8_clips_nothing_and_is_the_nearest_number(weight: Floats) -> None:
    stored = quantize_weight(weight, "mxfp8")
    assert stored.block_scales.dtype == np.uint8
    scales = 2.0 ** (stored.block_scales.astype(np.float64) - 127)
    amax = np.abs(weight.reshape(3, 2, 32)).max(-1).astype(np.float64)
    assert (amax <= 448 * scales).all()
    assert ((amax > 224 * scales) | (amax == 0) | (scales == 2.0**-127)).all()
    np.testing.assert_array_equal(
        stored.values.astype(np.float64),
        nearest((weight.reshape(3, 2, 32) / scales[..., None]), E4M3).reshape(3, 64),
    )


def test_what_is_dequantized_is_what_the_codes_mean() -> None:
    weight = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    scale = tensor_scale(float(np.abs(weight).max()))
    found = quantize_weight(weight, "nvfp4").dequantized()
    np.testing.assert_allclose(found, fake_nvfp4(weight, scale), rtol=1e-6)
    np.testing.assert_array_equal(quantize_weight(weight, "mxfp8").dequantized(), fake_mxfp8(weight))


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_the_smallest_and_the_largest_numbers_of_a_format_are_exact(kind: BlockFormat) -> None:
    weight = np.zeros((2, 64), np.float32)
    weight[0, :32], weight[1, 40] = 1e-30, 1.0
    found = quantize_weight(weight, kind).dequantized()
    np.testing.assert_allclose(found, np.where(weight == 1, weight, 0), rtol=0, atol=1e-29)
    largest = np.full((1, 32), 448 * 2.0**-5, np.float32)
    np.testing.assert_allclose(quantize_weight(largest, kind).dequantized(), largest, rtol=1e-6)


BODY = "[query] q = MatMul(x, w1) [key] k = MatMul(x, w2) [sum] s = Add(q, k) [wide] y = MatMul(s, w3)"
SHAPES = {"w1": (64, 96), "w2": (64, 96), "w3": (96, 24)}
GEMM = "[first] h = Gemm(x, w1, b) [second] y = Gemm <transB = 1> (h, w2)"
AMAX = 4.5


def network(
    body: str, *axes: int, opset: int = 23, dtype: type[Any] = np.float32, **shapes: Any
) -> onnx.ModelProto:
    """A graph from x [n, axes] to y of products with stored weights."""
    kind = {np.float32: "float", np.float16: "float16"}[dtype]  # type: ignore[index]
    x = ",".join(["n", *map(str, axes)])
    out = shapes["w3"][1] if "w3" in shapes else shapes["w2"][0]
    y = ",".join(["n", *map(str, axes[:-1]), str(out)])
    text = f'<ir_version: 9, opset_import: ["" : {opset}]> g ({kind}[{x}] x) => ({kind}[{y}] y) {{ {body} }}'
    model = parser.parse_model(text)
    model.graph.initializer.extend(
        numpy_helper.from_array(normal(*s).astype(dtype), n) for n, s in shapes.items()
    )
    return model


def blocks_of(kind: BlockFormat, **options: Any) -> onnx.ModelProto:
    """The network of three products in a block format, checked."""
    model = network(BODY, 5, 64, **SHAPES, **options)
    to_blocks(model, kind, dict.fromkeys(["query", "key", "wide"], AMAX))
    onnx.checker.check_model(model, full_check=True)
    return model


def fake(kind: BlockFormat, values: Floats, amax: float) -> Floats:
    """What the format makes of values, by the table of its numbers."""
    return fake_nvfp4(values, tensor_scale(amax)) if kind == "nvfp4" else fake_mxfp8(values)


def fake_weight(kind: BlockFormat, weight: Floats) -> Floats:
    """The same of a weight [K, N], whose blocks lie along K."""
    return fake(kind, np.ascontiguousarray(weight.T), float(np.abs(weight).max())).T


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_the_simulated_graph_computes_what_the_numbers_of_the_format_give(kind: BlockFormat) -> None:
    stored = {name: normal(*shape) for name, shape in SHAPES.items()}
    x = normal(3, 5, 64, seed=1)
    x[0, 0, :32] = 0
    twin = simulated(blocks_of(kind))
    onnx.checker.check_model(twin, full_check=True)
    assert {node.domain for node in twin.graph.node} == {""}
    (found, sums) = outputs_of(twin, x, "y", "s")
    rounded = fake(kind, x, AMAX)
    expected = rounded @ fake_weight(kind, stored["w1"]) + rounded @ fake_weight(kind, stored["w2"])
    np.testing.assert_allclose(sums, expected, rtol=1e-4, atol=1e-4)
    last = fake(kind, sums, AMAX) @ fake_weight(kind, stored["w3"])
    np.testing.assert_allclose(found, last, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("kind", "dynamic", "stored"), [
    ("nvfp4", "FP4", {TensorProto.FLOAT4E2M1: 3, TensorProto.FLOAT8E4M3FN: 3, TensorProto.FLOAT: 5}),
    ("mxfp8", "MXFP8", {TensorProto.FLOAT8E4M3FN: 3, TensorProto.UINT8: 3}),
])  # fmt: skip
def test_weights_are_stored_in_the_format_and_products_of_one_activation_share_its_quantization(
    kind: BlockFormat, dynamic: str, stored: dict[int, int]
) -> None:
    model = blocks_of(kind)
    operators = [node.op_type for node in model.graph.node]
    assert operators.count(f"TRT_{dynamic}DynamicQuantize") == 2  # of x, and of the sum
    assert operators.count("Transpose") == 3
    types = [tensor.data_type for tensor in model.graph.initializer]
    assert {dtype: types.count(dtype) for dtype in set(types)} == stored
    assert [node.name for node in weighted_nodes(model)[kind]] == ["query", "key", "wide"]
    assert graph_precision(model) == kind
    half = network(BODY, 5, 64, **SHAPES, dtype=np.float16)
    to_blocks(half, kind, {"query": AMAX})
    assert {name: len(nodes) for name, nodes in weighted_nodes(half).items() if nodes} == {kind: 1, "fp16": 2}


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_a_gemm_reads_its_weight_by_rows_whichever_way_it_was_stored(kind: BlockFormat) -> None:
    shapes = {"w1": (64, 32), "b": (32,), "w2": (24, 32)}
    model = network(GEMM, 64, **shapes)
    x, stored = normal(4, 64, seed=1), {name: normal(*shape) for name, shape in shapes.items()}
    to_blocks(model, kind, {"first": AMAX, "second": 20.0})
    onnx.checker.check_model(model, full_check=True)
    h = fake(kind, x, AMAX) @ fake_weight(kind, stored["w1"]) + stored["b"]
    (found, inner) = outputs_of(simulated(model), x, "y", "h")
    np.testing.assert_allclose(inner, h, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        found, fake(kind, inner, 20.0) @ fake_weight(kind, stored["w2"].T), rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize(("kind", "dequantizes"), [("nvfp4", False), ("mxfp8", True)])
def test_engines_of_mxfp8_dequantize_and_those_of_nvfp4_do_not(kind: BlockFormat, dequantizes: bool) -> None:
    # Source: the programs in engines of TensorRT-RTX 1.7.1; a version with a product of MXFP8 fails here.
    _, plan = rtx_build(blocks_of(kind, dtype=np.float16), "SM120")
    assert (b"CastReplCastMulCast" in plan) is dequantizes


NETWORK = """(float[batch,3,16,16] x) => (float[batch,16,10] y)
    <float[32,3,4,4] w0, float[32,64] w1, float[64] b1, float[64,40] w2, float[40,32] w3, float[32,10] w4,
    int64[3] shape = {0,32,16}, int64[1] axes = {1}> {
    [patches] p = Conv <strides = [4,4]> (x, w0)  [flat] f = Reshape(p, shape)
    [rows] r = Transpose <perm = [0,2,1]> (f)  [wide] a = MatMul(r, w1)  [bias] b = Add(a, b1)
    [relu] c = Relu(b)  [narrow] d = MatMul(c, w2)  [odd] e = MatMul(d, w3)
    [turned] t = Transpose <perm = [0,2,1]> (r)  [product] s = MatMul(r, t)  [scores] z = Softmax(s)
    [mixed] m = MatMul(z, e)  [four] u = Unsqueeze(m, axes)  [deep] v = MatMul(u, w4)
    [last] g = Squeeze(v, axes)  [out] y = Identity(g)
}
"""

LEFT = {
    "patches": "and no Conv",
    "odd": "it sums over 40 values",
    "product": "its weight is computed at run time",
    "mixed": "its weight is computed at run time",
    "deep": "its activation has 4 axes",
}


@pytest.fixture
def layered(tmp_path: Path) -> Path:
    """A network with layers of every kind that fits or does not, its samples and its ranges beside it."""
    path = tmp_path / "net.onnx"
    onnx.save(model_of(NETWORK), path)
    np.savez(tmp_path / "x.npz", x=normal(16, 3, 16, 16))
    qcompile.calibrate(path, str(tmp_path / "x.npz"), tmp_path / "net.ranges", targets=["tensorrt"])
    return path


def quantized(path: Path, kind: BlockFormat, **options: Any) -> Artifact:
    if kind == "nvfp4":
        options.setdefault("ranges", path.with_suffix(".ranges"))
    output = path.with_name(f"{kind}.onnx")
    return qcompile.quantize(path, output, target="tensorrt", precision=kind, **options)


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_the_manifest_says_what_is_in_blocks_and_why_the_rest_is_not(
    layered: Path, kind: BlockFormat
) -> None:
    artifact = quantized(layered, kind)
    proof, model = artifact.manifest.proof, onnx.load(artifact.path)
    onnx.checker.check_model(model, full_check=True)
    assert artifact.manifest.precision == graph_precision(model) == kind
    first_opset = {"nvfp4": 23, "mxfp8": 19}[kind]
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": first_opset, "trt": 1}
    assert proof["nodes_by_precision"][kind] == {"MatMul": 2}  # type: ignore[index]
    assert proof["block_size"] == {"nvfp4": 16, "mxfp8": 32}[kind]
    left = proof["left_in_float"]
    assert isinstance(left, dict)
    assert left.keys() == LEFT.keys()
    assert all(reason in left[name] for name, reason in LEFT.items())


@pytest.mark.parametrize(("kind", "least_db"), [("nvfp4", 12), ("mxfp8", 22)])
def test_the_accuracy_is_that_of_the_same_roundings_and_says_so(
    layered: Path, kind: BlockFormat, least_db: float
) -> None:
    data = str(layered.with_name("x.npz"))
    (check,) = quantized(layered, kind, data=data, allow_loss=True).manifest.checks
    assert float(check.detail.split()[0]) > least_db
    assert "its roundings computed by float operators of ONNX Runtime" in check.detail


@pytest.mark.parametrize("float_precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_tensorrt_rtx_builds_the_float_model_for_blackwell(
    layered: Path, kind: BlockFormat, float_precision: str
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    shapes = [{"x": (extent, 3, 16, 16)} for extent in (1, 2, 4)]
    artifact = qcompile.build(
        layered, layered.with_name("e.engine"), target="tensorrt-rtx", precision=kind,
        gpus=["sm120", "sm121"], float_precision=float_precision, ranges=layered.with_suffix(".ranges"),
        min_shapes=shapes[0], opt_shapes=shapes[1], max_shapes=shapes[2],
    )  # fmt: skip
    layers = artifact.manifest.proof["layers_by_precision"]
    assert layers == {kind: {"MATRIX_MULTIPLY": 2}, float_precision: {"CONVOLUTION": 1, "MATRIX_MULTIPLY": 4}}
    assert any("multiplies floats" in text for text in artifact.manifest.warnings) is (kind == "mxfp8")


@pytest.mark.parametrize(
    ("target", "gpus", "problem", "hint"),
    [
        ("tensorrt-rtx", ["sm120", "sm89"], "sm89 has no {}; it begins with sm100", "sm120"),
        ("tensorrt-rtx", ["sm100"], "`gpus` sm100: tensorrt_rtx .* builds for sm75", ""),
        ("onnxruntime", [], "target onnxruntime has fp32", "only TensorRT multiplies it, from sm100 on"),
        ("openvino", [], "target openvino has fp32", "only TensorRT multiplies it, from sm100 on"),
    ],
)
@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_other_gpus_and_runtimes_are_refused_by_name_with_the_way_out(
    layered: Path, kind: BlockFormat, target: str, gpus: list[str], problem: str, hint: str
) -> None:
    pytest.importorskip(target.replace("-", "_"))
    ranges = layered.with_suffix(".ranges")
    with pytest.raises(InvalidOption, match=problem.format(kind.upper())) as caught:
        qcompile.build(
            layered, layered.with_name("e"), precision=kind, ranges=ranges, target=target, gpus=gpus
        )
    assert hint in caught.value.hint


def test_names_and_patterns_keep_products_in_float(layered: Path) -> None:
    proof = quantized(layered, "mxfp8", exclude=["narrow"]).manifest.proof
    assert proof["left_in_float"]["narrow"] == "excluded by 'narrow'"  # type: ignore[index]
    proof = quantized(layered, "mxfp8", only=["wide"]).manifest.proof
    assert proof["nodes_by_precision"]["mxfp8"] == {"MatMul": 1}  # type: ignore[index]
    proof = quantized(layered, "mxfp8", layers={"wide": "fp16"}).manifest.proof
    assert proof["nodes_by_precision"]["fp16"] == {"MatMul": 1}  # type: ignore[index]
    with pytest.raises(QuantizationError, match="nothing to quantize: node 'patches': TensorRT computes"):
        quantized(layered, "mxfp8", exclude=["wide", "narrow"])


def test_an_activation_without_a_range_is_named(layered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = load_ranges(layered.with_suffix(".ranges")).names()
    monkeypatch.setattr(Ranges, "names", lambda _: [name for name in known if name != "c"])
    with pytest.raises(CalibrationError, match="tensor 'c' needs a scale and has no range"):
        quantized(layered, "nvfp4")
