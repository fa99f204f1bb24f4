"""Layers that TensorRT computes no faster in INT8 stay in float: the sizes are Model-Optimizer's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import qcompile
from qcompile.compiler.quantize.int8.placement import Placement, plan
from qcompile.compiler.quantize.prepare import prepare_graph

GRAPH_UTILS = "NVIDIA/Model-Optimizer, modelopt/onnx/quantization/graph_utils.py"
"""`find_nodes_from_convs_to_exclude` and `_exclude_matmuls_by_inference`."""


def model_of(body: str, inputs: str, output: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    """A prepared graph with random weights; a product of 64 by 64 beside it, which INT8 takes."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g ({inputs}, float[n,64] beside) => ({output}, float[n,64] large)
    {{ {body} large = MatMul(beside, w64) }}"""
    model = parser.parse_model(text)
    generator = np.random.default_rng(0)
    for name, shape in (*weights.items(), ("w64", (64, 64))):
        values = generator.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.checker.check_model(model)
    return prepare_graph(model)


def placed(*arguments: str, float8: bool = False, **weights: tuple[int, ...]) -> Placement:
    """The plan for a graph of `model_of`."""
    return plan(model_of(*arguments, **weights), "tensorrt", float8=float8)


@pytest.mark.parametrize(
    ("weight", "options", "behind", "reason"),
    [
        ((16, 16, 3, 3), "", True, None),
        ((16, 3, 3, 3), "", False, None),
        ((16, 3, 7, 7), "", True, None),
        ((8, 4, 3, 3), "", False, None),  # the first layer
        ((8, 4, 3, 3), "", True, "its 4 and 8 channels are few for INT8: both are below 16"),
        ((12, 20, 3, 3), "", True, "its 20 and 12 channels are few for INT8: neither is a multiple of 8"),
        ((10, 64, 1, 1), "", True, None),
        ((32, 8, 1, 7), "", True, "its 8 and 32 channels are few for INT8: its kernel is longer on one axis"),
        ((32, 32, 1, 7), "", True, None),
        ((32, 1, 3, 3), "<group = 32>", True, None),
        ((32, 1, 1, 1), "<group = 32>", True, "a group has 1 channels"),
        ((36, 1, 3, 3), "<group = 36>", True, "a group has 1 channels"),
        ((64, 32, 1, 1), "<group = 2>", True, None),
    ],
)
def test_convolutions_of_few_channels_stay_in_float(
    weight: tuple[int, ...], options: str, behind: bool, reason: str | None
) -> None:
    channels = weight[1] * (int(options.split()[-1][:-1]) if options else 1)
    body = f"{'a = Exp(x)' if behind else ''} c = Conv {options} ({'a' if behind else 'x'}, w)"
    found = placed(body, f"float[n,{channels},9,9] x", f"float[n,{weight[0]},h,v] c", w=weight)
    assert ("c" in found.nodes) is (reason is None)
    assert found.left_in_float.get("c", "").startswith(reason or "")


@pytest.mark.parametrize(
    ("body", "inputs", "output", "reason"),
    [
        ("c = MatMul(x, w)", "float[n,16] x", "float[n,16] c", None),
        ("c = MatMul(x, w)", "float[1,16] x", "float[1,16] c", "it is a matrix by a vector"),
        ("c = MatMul(x, w)", "float[1,9,16] x", "float[1,9,16] c", None),
        ("c = MatMul(x, narrow)", "float[n,16] x", "float[n,10] c", "its n of 10 are below the 16"),
        ("c = MatMul(x, short)", "float[n,10] x", "float[n,16] c", "its k of 10 are below the 16"),
        ("c = Gemm<transB = 1>(x, narrow)", "float[n,10] x", "float[n,16] c", "its k of 10 are below the 16"),
        ("c = Gemm<transB = 1>(x, short)", "float[n,16] x", "float[n,10] c", "its n of 10 are below the 16"),
        ("c = MatMul(x, z)", "float[n,32,32] x, float[n,32,32] z", "float[n,32,32] c", None),
        ("c = MatMul(x, z)", "float[n,1,32] x, float[n,32,32] z", "float[n,1,32] c", "it is a matrix by"),
        ("c = MatMul(x, z)", "float[n,32,8] x, float[n,8,32] z", "float[n,32,32] c", "its k of 8 are below"),
    ],
)  # fmt: skip
def test_products_of_vectors_and_small_products_stay_in_float(
    body: str, inputs: str, output: str, reason: str | None
) -> None:
    for float8 in (False, True):
        found = placed(body, inputs, output, float8=float8, w=(16, 16), narrow=(16, 10), short=(10, 16))
        assert ("c" in found.nodes) is (reason is None)
        assert found.left_in_float.get("c", "").startswith(reason or "")


def attention(
    keys: str, *, head: int = 32, between: str = "m = Identity(s)", queries: str = "64"
) -> Placement:
    """The plan for attention; `between` makes m of the scores s."""
    body = f"s = MatMul(q, k) {between} p = Softmax(m) r = MatMul(p, v)"
    shapes = f"float[n,4,{queries},{head}] q, float[n,4,{head},{keys}] k, float[n,4,{keys},{head}] v"
    inputs = f"{shapes}, float[n,1,1,{keys}] mask, bool[n,1,1,{keys}] seen"
    return placed(body, inputs, f"float[n,4,{queries},{head}] r", half=(1,))


@pytest.mark.parametrize("keys", ["16", "197", "512"])
def test_attention_of_up_to_512_positions_is_quantized(keys: str) -> None:
    assert {"s", "r"} <= set(attention(keys).nodes)
    assert {"s", "r"} <= set(attention(keys, between="m = Mul(s, half)").nodes)


@pytest.mark.parametrize(
    ("keys", "options", "reason"),
    [
        ("513", {}, "it is attention over 513 positions; TensorRT fuses up to 512 in INT8"),
        ("77", {"queries": "4096"}, "it is attention over 4096 positions; TensorRT fuses up to 512 in INT8"),
        ("length", {}, "it is attention of no fixed length; TensorRT fuses it in INT8 up to 512 positions"),
        ("64", {"head": 80}, "its heads are 80 wide; TensorRT fuses 16, 32, 64 in INT8"),
        ("64", {"between": "m = Add(s, mask)"}, "it is attention with an added mask, which Model-Optimizer"),
        ("64", {"between": "t = Mul(s, half) m = Add(mask, t)"}, "it is attention with an added mask"),
        ("64", {"between": "m = Where(seen, s, half)"}, "it is attention with an added mask"),
    ],
)
def test_other_attention_stays_in_float_in_both_products(
    keys: str, options: dict[str, str], reason: str
) -> None:
    found = attention(keys, **options)  # type: ignore[arg-type]
    assert found.nodes == ("large",)
    assert found.left_in_float.keys() == {"s", "r"}
    assert all(text.startswith(reason) for text in found.left_in_float.values())


def test_what_a_user_names_is_quantized_anyway() -> None:
    model = model_of("c = MatMul(x, w)", "float[n,16] x", "float[n,10] c", w=(16, 10))
    assert plan(model, "tensorrt").nodes == ("large",)
    assert plan(model, "tensorrt", only=["MatMul"]).nodes == ("c", "large")
    assert plan(model, "tensorrt", chosen=["c"]).nodes == ("c", "large")
    assert plan(model, "onnxruntime").nodes == ("c", "large")


def test_a_layer_of_int8_by_name_needs_no_second_calibration(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(model_of("c = MatMul(x, w)", "float[n,16] x", "float[n,10] c", w=(16, 10)), path)
    generator = np.random.default_rng(0)
    feeds = {
        name: generator.standard_normal((8, n)).astype(np.float32) for name, n in (("x", 16), ("beside", 64))
    }
    np.savez(tmp_path / "data.npz", **feeds)
    ranges = qcompile.calibrate(path, str(tmp_path / "data.npz"), tmp_path / "r", targets=["tensorrt"]).path
    options = {"ranges": ranges, "target": "tensorrt"}
    proof = qcompile.quantize(path, tmp_path / "a.onnx", **options).manifest.proof  # type: ignore[arg-type]
    assert proof["left_in_float"] == {"c": "its n of 10 are below the 16 of INT8 kernels"}
    proof = qcompile.quantize(path, tmp_path / "b.onnx", layers=["c=int8"], **options).manifest.proof  # type: ignore[arg-type]
    assert proof["left_in_float"] == {}


def test_a_network_of_small_layers_alone_is_quantized_with_a_warning() -> None:
    model = model_of("c = MatMul(x, w)", "float[n,16] x", "float[n,10] c", w=(16, 10))
    found = plan(model, "tensorrt", exclude=["large"])
    assert found.nodes == ("c",)
    assert found.warnings == (
        "TensorRT has no good kernel for any layer, and all are quantized; node 'c': its n of 10 are below "
        "the 16 of INT8 kernels",
    )
