"""`qcompile quantize` by its options: which nodes, which types, which quant_format."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from commands import Qc, Said

import qcompile

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
def test_what_cannot_be_is_a_usage_error(
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
