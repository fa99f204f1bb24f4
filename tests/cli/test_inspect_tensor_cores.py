"""`qcompile inspect --tensor-cores`: ONNX files and PyTorch models, tables and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import MakePath, Qc


def test_the_layers_that_do_not_fit_are_named_with_what_padding_costs(done: Qc, model: Path) -> None:
    said = done("inspect", model, "--tensor-cores").out
    for text in ("conv1", "4 -> 8", "wasted if padded", "75.0%", "computed, not measured"):
        assert text in said


def test_the_json_has_every_layer_and_the_gpus(done: Qc, model: Path) -> None:
    facts = json.loads(
        done("inspect", model, "--tensor-cores", "--precision", "bf16", "--gpu", "sm75,8.6", "--json").out
    )
    assert {one["name"] for one in facts["layers"]} == {"conv1", "conv2", "gemm"}
    assert [one["why_not"] for one in facts["gpus"]] == [
        "the Tensor Cores of sm75 take no BF16, which begins with sm80",
        "",
    ]
    assert facts["alignment"] == 8
    assert facts["summary"].startswith("3 of 3 layers, 100.0% of the multiply-adds")


def test_a_pytorch_model_is_exported_first(done: Qc, torch_model: str) -> None:
    said = done("inspect", torch_model, "--tensor-cores", "-i", "x:1x3x8x8").out
    assert "3 -> 8" in said
    assert "5 -> 8" in said


def test_a_model_by_name_needs_no_weights(done: Qc) -> None:
    said = done("inspect", "timm:test_resnet?size=32", "--tensor-cores").out
    assert "3 -> 8" in said
    assert "1000" not in said  # a multiple of 8


def test_a_model_whose_sizes_all_fit_is_said_to(done: Qc, tiny_file: MakePath) -> None:
    said = done("inspect", tiny_file("mlp"), "--tensor-cores").out
    assert "all layers fit Tensor Cores in FP16" in said
    int8 = done("inspect", tiny_file("mlp"), "--tensor-cores", "--precision", "int8").out
    assert "matmul2" in int8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "sm86"), "belongs to --tensor-cores"),
        (("--tensor-cores", "--precision", "fp32"), "Tensor Cores multiply tf32"),
        (("--tensor-cores", "--gpu", "rtx"), "a compute capability"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    qc: Qc, model: Path, arguments: tuple[str, ...], message: str
) -> None:
    said = qc("inspect", model, *arguments)
    assert said.code == 2
    assert message in said.err


def test_an_engine_has_no_sizes(qc: Qc, tmp_path: Path) -> None:
    (tmp_path / "m.engine").write_bytes(b"")
    said = qc("inspect", tmp_path / "m.engine", "--tensor-cores")
    assert (said.code, "an ONNX file or a PyTorch MODEL is required" in said.err) == (2, True)
