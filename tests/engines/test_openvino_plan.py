"""What OpenVINO does with a plan: every product's kernel is found, and what runs in float is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from mode_models import normal, run, snr_db, written

import qcompile
from qcompile.artifact import Artifact
from qcompile.engines.registry import engine
from qcompile.errors import IntentNotReached
from qcompile.model.saturating_kernels import probe

pytest.importorskip("openvino")

# A residual adds its scale to the product in front of it: OpenVINO moves it, and gives the kernel a new name.
TRANSFORMER = """(float[n,4,16] x) => (float[n,4,16] y) {
    [q] q0 = MatMul(x, wq) q1 = Add(q0, bq) [k] k0 = MatMul(x, wk) [v] v0 = MatMul(x, wv)
    kt = Transpose<perm = [0,2,1]>(k0) [scores] s = MatMul(q1, kt) sc = Mul(s, scale) p = Softmax(sc)
    [context] c = MatMul(p, v0) [out] o0 = MatMul(c, wo) o1 = Add(o0, bo) r = Add(o1, x)
    ln = LayerNormalization<axis = -1>(r, g, b)
    [up] u0 = MatMul(ln, wu) u1 = Relu(u0) [down] d0 = MatMul(u1, wd) y = Add(d0, r) }"""
PRODUCTS = ("q", "k", "v", "scores", "context", "out", "up", "down")

UPSAMPLE = """(float[n,4,8,8] x) => (float[n,6,16,16] y) {
    [conv] c = Conv<pads = [1,1,1,1]>(x, w) d = Relu(c)
    [up] y = ConvTranspose<group = 2, strides = [2,2]>(d, v) }"""
FLOAT_SHARE = 8 * 3 * 4 / (8 * 3 * 4 + 8 * 4 * 9)  # multiply-adds of `up` at each pixel, of all


def build(model: Path, tmp_path: Path, **options: Any) -> Artifact:
    data = str(tmp_path / "x.npz")
    ranges = qcompile.calibrate(model, data, tmp_path / "r", method="minmax", targets=["openvino"])
    return qcompile.build(
        model, tmp_path / "b.onnx", target="openvino", precision="int8", ranges=ranges.path, **options
    )


@pytest.fixture
def upsample(tmp_path: Path) -> Path:
    """A convolution, and a grouped transposed one, which OpenVINO 2026.4 computes in float on every CPU."""
    np.savez(tmp_path / "x.npz", x=normal(16, 4, 8, 8, scale=1.0))
    return written(tmp_path / "m.onnx", UPSAMPLE, w=normal(8, 4, 3, 3), v=normal(8, 3, 2, 2))


def test_the_kernel_of_every_product_of_a_transformer_is_found(tmp_path: Path) -> None:
    """Two of each layer's went by other names: builds failed with "15 of 17 layers reached int8"."""
    squares = {name: normal(16, 16) for name in ("wq", "wk", "wv", "wo")}
    rest = {"bq": normal(16), "bo": normal(16), "g": normal(16) + 1, "b": normal(16), "scale": normal(1)}
    model = written(tmp_path / "m.onnx", TRANSFORMER, **squares, **rest, wu=normal(16, 32), wd=normal(32, 16))
    np.savez(tmp_path / "x.npz", x=normal(16, 4, 16, scale=1.0))
    artifact = build(model, tmp_path, strict=True)
    proof = artifact.manifest.proof
    # Where kernels add two products in 16 bits, two activations are multiplied in float.
    overflow = bool(probe("openvino").activations)
    int8, fp32 = ({"MatMul": 6}, {"MatMul": 2}) if overflow else ({"MatMul": 8}, {})
    assert proof["layers_by_precision"] == {"int8": int8, "fp32": fp32, "fp16": {}, "bf16": {}}
    assert (proof["missed"], proof["unreported"], proof["left_in_float"]) == ({}, {}, {})


def test_what_runs_in_float_is_asked_once_and_left_out_of_the_plan(upsample: Path, tmp_path: Path) -> None:
    artifact = build(upsample, tmp_path)
    proof = artifact.manifest.proof
    assert (proof["planned_in_precision"], proof["reached_in_precision"]) == (1, 1)
    (left,) = proof["left_in_float"].items()  # type: ignore[attr-defined]
    assert left[0] == "up"
    assert left[1].startswith("OpenVINO computes it in fp32 (")
    unlearnt, warning = artifact.manifest.warnings
    assert unlearnt.startswith("no data was given: biases were not corrected")
    share = f"{FLOAT_SHARE:.1%}"
    assert warning.startswith(f"1 of 2 layers stay in float, {share} of their multiply-adds: up ({share}: ")
    graph = onnx.load(artifact.path).graph
    assert [node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"] == ["x"]
    x = normal(8, 4, 8, 8, scale=1.0)
    with qcompile.load(artifact.path) as runner:
        assert snr_db(run(upsample, x=x), runner.infer({"x": x})["y"]) > 20  # 24.5 dB with AVX2 alone


def test_a_strict_build_and_a_graph_that_is_quantized_are_judged_as_they_are(
    upsample: Path, tmp_path: Path
) -> None:
    said = rf"1 of 2 layers .* {FLOAT_SHARE:.1%} of the planned multiply-adds missed it: up \("
    with pytest.raises(IntentNotReached, match=said):
        build(upsample, tmp_path, strict=True)
    quantized = qcompile.quantize(upsample, tmp_path / "q.onnx", ranges=tmp_path / "r", target="openvino")
    with pytest.raises(IntentNotReached, match=said) as caught:
        qcompile.build(quantized.path, tmp_path / "b.onnx", target="openvino", precision="int8")
    assert "`exclude`" in caught.value.hint
    assert not (tmp_path / "b.onnx").exists()
    kept = qcompile.build(
        quantized.path, tmp_path / "b.onnx", target="openvino", precision="int8", allow_fallback=True
    )
    assert kept.manifest.proof["missed_share"] == pytest.approx(FLOAT_SHARE, abs=1e-6)
    with engine("openvino").open(str(kept.path)) as runner:
        assert runner.infer({"x": normal(1, 4, 8, 8)})["y"].shape == (1, 6, 16, 16)


def test_a_model_of_which_nothing_would_be_integer_fails(tmp_path: Path) -> None:
    body = """(float[n,8,4,4] x) => (float[n,6,8,8] y) {
        [up] y = ConvTranspose<group = 2, strides = [2,2]>(x, v) }"""
    model = written(tmp_path / "m.onnx", body, v=normal(8, 3, 2, 2))
    np.savez(tmp_path / "x.npz", x=normal(16, 8, 4, 4))
    with pytest.raises(IntentNotReached, match=r"0 of 1 layers .* up \(100.0%: OpenVINO computes it in fp32"):
        build(model, tmp_path)


def test_layers_in_one_block_are_found_in_it(tmp_path: Path) -> None:
    """On some processors OpenVINO makes one block of a whole perceptron, and tells its widest type."""
    body = """(float[n,8] x) => (float[n,4] y) {
        [first] a = Gemm<transB = 1>(x, w, b) c = Relu(a) [second] y = Gemm<transB = 1>(c, v, d) }"""
    weights = {"w": normal(16, 8), "b": normal(16), "v": normal(4, 16), "d": normal(4)}
    model = written(tmp_path / "m.onnx", body, **weights)
    np.savez(tmp_path / "x.npz", x=normal(32, 8))
    assert build(model, tmp_path).manifest.proof["reached_in_precision"] == 2
