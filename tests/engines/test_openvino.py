"""OpenVINO for real: it computes what ONNX Runtime computes, and every product's kernel is found.

What runs in float is left out of the plan.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from int8_graphs import int8_graph
from mode_models import Floats, normal, run, snr_db, written
from written_models import model_of

import qcompile
from qcompile.core.artifact import Artifact
from qcompile.engines.openvino.engine import OpenVinoRunner
from qcompile.engines.openvino.kernels import Kernel
from qcompile.engines.registry import engine, engine_of
from qcompile.errors import ArtifactError, BuildError, DataError, IntentNotReached
from qcompile.model.graph.saturating_kernels import probe
from qcompile.model.outputs.judgement import output_error

pytest.importorskip("openvino")

MakePath = Callable[..., Path]
OnProcessor = Callable[..., None]


@pytest.fixture
def int8(tiny_file: MakePath, samples: MakePath) -> Path:
    """The tiny residual network in INT8 for OpenVINO."""
    return int8_graph(tiny_file("residual"), samples("residual"), "openvino")


def feeds(batch: int, *shape: int) -> dict[str, Floats]:
    """Feeds of the residual network, unless a shape is given."""
    return {"x": normal(batch, *(shape or (4, 8, 8)), scale=1.0)}


def test_it_computes_what_onnx_runtime_computes_at_every_batch(tiny_file: MakePath, tmp_path: Path) -> None:
    model = tiny_file("residual")
    built = qcompile.build(model, tmp_path / "b.onnx", target="openvino")
    with qcompile.load(model) as reference, qcompile.load(built.path) as runner:
        assert type(runner).__name__ == "OpenVinoRunner"
        assert runner.io == reference.io
        for batch in (2, 1, 2, 5, 3, 2):  # the first shapes have a compilation of their own
            found, expected = (each.infer(feeds(batch))["y"] for each in (runner, reference))
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


CTRL_C = """
import os, signal, sys
import numpy as np
import qcompile
runners = [qcompile.load(sys.argv[1]) for _ in range(2)]
for runner in runners:
    runner.infer({"x": np.zeros((1, 4, 8, 8), np.float32)})
while runners:
    runners.pop(0).close()
