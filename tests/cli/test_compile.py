"""`qcompile build`, `refit` and `quantize`: options arrive, what cannot be says why, the proof is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import MakePath, Qc
from simulated_machine import install

import qcompile
from qcompile.engines.gpu import why_no_gpu

Printed = Callable[..., tuple[int, str]]


def rtx(model: Path, *options: str) -> list[str]:
    return [
        "build", str(model), "--target", "tensorrt-rtx", "--gpu", "sm86",
        "-o", str(model.parent / "m.engine"), *options,
    ]  # fmt: skip


def test_a_dry_run_prints_the_plan_and_writes_nothing(qc: Qc, model: Path) -> None:
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
        (["--plugin", "nowhere.so"], "plugin nowhere.so does not exist"),
        (["--profile", "x:1x4x8x8..2x4x8x8"], "is not NAME:MIN..OPT..MAX"),
        (["--profile", "y:1x3..1x3..1x3"], "gives no shapes for x"),
        (["--timing-cache", "t.cache"], "has no use for one"),
        (["--layer", "Conv=fp16"], "--layer: no precision is higher than fp32"),
        (["--layer", "Conv"], "PATTERN=PRECISION is required"),
        (["--precision", "int8", "--calibrator", "native", "--data", "x.npz"], "has no INT8 calibrators"),
        (["--exclude-lean-runtime"], "belongs to --version-compatible"),
    ],
)
def test_what_cannot_be_is_a_usage_error(options: list[str], said: str, qc: Qc, model: Path) -> None:
    code, _, err = qc(*rtx(model, *options))
    assert code == 2
    assert said in err


def test_options_of_tensorrt_mean_nothing_to_a_cpu(qc: Qc, model: Path, tmp_path: Path) -> None:
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
    assert "target onnxruntime has no dry run" in err


def test_a_build_says_what_was_proven(qc: Qc, model: Path) -> None:
    code, out, _ = qc(*rtx(model, "--precision", "best"))
    assert code == 0
    assert "proof: 3 of 3 layers that compute are fp16" in out
    assert "not run: verified only by" in out
    for shown in (out, qc("inspect", str(model.with_name("m.engine")))[1]):
        assert "in  x:[batch,4,8,8]:float32" in shown
        assert "profile x:1x4x8x8..8x4x8x8..16x4x8x8" in shown  # no shapes were given


@pytest.mark.skipif(not why_no_gpu(), reason="a GPU is here")
def test_refit_needs_the_gpu_and_says_so(qc: Qc, model: Path, tmp_path: Path) -> None:
    built = qcompile.build(model, tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"])
    code, _, err = qc("refit", built.path, model, "-o", tmp_path / "new.engine")
    assert code == 1
    assert "cannot be refitted here: no NVIDIA driver" in err
    code, _, err = qc("refit", tmp_path / "nothing.engine", model, "-o", tmp_path / "new.engine")
    assert code == 2
    assert "nothing.engine does not exist" in err


def test_an_engine_without_a_manifest_runs_only_when_trusted(
    qc: Qc, tiny_file: MakePath, tmp_path: Path
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


def test_unreported_layers_are_counted_with_what_else_shows_their_precision(
    printed: Printed, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, "10.16", blocks={"conv1", "conv2", "gemm"})
    engine = tmp_path / "m.engine"
    code, said = printed("build", model, "--target", "tensorrt", "--precision", "fp16", "-o", engine, "-v")
    assert code == 0
    assert "proof: 0 of 3 layers that compute are fp16, 3 unreported (no other type is permitted" in said
    assert "unreported: conv1: 50.0%: inside a fused block" in " ".join(said.split())
    code, said = printed("inspect", engine)
    assert "evidence: no other type is permitted" in said
    assert "unreported layers" in said


def test_layers_and_the_rest_make_a_mixed_graph(done: Qc, model: Path, file: Path, tmp_path: Path) -> None:
    options = "--target tensorrt --float-precision fp16 --layer conv1=fp32,pool=fp16 --layer gemm=fp16 --json"
    made = done("quantize", model, "-o", tmp_path / "q.onnx", "--ranges", file, *options.split()).json
    assert made["options"]["layers"] == ["conv1=fp32", "pool=fp16", "gemm=fp16"]
    assert made["options"]["float_precision"] == "fp16"
    counts = {"int8": {"Conv": 1}, "fp16": {"Gemm": 1}, "bf16": {}, "fp32": {"Conv": 1}}
    assert made["proof"]["nodes_by_precision"] == counts


@pytest.mark.parametrize("seed", ["1", "2"])
def test_what_is_told_is_in_the_order_of_the_graph_whatever_the_hashes(
    seed: str, model: Path, tmp_path: Path
) -> None:
    words = ["quantize", str(model), "-o", str(tmp_path / "q.onnx")]
    words += ["--mode", "weights", "--precision", "int4", "--target", "tensorrt"]
    environment, program = {**os.environ, "PYTHONHASHSEED": seed}, [sys.executable, "-m", "qcompile"]
    done = subprocess.run([*program, *words], env=environment, capture_output=True, text=True, check=True)
    assert "int4: 2 Conv, 1 Gemm" in done.stdout
