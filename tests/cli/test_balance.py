"""`qcompile balance` by its command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from qcompile.artifact import load_artifact
from qcompile.cli import main

MakePath = Callable[..., Path]
Qc = Callable[..., tuple[int, str, str]]


@pytest.fixture
def qc(capsys: pytest.CaptureFixture[str]) -> Qc:
    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as done:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return int(done.value.code or 0), out, err

    return call


def test_it_says_what_was_balanced(qc: Qc, tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> None:
    model, even = tiny_file("mlp"), tmp_path / "even.onnx"
    code, out, err = qc("balance", model, "-o", even, "--data", samples("mlp"), "--samples", 8)
    assert code == 0, err
    assert "equalized pairs: 1" in out
    assert "smoothed: 0" in out
    assert "same outputs as before" in out + err
    assert load_artifact(even).manifest.options == {"samples": 8}
    code, out, err = qc("diff", model, even)
    assert code == 0, err


def test_its_json_is_the_manifest(qc: Qc, tiny_file: MakePath, tmp_path: Path) -> None:
    even = tmp_path / "even.onnx"
    code, out, err = qc("balance", tiny_file("mlp"), "-o", even, "--json")
    assert code == 0
    assert json.loads(out)["proof"] == {"equalized pairs": 1}
    assert "without data channels were evened out by weights alone" in err


def test_what_it_cannot_take_is_refused(qc: Qc, tiny_file: MakePath, tmp_path: Path) -> None:
    code, _, err = qc("balance", tmp_path / "nowhere.onnx", "-o", tmp_path / "even.onnx")
    assert code != 0
    assert "nowhere.onnx" in err
    code, _, err = qc(
        "balance", tiny_file("mlp"), "-o", tmp_path / "even.onnx", "--data", tmp_path / "no.npz"
    )
    assert code != 0
    assert "no.npz" in err
    assert not (tmp_path / "even.onnx").exists()
