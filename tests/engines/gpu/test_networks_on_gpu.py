"""What TensorRT's versions do differently: normalizations and 64-bit integers.

Needs numpy, onnx, cuda-bindings or PyCUDA, and TensorRT. The oracle is ONNX's own reference implementation.
Not yet run on a GPU, only on stand-ins (tests/engines/tensorrt/on_stand_ins).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import qcompile
from qcompile.errors import InvalidOption
from qcompile.spec.tensorrt import TensorRTOptions

pytestmark = pytest.mark.gpu

Build = Callable[..., Path]

HEADER = '<ir_version: 8, opset_import: ["" : {opset}]>\n'
LAYER_NORM = """normed (float[batch,8,16] x) => (float[batch,8,16] y) {
    normal = LayerNormalization <axis = -1, epsilon = 1.0e-5> (x, scale, bias)
    product = MatMul (normal, w)
    y = Add (product, x)
}"""
LAYER_NORM_16 = """normed (float[batch,8,16] x) => (float[batch,8,16] y) {
    mean = ReduceMean <axes = [-1]> (x)
    centred = Sub (x, mean)
    square = Mul (centred, centred)
    variance = ReduceMean <axes = [-1]> (square)
    moved = Add (variance, epsilon)
    root = Sqrt (moved)
    plain = Div (centred, root)
    scaled = Mul (plain, scale)
    normal = Add (scaled, bias)
    product = MatMul (normal, w)
    y = Add (product, x)
}"""
GROUP_NORM = """normed (float[batch,4,8,8] x) => (float[batch,4,8,8] y) {
    flat = Reshape (x, groups)
    normal = InstanceNormalization <epsilon = 1.0e-5> (flat, ones, zeros)
    back = Reshape (normal, whole)
    scaled = Mul (back, channel_scale)
    shifted = Add (scaled, channel_bias)
    y = Relu (shifted)
}"""
EMBEDDING = """embedded (int64[batch,6] tokens) => (float[batch,6,8] y) {
    x = Gather (table, tokens)
    product = MatMul (x, first)
    active = Relu (product)
    y = MatMul (active, second)
}"""


def weights() -> dict[str, Any]:
    """What the networks hold, by name."""
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return (generator.standard_normal(shape) * 0.3).astype(np.float32)

    return {
        "scale": 1 + normal(16), "bias": normal(16), "w": normal(16, 16), "epsilon": np.float32(1e-5),
        "groups": np.array([0, 2, -1]), "whole": np.array([-1, 4, 8, 8]), "ones": np.ones(2, np.float32),
        "zeros": np.zeros(2, np.float32), "channel_scale": normal(4, 1, 1), "channel_bias": normal(4, 1, 1),
        "table": normal(100, 8), "first": normal(8, 16), "second": normal(16, 8),
    }  # fmt: skip


def read(text: str, opset: int = 16) -> onnx.ModelProto:
    """A checked model, with those of `weights` that it uses; every node has a name."""
    model = parser.parse_model(HEADER.format(opset=opset) + text)
    used = {name for node in model.graph.node for name in node.input}
    held = [numpy_helper.from_array(np.asarray(v), n) for n, v in weights().items() if n in used]
    model.graph.initializer.extend(held)
    for node in model.graph.node:
        node.name = f"{node.op_type}_{node.output[0]}"
    onnx.checker.check_model(model)
    return model


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """`build(model, profile="...")` returns an engine; on TensorRT 8 without cuBLAS and cuDNN."""
    import tensorrt

    base = {"tactic_sources": ("none",)} if tensorrt.__version__.startswith("8.") else {}

    def make(model: onnx.ModelProto, precision: str = "fp32", *, profile: str, **more: Any) -> Path:
        source = tmp_path / f"{model.graph.name}.onnx"
        onnx.save(model, source)
        options = TensorRTOptions(timing_cache="off", profiles=(profile,), **base)
        return qcompile.build(
            source, tmp_path / f"{model.graph.name}.{precision}.engine", target="tensorrt",
            precision=precision, tensorrt=options, **more,
        ).path  # fmt: skip

    return make


def expected(model: onnx.ModelProto, feeds: dict[str, Any]) -> Any:
    """What ONNX's reference implementation computes."""
    return ReferenceEvaluator(model).run(None, feeds)[0]


def normal(*shape: int) -> Any:
    """Normal values."""
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


SEQUENCES, IMAGES = "x:1x8x16..2x8x16..4x8x16", "x:1x4x8x8..2x4x8x8..4x4x8x8"


@pytest.mark.parametrize(
    ("text", "opset", "profile", "shapes"),
    [
        pytest.param(LAYER_NORM_16, 16, SEQUENCES, [(n, 8, 16) for n in (1, 3, 4)], id="spelled out"),
        pytest.param(LAYER_NORM, 17, SEQUENCES, [(4, 8, 16)], id="layer"),
        pytest.param(GROUP_NORM, 16, IMAGES, [(3, 4, 8, 8)], id="group"),
    ],
)
def test_a_normalization_is_computed_right(
    text: str, opset: int, profile: str, shapes: list[tuple[int, ...]], build: Build
) -> None:
    import tensorrt

    if opset == 17 and tensorrt.__version__.startswith("8.5"):
        pytest.importorskip("onnxruntime")  # its parser has no importer: the graph is converted, and compared
    model = read(text, opset)
    with qcompile.load(build(model, profile=profile)) as runner:
        for shape in shapes:
            feeds = {"x": normal(*shape)}
            np.testing.assert_allclose(runner.infer(feeds)["y"], expected(model, feeds), atol=1e-4)


def test_tensorrts_calibrator_takes_int64_samples(build: Build, tmp_path: Path) -> None:
    from qcompile.engines.tensorrt.adapter import load_adapter

    tokens = np.random.default_rng(0).integers(0, 100, (16, 6))
    np.savez(tmp_path / "samples.npz", tokens=tokens)
    more: dict[str, Any] = {
        "calibrator": "native", "allow_fallback": True, "data": str(tmp_path / "samples.npz"),
        "calibration_cache": tmp_path / "found.cache",
    }  # fmt: skip
    model, profile = read(EMBEDDING), "tokens:1x6..2x6..4x6"
    if not load_adapter("tensorrt").has_calibrators():
        with pytest.raises(InvalidOption, match="has no INT8 calibrators"):
            build(model, "int8", profile=profile, **more)
        return
    engine = build(model, "int8", profile=profile, **more)
    with qcompile.load(engine) as runner:
        found = runner.infer({"tokens": tokens[:4]})["y"]
    right = expected(model, {"tokens": tokens[:4]})
    assert np.abs(found - right).max() < 0.1 * np.abs(right).max()
    assert len((tmp_path / "found.cache").read_text().splitlines()) > 1
