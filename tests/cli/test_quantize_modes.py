"""`qcompile quantize` by its options: which nodes, which types, which quant_format."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import qcompile
from qcompile.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str],
    tiny_file: Callable[..., Path],
    samples: Callable[..., Path],
    tmp_path: Path,
) -> Run:
    """`run("--isa", "neon")` quantizes the tiny residual model to `q.onnx`; exit code, output, error."""
    model = tiny_file("residual")
    targets = ["onnxruntime", "openvino", "tensorrt"]
    qcompile.calibrate(model, str(samples("residual")), tmp_path / "m.ranges", targets=targets)

    def call(*options: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as done:
            main(["quantize", str(model), "-o", str(tmp_path / "q.onnx"), *map(str, options)])
        said = capsys.readouterr()
        return int(done.value.code or 0), said.out, said.err

    return call


@pytest.fixture
def ranges(tmp_path: Path) -> tuple[str, Path]:
    return "--ranges", tmp_path / "m.ranges"


def succeeded(said: tuple[int, str, str]) -> dict[str, Any]:
    assert said[0] == 0, said[2]
    found: dict[str, Any] = json.loads(said[1])
    return found


@pytest.mark.parametrize("text", ["gemm", "=fp32", "gemm:fp32"])
def test_a_layer_without_its_precision_is_a_usage_error(
    text: str, run: Run, ranges: tuple[str, Path], tmp_path: Path
) -> None:
    code, _, error = run(*ranges, "--layer", text)
    assert code == 2
    assert f"--layer {text!r}: PATTERN=PRECISION is required" in error
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("text", ["gemm=fp8", "gemm="])
def test_a_layer_of_an_unknown_precision_is_a_usage_error(
    text: str, run: Run, ranges: tuple[str, Path]
) -> None:
    code, _, error = run(*ranges, "--layer", text)
    assert code == 2
    assert f"--layer {text!r}: PATTERN=PRECISION is required" in error
    assert "fp32, fp16, bf16 or int8" in error


def test_layers_and_the_rest_make_a_mixed_graph(run: Run, ranges: tuple[str, Path]) -> None:
    options = (
        "--target",
        "tensorrt",
        "--float-precision",
        "fp16",
        "--layer",
        "conv1=fp32,pool=fp16",
        "--layer",
        "gemm=fp16",
    )
    made = succeeded(run(*ranges, *options, "--json"))
    assert made["options"]["layers"] == ["conv1=fp32", "pool=fp16", "gemm=fp16"]
    assert made["options"]["float_precision"] == "fp16"
    assert made["proof"]["nodes_by_precision"] == {
        "int8": {"Conv": 1},
        "fp16": {"Gemm": 1},
        "bf16": {},
        "fp32": {"Conv": 1},
    }


def test_rest_is_refused_where_nothing_would_run_it(run: Run, ranges: tuple[str, Path]) -> None:
    code, _, error = run(*ranges, "--float-precision", "fp16")
    assert (code, "--float-precision fp16 for onnxruntime" in error) == (2, True)
    code, _, error = run("--mode", "dynamic", "--float-precision", "fp16")
    assert (code, "mixes precisions in --mode static" in error) == (2, True)
    code, _, error = run(*ranges, "--float-precision", "int8")
    assert (code, "'--float-precision'" in error) == (2, True)


def test_only_takes_names_and_globs_separated_by_commas(run: Run, ranges: tuple[str, Path]) -> None:
    made = succeeded(run(*ranges, "--only", "conv*,gemm", "--exclude", "conv2", "--json"))
    assert made["options"]["only"] == ["conv*", "gemm"]
    assert made["proof"]["nodes_by_precision"]["int8"] == {"Conv": 1, "Gemm": 1}
    assert made["proof"]["left_in_float"] == {"conv2": "excluded by 'conv2'"}


def test_only_that_matches_nothing_is_a_usage_error(run: Run, ranges: tuple[str, Path]) -> None:
    code, _, error = run(*ranges, "--only", "con1")
    assert code == 2
    assert "--only 'con1': no node of that name, glob or operator type" in error


@pytest.mark.parametrize(
    ("quant_format", "operator"), [("nbits", "MatMulNBits"), ("qdq", "DequantizeLinear")]
)
def test_the_form_of_weights_is_chosen(quant_format: str, operator: str, run: Run, tmp_path: Path) -> None:
    options = ("--mode", "weights", "--precision", "int4", "--block-size", 16, "--quant-format", quant_format)
    made = succeeded(run(*options, "--json"))
    assert made["proof"]["quant_format"] == quant_format
    assert made["options"]["block_size"] == 16
    assert operator in {node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node}


def test_what_is_printed_names_the_bits_of_the_weights(run: Run) -> None:
    for precision in ("int4", "int8"):
        code, out, error = run("--mode", "weights", "--precision", precision, "--target", "tensorrt")
        assert code == 0, error
        assert f"{precision}: 2 Conv, 1 Gemm" in out


def test_onnx_runtimes_form_for_tensorrt_is_a_usage_error(run: Run) -> None:
    options = ("--mode", "weights", "--precision", "int4", "--quant-format", "nbits", "--target", "tensorrt")
    code, _, error = run(*options)
    assert code == 2
    assert "--quant-format 'nbits' needs ONNX Runtime's own operators" in error


def test_int4_without_its_mode_is_told_the_mode(run: Run) -> None:
    code, _, error = run("--precision", "int4")
    assert code == 2
    assert "--mode weights" in error


def test_biases_are_left_alone_when_told_so(run: Run, ranges: tuple[str, Path], tmp_path: Path) -> None:
    data = ("--data", tmp_path / "residual-32-0.npz")
    assert succeeded(run(*ranges, *data, "--json"))["proof"]["corrected_biases"] == 3
    made = succeeded(run(*ranges, *data, "--no-correct-bias", "--json"))
    assert (made["proof"]["corrected_biases"], made["options"]["correct_bias"]) == (0, False)


@pytest.mark.usefixtures("run")
def test_a_build_is_told_the_rest(
    ranges: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ("--target", "tensorrt-rtx", "--precision", "int8", "--gpu", "sm86", "--float-precision", "fp16")
    with pytest.raises(SystemExit) as done:
        main(["build", str(tmp_path / "residual.onnx"), "-o", str(tmp_path / "m.engine"), *target,
              *map(str, ranges), "--json"])  # fmt: skip
    said = capsys.readouterr()
    assert not done.value.code, said.err
    assert json.loads(said.out)["options"]["float_precision"] == "fp16"


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_what_is_told_is_in_the_order_of_the_graph_whatever_the_hashes(
    seed: str, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    words = ["quantize", str(tiny_file("residual")), "-o", str(tmp_path / "q.onnx")]
    words += ["--mode", "weights", "--precision", "int4", "--target", "tensorrt"]
    done = subprocess.run(
        [sys.executable, "-m", "qcompile", *words],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "int4: 2 Conv, 1 Gemm" in done.stdout