del runner
signal.signal(signal.SIGINT, lambda *_: print("handled"))
os.kill(os.getpid(), signal.SIGINT)
"""


def test_ctrl_c_is_handled_after_two_runners_that_went_in_the_order_they_came(
    tiny_file: MakePath, tmp_path: Path
) -> None:
    built = qcompile.build(tiny_file("residual"), tmp_path / "b.onnx", target="openvino")
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C, built.path], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


def test_results_are_the_callers_own_and_feeds_that_do_not_fit_are_refused(
    tiny_file: MakePath, tmp_path: Path
) -> None:
    built = qcompile.build(tiny_file("mlp"), tmp_path / "b.onnx", target="openvino")
    with qcompile.load(built.path) as runner:
        first = runner.infer(feeds(1, 16))["y"]
        before = first.copy()
        runner.infer({"x": feeds(1, 16)["x"] * 3})
        np.testing.assert_array_equal(first, before)
        assert runner.time(feeds(4, 16), 5).shape == (5,)
        with pytest.raises(DataError, match="input 'x' is float64"):
            runner.infer({"x": np.ones((2, 16), np.float64)})


def test_feeds_in_another_order_stay_what_they_are_while_it_runs(tmp_path: Path) -> None:
    """Its copy in C order was freed before the inference: 8 dB of a voice encoder with transposed data."""
    model = model_of("(float[N, 64, 512] x) => (float[N, 64, 512] y) { y = Tanh(x) }")
    onnx.save(model, tmp_path / "m.onnx")
    qcompile.build(tmp_path / "m.onnx", tmp_path / "b.onnx", target="openvino")
    x = np.asfortranarray(normal(4, 64, 512))
    with qcompile.load(tmp_path / "b.onnx") as runner:
        prepared = runner.prepare({"x": x})
        others = [np.full(x.shape, 7, np.float32) for _ in range(8)]  # where it was freed
        np.testing.assert_allclose(next(iter(prepared().values())), np.tanh(x), atol=1e-5)
        for _ in range(4):
            found = runner.infer({"x": x})["y"]
            others.append(np.full(x.shape, 7, np.float32))
            np.testing.assert_allclose(found, np.tanh(x), atol=1e-5)


def test_an_input_that_a_dropout_reads_keeps_its_name(tmp_path: Path) -> None:
    """OpenVINO took no input of this name, and the input was called made up."""
    onnx.save(model_of("(float[n,4] x) => (float[n,4] y) { d = Dropout(x) y = Abs(d) }"), tmp_path / "m.onnx")
    built = qcompile.build(tmp_path / "m.onnx", tmp_path / "b.onnx", target="openvino")
    with qcompile.load(built.path) as runner:
        np.testing.assert_array_equal(runner.infer({"x": -np.ones((2, 4), np.float32)})["y"], 1)


def test_int8_is_executed_as_int8_and_counted_and_every_kernel_has_a_time(int8: Path, tmp_path: Path) -> None:
    built = qcompile.build(int8, tmp_path / "b.onnx", target="openvino", precision="int8")
    layers = built.manifest.proof["layers_by_precision"]
    assert isinstance(layers, dict)
    assert sum(layers["int8"].values()) == 3
    assert not layers["fp32"]
    assert engine_of(str(built.path)) == engine_of(str(int8)) == "openvino"
    with qcompile.load(built.path) as runner, engine("onnxruntime").open(str(int8)) as reference:
        found, expected = (each.infer(feeds(4))["y"] for each in (runner, reference))
    assert output_error(expected, found).snr_db > 35
    times = engine("openvino").kernel_times(str(built.path), feeds(4))
    assert {"conv1", "conv2"} <= {name.split("/")[0] for name in times}
    assert all(time_ms >= 0 for time_ms in times.values())


def test_float32_needs_no_report_of_the_loop_that_lengths_make_of_an_lstm(tmp_path: Path) -> None:
    """FP32 of a trained encoder of texts was refused: its body is not told, and all floats are float32."""
    text = """(float[5,1,8] x, int32[1] n) => (float[5,1,1,4] y) <float[1,16,8] w, float[1,16,4] r> {
        y = LSTM <hidden_size = 4> (x, w, r, , n) }"""
    onnx.save(model_of(text), tmp_path / "m.onnx")
    built = qcompile.build(tmp_path / "m.onnx", tmp_path / "b.onnx", target="openvino")
    proof = built.manifest.proof
    assert "INFERENCE_PRECISION_HINT" in proof["evidence"]
    assert len(proof["unreported"]) == 1


def test_layers_that_nobody_planned_do_not_count_as_reached(
    tiny_file: MakePath, int8: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build said that 3 of 2 layers are int8: OpenVINO may compute more in 8 bits than the graph asks."""
    honest = OpenVinoRunner.kernels
    options: dict[str, Any] = {"target": "openvino", "ranges": int8.with_name("openvino.ranges")}

    def in_8_bits(runner: OpenVinoRunner) -> list[Kernel]:
        return [replace(kernel, precision="int8") for kernel in honest(runner)]

    monkeypatch.setattr(OpenVinoRunner, "kernels", in_8_bits)
    options |= {"precision": "int8", "exclude": ["conv2"], "allow_fallback": True}
    built = qcompile.build(tiny_file("residual"), tmp_path / "b.onnx", **options)
    proof = built.manifest.proof
    assert (proof["reached_in_precision"], proof["planned_in_precision"]) == (2, 2)
    assert proof["layers_by_precision"]["int8"] == {"Conv": 2, "Gemm": 1}  # type: ignore[index]


def test_activations_are_uint8_with_a_zero_point_where_values_are_negative(int8: Path) -> None:
    """Symmetric int8 loses half of the range; products of stored weights are as fast with a zero point."""
    graph = onnx.load(int8).graph
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    pairs = [node for node in graph.node if node.op_type == "QuantizeLinear"]
    points = {node.input[0]: stored[node.input[2]] for node in pairs}
    assert points
    assert points["x"].dtype == points["r1"].dtype == np.uint8
    assert points["x"] > 0
    assert points["r1"] == 0
    assert not any(node.op_type == "DequantizeLinear" and stored[node.input[0]].dtype == np.int32
                   for node in graph.node if node.input[0] in stored)  # fmt: skip


