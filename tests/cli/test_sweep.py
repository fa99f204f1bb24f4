"""`qcompile sweep` as it is typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Qc
from sweeps import RECIPE, write_sweep

MakePath = Callable[..., Path]
HEAD, OWN = RECIPE.split("[[artifact]]")
FLOAT = HEAD + OWN[OWN.index("[sweep]") :].replace(', "int8"', "")


@pytest.fixture
def recipe(tiny_file: MakePath, tmp_path: Path) -> Path:
    return write_sweep(tmp_path, tiny_file, FLOAT)


def test_a_failed_cell_says_why_and_the_exit_code_is_1(qc: Qc, recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(b"no model")
    said = qc("sweep", recipe)
    assert said.code == 1
    assert "done  residual: build-openvino-fp32" in said.err
    assert "other-openvino-fp32: not built" in said.err
    assert "residual-openvino-fp32" in said.out
    again = qc("sweep", recipe, "--scheduler", "none", "--json")
    value = json.loads(again.out)
    assert again.code == 1
    assert [*value["artifacts"]] == ["residual-openvino-fp32", "mlp-openvino-fp32"]
    assert [*value["failures"]] == ["other-openvino-fp32"]
    assert set(value["stages"].values()) == {"skipped"}


def test_only_and_dry_run(qc: Qc, done: Qc, recipe: Path, tmp_path: Path) -> None:
    shown = done("sweep", recipe, "--dry-run", "--only", "mlp-*,other-*")
    assert "to do: 6 of 6 stages" in shown.out
    assert not (tmp_path / "out").exists()
    made = done("sweep", recipe, "--only", "mlp-*", "-o", tmp_path / "else", "--json")
    assert [*json.loads(made.out)["artifacts"]] == ["mlp-openvino-fp32"]
    value = json.loads(done("sweep", recipe, "--dry-run", "--json", "-o", tmp_path / "else").out)
    states = {stage["stage"]: stage["state"] for stage in value["stages"]}
    assert states["mlp: build-openvino-fp32"] == "done"
    assert states["other: build-openvino-fp32"] == "to do"
    run = qc("run", recipe)
    assert run.code == 2
    assert f"hint: qcompile sweep {recipe}" in run.err
