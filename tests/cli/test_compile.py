"""`qcompile build`, `refit` and `quantize`: options arrive, what cannot be says why, the proof is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commands import Qc, Said
from mode_models import normal, static, written
from simulated_machine import install

import qcompile
from qcompile.engines.gpu import why_no_gpu

MakeFile = Callable[..., Path]
Printed = Callable[..., tuple[int, str]]


def rtx(model: Path, *options: str) -> list[str]:
    return [
        "build", str(model), "--target", "tensorrt-rtx", "--gpu", "sm86",
        "-o", str(model.parent / "m.engine"), *options,
    ]  # fmt: skip


def test_a_dry_run_prints_the_plan_and_writes_nothing(qc: Qc, tiny_file: MakeFile) -> None:
    model = tiny_file("residual")
    options = [
        "--precision", "fp16", "--dry-run", "--workspace", "1G", "--optimization-level", "0",
        "--profile", "x:1x4x8x8..2x4x8x8..4x4x8x8", "--profile", "x:8x4x8x8..8x4x8x8..8x4x8x8",
    ]  # fmt: skip
    code, out, _ = qc(*rtx(model, *options, "--json"))
    plan = json.loads(out)
    assert code == 0
    assert plan["layers_by_precision"] == {"fp16": {"CONVOLUTION": 2, "MATRIX_MULTIPLY": 1}}
    assert len(plan["profiles"]) == 2
    assert plan["options"]["optimization_level"] == 0  # not taken for "not given"
    code, out, _ = qc(*rtx(model, *options))
    assert code == 0
    assert "would be built for tensorrt-rtx, fp16; nothing was written" in out
    assert not (model.parent / "m.engine").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dla-core", "0"], "--dla-core: tensorrt_rtx"),
        (["--hardware-compatible", "ampere+"], "has no such levels"),
        (["--workspace", "lots"], "--workspace 'lots': a size such as 512M or 4G is required"),
        (["--plugin", "nowhere.so"], "plugin nowhere.so does not exist"),
        (["--io-format", "z=:chw4"], "no input or output 'z'; there are x, y"),
        (["--profile", "x:1x4x8x8..2x4x8x8"], "is not NAME:MIN..OPT..MAX"),
        (["--profile", "y:1x3..1x3..1x3"], "gives no shapes for x"),
        (["--timing-cache", "t.cache"], "has no use for one"),
        (["--layer", "Conv=fp16"], "--layer: no precision is higher than fp32"),
        (["--layer", "Conv"], "PATTERN=PRECISION is required"),
        (["--precision", "int8", "--calibrator", "native", "--data", "x.npz"], "has no INT8 calibrators"),
        (["--precision", "int8"], "holds no quantized layer"),
        (["--exclude-lean-runtime"], "belongs to --version-compatible"),
    ],
)
def test_what_cannot_be_is_a_usage_error(options: list[str], said: str, qc: Qc, tiny_file: MakeFile) -> None:
    code, _, err = qc(*rtx(tiny_file("residual"), *options))
    assert code == 2
    assert said in err


def test_options_of_tensorrt_mean_nothing_to_a_cpu(qc: Qc, tiny_file: MakeFile, tmp_path: Path) -> None:
    model = tiny_file("residual")
    command = ["build", model, "--target", "onnxruntime", "-o", tmp_path / "cpu.onnx"]
    code, _, err = qc(*command, "--sparse-weights")
    assert code == 2
    assert "--sparse-weights: is for tensorrt and tensorrt-rtx; the target is onnxruntime" in err
    for precision in ("tf32", "fp8", "best"):
        code, _, err = qc(*command, "--precision", precision)
        assert code == 2
        assert f"--precision {precision}" in err
    code, _, err = qc(*command, "--dry-run")
    assert code == 2
    assert "cannot tell before it builds" in err


def test_a_build_says_what_was_proven(qc: Qc, tiny_file: MakeFile) -> None:
    model = tiny_file("residual")
    code, out, _ = qc(*rtx(model, "--precision", "best"))
    assert code == 0
    assert "proof: 3 of 3 layers that compute are fp16" in out
    assert "it has not been run" in out
    for shown in (out, qc("inspect", str(model.with_name("m.engine")))[1]):
        assert "in  x:[batch,4,8,8]:float32" in shown
        assert "profile x:1x4x8x8..8x4x8x8..16x4x8x8" in shown  # no shapes were given


@pytest.mark.skipif(not why_no_gpu(), reason="a GPU is here")
def test_refit_needs_the_gpu_and_says_so(qc: Qc, tiny_file: MakeFile, tmp_path: Path) -> None:
    model = tiny_file("residual")
    built = qcompile.build(model, tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"])
    code, _, err = qc("refit", built.path, model, "-o", tmp_path / "new.engine")
    assert code == 1
    assert "cannot be refitted here: no NVIDIA driver" in err
    code, _, err = qc("refit", tmp_path / "nothing.engine", model, "-o", tmp_path / "new.engine")
    assert code == 2
    assert "nothing.engine does not exist" in err


def test_an_engine_without_a_manifest_runs_only_when_trusted(
    qc: Qc, tiny_file: MakeFile, tmp_path: Path
) -> None:
    model, foreign = tiny_file("mlp"), tmp_path / "foreign.engine"
    foreign.write_bytes(b"ftrt" + bytes(64))
    code, _, err = qc("diff", model, foreign)
    assert code == 1
    assert "has no manifest" in err
    assert "--trust" in err
    code, _, err = qc("diff", model, foreign, "--trust")
    assert code == 1
    assert "has no manifest" not in err
    assert "cannot run here" in err


BODY = """(float[n,4,8,8] x) => (float[n,2,8,8] y) {
    [small] a = Conv(x, u) b = Relu(a) [large] y = Conv<pads = [1,1,1,1]>(b, v) }"""


@pytest.fixture
def build(tmp_path: Path, printed: Printed) -> Printed:
    """`build("--strict")` builds a graph for OpenVINO: exit code, and what was said on both streams."""
    model = written(tmp_path / "m.onnx", BODY, u=normal(4, 4, 1, 1), v=normal(2, 4, 3, 3))
    np.savez(tmp_path / "x.npz", x=normal(16, 4, 8, 8))
    static(model, tmp_path, target="openvino")
    words = ["build", tmp_path / "q.onnx", "--precision", "int8", "--target", "openvino"]
    return lambda *options: printed(*words, "-o", tmp_path / "b.onnx", *options)


@pytest.fixture
def missed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`missed("small")` lets OpenVINO say that it computes these nodes in float32."""
    from qcompile.engines.openvino import engine

    honest = engine.computed_by

    def change(*names: str) -> None:
        told = {name: engine.Computed("fp32", "for a test") for name in names}
        monkeypatch.setattr(engine, "computed_by", lambda *given: {**honest(*given), **told})

    return change


