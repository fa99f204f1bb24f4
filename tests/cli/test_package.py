"""`qcompile package triton` as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import MakePath, Qc
from packaging_engines import make_engine


@pytest.fixture
def package(qc: Qc, tmp_path: Path) -> Qc:
    """`package("m.onnx", ...)` packages for Triton into `models`."""
    return lambda *arguments: qc("package", "triton", *arguments, "-o", tmp_path / "models")


def test_it_says_what_was_written_checked_and_how_to_serve(package: Qc, tmp_path: Path) -> None:
    said = package(make_engine(tmp_path / "m.engine"), "--name", "net", "--gpus", "0,1", "--instances", 2)
    assert said.code == 0
    for words in (
        "version 1, tensorrt, batches up to 16",
        "config.pbtxt",
        "1/model.plan.json",
        "checked: the file matches its manifest",
        f"serve: tritonserver --model-repository={tmp_path / 'models'}",
    ):
        assert words in said.out
    assert "warning: built by TensorRT 10.16.1.11 on gpu sm86" in said.err
    assert "gpus: [0, 1]" in (tmp_path / "models/net/config.pbtxt").read_text()


def test_json_has_everything_and_nothing_else_is_printed(package: Qc, tiny_file: MakePath) -> None:
    said = package(
        tiny_file("residual"), "--name", "net", "--max-batch-size", 8, "--preferred-batch", "4,8",
        "--max-queue-delay-us", 100, "--version", 3, "--version-policy", "latest:2", "--response-cache",
        "--kind", "cpu", "--no-warm-up", "--json",
    )  # fmt: skip
    found = said.json
    assert (found["version"], found["versions"], found["max_batch_size"]) == (3, [3], 8)
    assert (found["backend"], found["files"]) == ("onnxruntime", ["model.onnx"])
    for line in (
        "preferred_batch_size: [4, 8]", "max_queue_delay_microseconds: 100", "num_versions: 2",
        "kind: KIND_CPU", "enable: true",
    ):  # fmt: skip
        assert line in found["config"]
    assert "model_warmup" not in found["config"]
    assert "--cache-config=local" in found["server"]
    assert {check["passed"] for check in found["checks"]} == {True}
    assert any("has no manifest" in warning for warning in found["warnings"])
