"""`qcompile build` for TensorRT, and `refit`: every option arrives, and what cannot be says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import qcompile
from qcompile.cli import main
from qcompile.engines.gpu import why_no_gpu

MakeFile = Callable[..., Path]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("build", ...)` returns exit code, standard output and standard error."""

    def call(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as done:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return int(done.value.code or 0), out, err

    return call


def rtx(model: Path, *options: str) -> list[str]:
    return [
        "build", str(model), "--target", "tensorrt-rtx", "--gpu", "sm86",
        "-o", str(model.parent / "m.engine"), *options,
    ]  # fmt: skip


def test_a_dry_run_prints_the_plan_and_writes_nothing(run: Run, tiny_file: MakeFile) -> None:
    model = tiny_file("residual")
    options = [
        "--precision", "fp16", "--dry-run", "--workspace", "1G", "--optimization-level", "0",
        "--profile", "x:1x4x8x8..2x4x8x8..4x4x8x8", "--profile", "x:8x4x8x8..8x4x8x8..8x4x8x8",
    ]  # fmt: skip
    code, out, _ = run(*rtx(model, *options, "--json"))
    plan = json.loads(out)
    assert code == 0
    assert plan["layers_by_precision"] == {"fp16": {"CONVOLUTION": 2, "MATRIX_MULTIPLY": 1}}
    assert len(plan["profiles"]) == 2
    assert plan["options"]["optimization_level"] == 0  # not taken for "not given"
    code, out, _ = run(*rtx(model, *options))
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
def test_what_cannot_be_is_a_usage_error(
    options: list[str], said: str, run: Run, tiny_file: MakeFile
) -> None:
    code, _, err = run(*rtx(tiny_file("residual"), *options))
    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_options_of_tensorrt_mean_nothing_to_a_cpu(run: Run, tiny_file: MakeFile, tmp_path: Path) -> None:
    model = tiny_file("residual")
    command = ["build", model, "--target", "onnxruntime", "-o", tmp_path / "cpu.onnx"]
    code, _, err = run(*command, "--sparse-weights")
    assert code == 2
    assert "--sparse-weights: is for tensorrt and tensorrt-rtx; the target is onnxruntime" in err
    for precision in ("tf32", "fp8", "best"):
        code, _, err = run(*command, "--precision", precision)
        assert code == 2
        assert f"--precision {precision}" in err
    code, _, err = run(*command, "--dry-run")
    assert code == 2
    assert "cannot tell before it builds" in err


def test_a_build_says_what_was_proven(run: Run, tiny_file: MakeFile) -> None:
    model = tiny_file("residual")
    code, out, _ = run(*rtx(model, "--precision", "best"))
    assert code == 0
    assert "proof: 3 of 3 layers that compute are fp16" in out
    assert "it has not been run" in out
    for shown in (out, run("inspect", str(model.with_name("m.engine")))[1]):
        assert "in  x:[batch,4,8,8]:float32" in shown
        assert "profile x:1x4x8x8..8x4x8x8..16x4x8x8" in shown  # no shapes were given


@pytest.mark.skipif(not why_no_gpu(), reason="a GPU is here")
def test_refit_needs_the_gpu_and_says_so(run: Run, tiny_file: MakeFile, tmp_path: Path) -> None:
    model = tiny_file("residual")
    built = qcompile.build(model, tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"])
    code, _, err = run("refit", built.path, model, "-o", tmp_path / "new.engine")
    assert code == 1
    assert "cannot be refitted here: no NVIDIA driver" in err
    code, _, err = run("refit", tmp_path / "nothing.engine", model, "-o", tmp_path / "new.engine")
    assert code == 2
    assert "nothing.engine does not exist" in err


def test_an_engine_without_a_manifest_runs_only_when_trusted(
    run: Run, tiny_file: MakeFile, tmp_path: Path
) -> None:
    model, foreign = tiny_file("mlp"), tmp_path / "foreign.engine"
    foreign.write_bytes(b"ftrt" + bytes(64))
    code, _, err = run("diff", model, foreign)
    assert code == 1
    assert "has no manifest" in err
    assert "--trust" in err
    code, _, err = run("diff", model, foreign, "--trust")
    assert code == 1
    assert "has no manifest" not in err
    assert "cannot run here" in err