LARGE, SMALL = 4 * 2 * 9, 4 * 4


def test_a_large_layer_that_missed_fails_unless_a_fallback_is_allowed(
    build: Printed, missed: Callable[..., None]
) -> None:
    pytest.importorskip("openvino")
    missed("large")
    code, said = build()
    assert code == 1
    assert f"{LARGE / (LARGE + SMALL):.1%} of the planned multiply-adds missed it: large" in said
    code, said = build("--allow-fallback", "-v")
    assert code == 0
    assert "proof: 1 of 2 layers that compute are int8" in said
    assert f"missed: large: {LARGE / (LARGE + SMALL):.1%}: for a test" in said
    assert "warning: int8 was asked for; 1 of 2 layers" in said


def test_one_layer_is_fatal_with_strict_alone(
    build: Printed, missed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr("qcompile.engines.build.ALLOWED_SHARE", 0.5)
    missed("small")
    assert build()[0] == 0
    code, said = build("--strict")
    assert (code, "missed it: small (" in said) == (1, True)


BLOCKS = {"conv1", "conv2", "gemm"}


def for_tensorrt(model: Path, *options: str) -> list[str | Path]:
    output = model.parent / "m.engine"
    return ["build", model, "--target", "tensorrt", "--precision", "fp16", "-o", output, *options]


def test_unreported_layers_are_counted_with_what_else_shows_their_precision(
    printed: Printed, tiny_file: MakeFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_file("residual")
    install(monkeypatch, tmp_path, "10.16", blocks=BLOCKS)
    code, said = printed(*for_tensorrt(model, "-v"))
    assert code == 0
    assert "proof: 0 of 3 layers that compute are fp16, 3 unreported (no other type is permitted" in said
    assert "unreported: conv1: 50.0%: inside a fused block" in " ".join(said.split())
    code, said = printed("inspect", model.parent / "m.engine")
    assert "evidence: no other type is permitted" in said
    assert "unreported layers" in said


def test_a_rejected_engine_is_named_and_can_be_inspected(
    printed: Printed, tiny_file: MakeFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_file("residual")
    install(monkeypatch, tmp_path, "8.5.3", blocks=BLOCKS)
    code, said = printed(*for_tensorrt(model, "--strict"))
    assert code == 1
    said = " ".join(said.split())
    assert "fp16 was asked for and cannot be proven: 3 of 3 layers are unreported" in said
    assert "what was built is kept as m.rejected.engine" in said
    code, said = printed("inspect", model.parent / "m.rejected.engine")
    assert code == 0
    assert "cannot be proven" in said


MakePath = Callable[..., Path]


@pytest.fixture
def run(qc: Qc, tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> Qc:
    """`run("--isa", "neon")` quantizes the tiny residual model to `q.onnx`."""
    model = tiny_file("residual")
    targets = ["onnxruntime", "openvino", "tensorrt"]
    qcompile.calibrate(model, str(samples("residual")), tmp_path / "m.ranges", targets=targets)
    return lambda *options: qc("quantize", model, "-o", tmp_path / "q.onnx", *options)


@pytest.fixture
def ranges(tmp_path: Path) -> tuple[str, Path]:
    return "--ranges", tmp_path / "m.ranges"


INT4 = "--mode weights --precision int4"


def succeeded(said: Said) -> dict[str, Any]:
    assert said.code == 0, said.err
    return said.json


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--layer gemm", "--layer 'gemm': PATTERN=PRECISION is required"),
        ("--layer =fp32", "--layer '=fp32': PATTERN=PRECISION is required"),
        ("--layer gemm:fp32", "--layer 'gemm:fp32': PATTERN=PRECISION is required"),
        ("--layer gemm=fp8", "fp32, fp16, bf16 or int8"),
        ("--layer gemm=", "--layer 'gemm=': PATTERN=PRECISION is required"),
        ("--float-precision fp16", "--float-precision fp16 for onnxruntime"),
        ("--mode dynamic --float-precision fp16", "mixes precisions in --mode static"),
        ("--float-precision int8", "'--float-precision'"),
        ("--only con1", "--only 'con1': no node of that name, glob or operator type"),
        (f"{INT4} --quant-format nbits --target tensorrt", "'nbits' needs ONNX Runtime's own operators"),
        ("--precision int4", "--mode weights"),
    ],
)
def test_what_quantize_cannot_do_is_a_usage_error(
    options: str, said: str, run: Qc, ranges: tuple[str, Path], tmp_path: Path
) -> None:
    needed = () if "--mode" in options or "int4" in options else ranges
    code, _, error = run(*needed, *options.split())
    assert (code, said in error) == (2, True), error
    assert not (tmp_path / "q.onnx").exists()


def test_layers_and_the_rest_make_a_mixed_graph(run: Qc, ranges: tuple[str, Path]) -> None:
    options = "--target tensorrt --float-precision fp16 --layer conv1=fp32,pool=fp16 --layer gemm=fp16 --json"
    made = succeeded(run(*ranges, *options.split()))
    assert made["options"]["layers"] == ["conv1=fp32", "pool=fp16", "gemm=fp16"]
    assert made["options"]["float_precision"] == "fp16"
    counts = {"int8": {"Conv": 1}, "fp16": {"Gemm": 1}, "bf16": {}, "fp32": {"Conv": 1}}
    assert made["proof"]["nodes_by_precision"] == counts


def test_only_takes_names_and_globs_separated_by_commas(run: Qc, ranges: tuple[str, Path]) -> None:
    made = succeeded(run(*ranges, "--only", "conv*,gemm", "--exclude", "conv2", "--json"))
    assert made["options"]["only"] == ["conv*", "gemm"]
    assert made["proof"]["nodes_by_precision"]["int8"] == {"Conv": 1, "Gemm": 1}
    assert made["proof"]["left_in_float"] == {"conv2": "excluded by 'conv2'"}


@pytest.mark.parametrize(
    ("quant_format", "operator"), [("nbits", "MatMulNBits"), ("qdq", "DequantizeLinear")]
)
def test_the_form_of_weights_is_chosen(quant_format: str, operator: str, run: Qc, tmp_path: Path) -> None:
    options = f"{INT4} --block-size 16 --quant-format {quant_format} --json"
    made = succeeded(run(*options.split()))
    assert made["proof"]["quant_format"] == quant_format
    assert made["options"]["block_size"] == 16
    assert operator in {node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node}


def test_biases_are_left_alone_when_told_so(run: Qc, ranges: tuple[str, Path], tmp_path: Path) -> None:
    data = ("--data", tmp_path / "residual-32-0.npz")
    assert succeeded(run(*ranges, *data, "--json"))["proof"]["corrected_biases"] == 3
    made = succeeded(run(*ranges, *data, "--no-correct-bias", "--json"))
    assert (made["proof"]["corrected_biases"], made["options"]["correct_bias"]) == (0, False)


@pytest.mark.usefixtures("run")
def test_a_build_is_told_the_rest(qc: Qc, ranges: tuple[str, Path], tmp_path: Path) -> None:
    target = ("--target", "tensorrt-rtx", "--precision", "int8", "--gpu", "sm86", "--float-precision", "fp16")
    said = qc("build", tmp_path / "residual.onnx", "-o", tmp_path / "m.engine", *target, *ranges, "--json")
    assert succeeded(said)["options"]["float_precision"] == "fp16"


@pytest.mark.parametrize("seed", ["1", "2"])
def test_what_is_told_is_in_the_order_of_the_graph_whatever_the_hashes(
    seed: str, tiny_file: MakePath, tmp_path: Path
) -> None:
    words = ["quantize", str(tiny_file("residual")), "-o", str(tmp_path / "q.onnx")]
    words += ["--mode", "weights", "--precision", "int4", "--target", "tensorrt"]
    environment, program = {**os.environ, "PYTHONHASHSEED": seed}, [sys.executable, "-m", "qcompile"]
    done = subprocess.run([*program, *words], env=environment, capture_output=True, text=True, check=True)
    assert "int4: 2 Conv, 1 Gemm" in done.stdout
