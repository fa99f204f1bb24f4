"""Graphs in NVFP4 and MXFP8: what TensorRT-RTX parses and builds, and what ONNX Runtime computes for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from block_numbers import fake_mxfp8, fake_nvfp4
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper, parser
from written_models import outputs_of

from qcompile.compiler.quantize.blocks.formats import simulated, tensor_scale
from qcompile.compiler.quantize.blocks.rewrite import to_blocks
from qcompile.engines.tensorrt.builder.proof import by_precision, compute_layers
from qcompile.model.graph import graph_precision, weighted_nodes
from qcompile.spec.words import BLOCK_FORMATS, BlockFormat

Floats = NDArray[np.float32]

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


def normal(*shape: int, seed: int = 0) -> Floats:
    """Normal float32 values."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


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


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_products_that_read_one_activation_share_its_quantization(kind: BlockFormat) -> None:
    operators = [node.op_type for node in blocks_of(kind).graph.node]
    dynamic = "TRT_FP4DynamicQuantize" if kind == "nvfp4" else "TRT_MXFP8DynamicQuantize"
    assert operators.count(dynamic) == 2  # of x, and of the sum
    assert operators.count("Transpose") == 3


@pytest.mark.parametrize(("kind", "stored"), [
    ("nvfp4", {TensorProto.FLOAT4E2M1: 3, TensorProto.FLOAT8E4M3FN: 3, TensorProto.FLOAT: 5}),
    ("mxfp8", {TensorProto.FLOAT8E4M3FN: 3, TensorProto.UINT8: 3}),
])  # fmt: skip
def test_weights_are_stored_in_the_format_and_no_float_is_left(
    kind: BlockFormat, stored: dict[int, int]
) -> None:
    types = [tensor.data_type for tensor in blocks_of(kind).graph.initializer]
    assert {dtype: types.count(dtype) for dtype in set(types)} == stored


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_the_graph_tells_its_precision(kind: BlockFormat) -> None:
    model = blocks_of(kind)
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


def built(trt: Any, model: onnx.ModelProto, gpu: str) -> tuple[dict[str, dict[str, int]], bytes]:
    """Precisions of the parsed network, and the engine; no bytes where TensorRT-RTX refuses."""
    log = trt.Logger(trt.Logger.INTERNAL_ERROR)
    builder = trt.Builder(log)
    parsed = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser_ = trt.OnnxParser(parsed, log)
    assert parser_.parse(model.SerializeToString()), parser_.get_error(0).desc()
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, gpu), 0)
    profile = builder.create_optimization_profile()
    axes = tuple(parsed.get_input(0).shape)[1:]
    profile.set_shape("x", (1, *axes), (2, *axes), (4, *axes))
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(parsed, config)
    return by_precision(compute_layers(parsed)), b"" if plan is None else bytes(plan)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_tensorrt_rtx_builds_it_for_blackwell_and_its_network_is_of_the_format(
    kind: BlockFormat, dtype: type[Any]
) -> None:
    trt = pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    layers, plan = built(trt, blocks_of(kind, dtype=dtype), "SM120")
    assert layers == {kind: {"MATRIX_MULTIPLY": 3}}
    assert len(plan) > 10_000


@pytest.mark.parametrize(("kind", "gpu", "builds"), [
    ("nvfp4", "SM89", False), ("nvfp4", "SM86", False), ("mxfp8", "SM86", False), ("mxfp8", "SM89", True),
])  # fmt: skip
def test_what_tensorrt_rtx_itself_says_of_older_gpus(kind: BlockFormat, gpu: str, builds: bool) -> None:
    # It builds MXFP8 for sm89 without a product of it; qcompile refuses that by name.
    trt = pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    assert bool(built(trt, blocks_of(kind, dtype=np.float16), gpu)[1]) is builds


@pytest.mark.parametrize(("kind", "dequantizes"), [("nvfp4", False), ("mxfp8", True)])
def test_engines_of_mxfp8_dequantize_and_those_of_nvfp4_do_not(kind: BlockFormat, dequantizes: bool) -> None:
    # Source: the programs in engines of TensorRT-RTX 1.7.1; a version with a product of MXFP8 fails here.
    trt = pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    _, plan = built(trt, blocks_of(kind, dtype=np.float16), "SM120")
    assert (b"CastReplCastMulCast" in plan) is dequantizes
