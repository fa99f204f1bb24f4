"""`qcompile package triton` by its command: what it prints, its JSON, and that bad input never tracebacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging_engines import make_engine

from qcompile.cli import main


class Said(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def package(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Said]:
    """`package("m.onnx", ...)` packages for Triton into `models`."""

    def call(*arguments: object) -> Said:
        with pytest.raises(SystemExit) as done:
            main(["package", "triton", *map(str, arguments), "-o", str(tmp_path / "models")])
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        assert "unexpected" not in said.err
        return Said(int(done.value.code or 0), said.out, said.err)

    return call


Package = Callable[..., Said]


def test_it_says_what_was_written_checked_and_how_to_serve(package: Package, tmp_path: Path) -> None:
    said = package(make_engine(tmp_path / "m.engine"), "--name", "net", "--gpus", "0,1", "--instances", 2)
    assert said.code == 0
    for words in (
        "version 1, tensorrt, batches up to 16",
        "config.pbtxt",
        "1/model.plan.json",
        "checked: the file is what its manifest says",
        f"serve: tritonserver --model-repository={tmp_path / 'models'}",
    ):
        assert words in said.out
    assert "warning: built by TensorRT 10.16.1.11 on gpu sm86" in said.err
    assert "gpus: [0, 1]" in (tmp_path / "models/net/config.pbtxt").read_text()


def test_json_has_everything_and_nothing_else_is_printed(
    package: Package, tiny_file: Callable[..., Path]
) -> None:
    said = package(
        tiny_file("residual"), "--name", "net", "--max-batch-size", 8, "--preferred-batch", "4,8",
        "--max-queue-delay-us", 100, "--version", 3, "--version-policy", "latest:2", "--response-cache",
        "--kind", "cpu", "--no-warm-up", "--json",
    )  # fmt: skip
    found = json.loads(said.out)
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


def test_quiet_prints_nothing_but_warnings(package: Package, tiny_file: Callable[..., Path]) -> None:
    assert package(tiny_file("mlp"), "--name", "net", "-q").out == ""


def test_bad_input_is_one_message_and_the_right_code(
    package: Package, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    model, engine = tiny_file("mlp"), make_engine(tmp_path / "m.engine")
    text = tmp_path / "notes.txt"
    text.write_text("no model")
    cut = tiny_file("residual")
    cut.write_bytes(cut.read_bytes()[:50])
    for code, arguments in (
        (2, (model,)),
        (2, (tmp_path / "none.onnx", "--name", "n")),
        (2, (tmp_path, "--name", "n")),
        (2, (model, "--name", "a/b")),
        (2, (model, "--name", "n", "--gpus", "0,x")),
        (2, (model, "--name", "n", "--gpus", "-1")),
        (2, (model, "--name", "n", "--preferred-batch", "²")),
        (2, (model, "--name", "n", "--version", "0")),
        (2, (model, "--name", "n", "--version", "one")),
        (2, (model, "--name", "n", "--kind", "tpu")),
        (2, (model, "--name", "n", "--cuda-graph")),
        (2, (model, "--name", "n", "--version-policy", "specific:7")),
        (2, (model, "--name", "n", "--warm-up-shapes", "x:[n,16]")),
        (2, (engine, "--name", "n", "--max-batch-size", "99")),
        (2, (engine, "--name", "n", "--kind", "cpu")),
        (1, (text, "--name", "n")),
        (1, (cut, "--name", "n")),
    ):  # fmt: skip
        said = package(*arguments)
        assert said.code == code, (arguments, said)
        assert said.err.strip()
        assert not (tmp_path / "models").exists()


def test_errors_are_json_with_json(package: Package, tmp_path: Path) -> None:
    said = package(tmp_path / "none.onnx", "--name", "n", "--json")
    assert json.loads(said.out)["error"] == "MissingFile"