@pytest.mark.parametrize(
    ("wishes", "half", "option"),
    [
        ({"precision": "bf16"}, "bf16", "precision"),
        ({"precision": "fp16"}, "fp16", "precision"),
        ({"precision": "int8", "float_precision": "bf16"}, "bf16", "float_precision"),
    ],
)
def test_a_precision_that_would_be_emulated_is_refused_before_the_build(
    wishes: dict[str, str], half: str, option: str, int8: Path, tiny_file: MakePath, tmp_path: Path,
    on_processor: OnProcessor,
) -> None:  # fmt: skip
    """Without BF16 OpenVINO 2026.4 emulates it, reports bf16, and is 3.5 times slower than float32."""
    on_processor("avx512_vnni")
    model = int8 if "float_precision" in wishes else tiny_file("residual")
    with pytest.raises(IntentNotReached, match=f"Some CPU does not multiply in {half}") as caught:
        qcompile.build(model, tmp_path / "b.onnx", target="openvino", **wishes)
    assert f"`{option}` fp32" in caught.value.hint
    assert not (tmp_path / "b.onnx").exists()


def test_bfloat16_is_proven_by_what_openvino_executes_where_the_processor_has_it(
    tiny_file: MakePath, tmp_path: Path, on_processor: OnProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_processor("avx512_bf16")
    told = {"fp32": "bf16", "bf16": "bf16"}
    honest = OpenVinoRunner.kernels

    def in_bfloat16(runner: OpenVinoRunner) -> list[Kernel]:
        return [replace(kernel, precision=told.get(kernel.precision, "")) for kernel in honest(runner)]

    model = tiny_file("residual")
    monkeypatch.setattr(OpenVinoRunner, "kernels", in_bfloat16)  # as if this processor had it
    built = qcompile.build(model, tmp_path / "b.onnx", target="openvino", precision="bf16")
    assert built.manifest.proof["layers_by_precision"]["bf16"] == {"Conv": 2, "Gemm": 1}  # type: ignore[index]
    on_processor("avx512_vnni")
    with pytest.raises(ArtifactError, match="computes in bf16: Some CPU does not multiply in bf16"):
        qcompile.load(built.path)
    on_processor("avx512_bf16")
    told["fp32"] = told["bf16"] = "fp32"  # it says that it computes in float32 all the same
    with pytest.raises(IntentNotReached, match=r"bf16 was requested; 0 of 3 .* \(3 in fp32\)"):
        qcompile.build(model, tmp_path / "c.onnx", target="openvino", precision="bf16")


WEIGHTS = {"w": (4, 4, 1, 1), "v": (4, 4, 1, 1), "u": (5, 8, 1, 1), "z": (5, 4, 1, 1)}
BRANCHES = {
    "uint8 and int8 meet": "a=Conv(x,w) r=Relu(a) b=Conv(x,v) c=Concat<axis=1>(r,b) y=Conv(c,u)",
    "int8 meets int8": "a=Conv(x,w) b=Conv(x,v) c=Concat<axis=1>(a,b) y=Conv(c,u)",
    "moved before": "a=Conv(x,w) r=MaxPool<kernel_shape=[1,1]>(a) c=Concat<axis=1>(r,a) y=Conv(c,u)",
    "a clip below zero": "a=Conv(x,w) c=Clip(a,low,high) y=Conv(c,z)",
    "an add": "a=Conv(x,w) r=Relu(a) b=Conv(x,v) c=Add(r,b) y=Conv(c,z)",
}


@pytest.mark.parametrize("body", BRANCHES.values(), ids=BRANCHES)
def test_what_is_joined_or_clipped_loses_no_more_there_than_elsewhere(body: str, tmp_path: Path) -> None:
    """Symmetric int8 through a Concat lost 10 dB in OpenVINO; a Clip that the quantizer took out, all."""
    stored = {
        name: normal(*shape, seed=index, scale=1.0) for index, (name, shape) in enumerate(WEIGHTS.items())
    }
    stored |= {"low": np.array(-1, np.float32), "high": np.array(2, np.float32)}
    used = {name: array for name, array in stored.items() if re.search(rf"\b{name}\b", body)}
    path = written(tmp_path / "m.onnx", f"(float[n,4,8,8] x) => (float[n,5,8,8] y) {{ {body} }}", **used)
    x = normal(64, 4, 8, 8, scale=3.0)
    np.savez(tmp_path / "x.npz", x=x)
    built = build(path, tmp_path)
    with qcompile.load(path) as reference, qcompile.load(built.path) as runner:
        expected, found = (each.infer({"x": x[:8]})["y"] for each in (reference, runner))
    assert output_error(expected, found).snr_db > 32


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_what_computes_a_recurrent_layer_is_told(direction: str, tmp_path: Path) -> None:
    """OpenVINO makes two kernels of a bidirectional LSTM, and names them after nothing in the file."""
    count = 2 if direction == "bidirectional" else 1
    body = f"""(float[length,batch,4] x) => (float[length,{count},batch,8] y) {{
        [lstm] y = LSTM <hidden_size = 8, direction = "{direction}"> (x, w, r) }}"""
    written(tmp_path / "m.onnx", body, w=normal(count, 32, 4, scale=0.3), r=normal(count, 32, 8, scale=0.3))
    built = qcompile.build(tmp_path / "m.onnx", tmp_path / "b.onnx", target="openvino", precision="fp32")
    assert built.manifest.proof["layers_by_precision"]["fp32"] == {"LSTM": 1}


def test_an_input_without_axes_is_given(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", "(float x) => (float[2] y) { y = Mul(x, s) }", s=np.float32([2, 3]))
    built = qcompile.build(path, tmp_path / "o.onnx", target="openvino")
    with qcompile.load(built.path) as runner:
        np.testing.assert_array_equal(runner.infer({"x": np.float32(1.5).reshape(())})["y"], [3, 4.5])


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E4M3FN", "INT4", "UINT4"])
def test_an_input_that_the_binding_takes_no_array_of_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    body = f"g ({kind.lower()}[2,4] x) => (float[2,4] y) {{ y = Cast<to = 1>(x) }}"
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {body}'), path)
    with pytest.raises(BuildError, match=r"input 'x' is .*, for which OpenVINO takes no array"):
        qcompile.build(path, tmp_path / "o.onnx", target="openvino")
    assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"]


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


def test_layers_that_are_refused_with_dynamic_shapes_alone_stay_in_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO 2026.4.1 refuses the attention of BioGPT so: 'constant_fold failed', at no fixed extent."""
    body = """(float[n,8] x) => (float[n,4] y) {
        [first] a = Gemm<transB = 1>(x, w, b) c = Relu(a) [second] y = Gemm<transB = 1>(c, v, d) }"""
    weights = {"w": normal(16, 8), "b": normal(16), "v": normal(4, 16), "d": normal(4)}
    model = written(tmp_path / "m.onnx", body, **weights)
    np.savez(tmp_path / "x.npz", x=normal(32, 8))
    compiled = OpenVinoRunner._compile

    def refusing(self: OpenVinoRunner, given: Any) -> Any:
        graph = self._graph.graph
        made_by = {node.output[0]: node.op_type for node in graph.node}
        (second,) = (node for node in graph.node if node.name == "second")
        if given.is_dynamic() and made_by.get(second.input[0]) == "DequantizeLinear":
            raise BuildError("m.onnx: OpenVINO cannot compile it: constant_fold failed")
        return compiled(self, given)

    monkeypatch.setattr(OpenVinoRunner, "_compile", refusing)
    found: Any = build(model, tmp_path).manifest.proof["computing_layers"]
    assert (found["in_precision"], list(found["in_float"])) == (1, ["second"])
    assert "constant_fold failed" in found["in_float"]["second"]["reason"]
