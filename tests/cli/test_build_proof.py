"""What `build` and `inspect` say of an engine that is not wholly known, and of one that is rejected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from simulated_machine import install

from qcompile.cli import main

MakeFile = Callable[..., Path]
BLOCKS = {"conv1", "conv2", "gemm"}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """`run("build", ...)` returns the exit code and what was said on both streams."""

    def call(*words: str | Path) -> tuple[int, str]:
        with pytest.raises(SystemExit) as done:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return int(done.value.code or 0), said.out + said.err

    return call


Run = Callable[..., tuple[int, str]]


def build(model: Path, *options: str) -> list[str | Path]:
    output = model.parent / "m.engine"
    return ["build", model, "--target", "tensorrt", "--precision", "fp16", "-o", output, *options]


def test_unreported_layers_are_counted_with_what_else_shows_their_precision(
    run: Run, tiny_file: MakeFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_file("residual")
    install(monkeypatch, tmp_path, "10.16", blocks=BLOCKS)
    code, said = run(*build(model, "-v"))
    assert code == 0
    assert "proof: 0 of 3 layers that compute are fp16, 3 unreported (no other type is permitted" in said
    assert "unreported: conv1: 50.0%: inside a fused block" in " ".join(said.split())
    code, said = run("inspect", model.parent / "m.engine")
    assert "evidence: no other type is permitted" in said
    assert "unreported layers" in said


def test_a_rejected_engine_is_named_and_can_be_inspected(
    run: Run, tiny_file: MakeFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_file("residual")
    install(monkeypatch, tmp_path, "8.5.3", blocks=BLOCKS)
    code, said = run(*build(model, "--strict"))
    assert code == 1
    said = " ".join(said.split())
    assert "fp16 was asked for and cannot be proven: 3 of 3 layers are unreported" in said
    assert "what was built is kept as m.rejected.engine" in said
    code, said = run("inspect", model.parent / "m.rejected.engine")
    assert code == 0
    assert "cannot be proven" in said
