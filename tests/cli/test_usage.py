"""Wrong command lines: one form of error, a suggestion for a misspelling, JSON with `--json`."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import MakePath, Qc

WRONG = {
    "quantise m.onnx": ("command 'quantise' is unknown", "did you mean quantize?"),
    "ranges shw": ("command 'shw' is unknown", "did you mean show?"),
    "xyzzy": ("command 'xyzzy' is unknown", "qcompile -h lists the commands"),
    "quantize m.onnx -o x --traget openvino": ("option --traget is unknown", "did you mean --target?"),
    "build m.onnx -o x --target openvno": ("--target 'openvno': one of onnxruntime, ", "mean 'openvino'?"),
    "build m.onnx -o x --target openvino --precision INT9": ("--precision 'INT9': one of ", "'int8'?"),
    "bench m.onnx --baseline m.onnx --max-time abc": ("--max-time 'abc': a number is required", ""),
    "bench m.onnx --baseline m.onnx --threads -1": ("--threads -1: at least 0 is required", ""),
    "bench m.onnx": ("--baseline is missing", "qcompile bench --help lists the options"),
    "build": ("MODEL is missing", "qcompile build --help lists the options"),
    "run": ("recipe recipe.toml does not exist", ""),
    "run a b": ("got unexpected extra argument (b)", "qcompile run --help lists the options"),
    "inspect m.onnx --untrusted --time-limit-s abc": ("--time-limit-s: 'abc' is not a valid float", ""),
    "doctor -v -q": ("-v and -q exclude each other", ""),
}  # fmt: skip


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_line_is_an_error_like_all_others(qc: Qc, line: str) -> None:
    message, hint = WRONG[line]
    code, out, err = qc(*line.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert hint in err.partition("\n  hint: ")[2]
    assert "Usage:" not in err


@pytest.mark.parametrize("line", WRONG)
def test_json_has_the_same_error(qc: Qc, line: str) -> None:
    message, hint = WRONG[line]
    said = qc(*line.split(), "--json")
    assert (said.code, said.err) == (2, "")
    assert said.json["message"].startswith(message)
    assert hint in said.json["hint"]


def test_choices_in_capitals_are_accepted(qc: Qc, tiny_file: MakePath, tmp_path: Path) -> None:
    output = tmp_path / "m.onnx"
    built = qc(
        "build", tiny_file("mlp"), "--target", "ONNXRuntime", "--precision", "FP32", "-o", output, "--json"
    )
    assert (built.code, built.json["target"], built.json["precision"]) == (0, "onnxruntime", "fp32")


def test_a_command_alone_prints_its_help_as_it_is(qc: Qc) -> None:
    assert qc("ranges").err == qc("ranges", "--help").out
