"""`qcompile sign` and `verify`, and `--verify-key` where artifacts are run."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import MakePath, Qc


@pytest.fixture
def signed(done: Qc, tiny_file: MakePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`s.onnx` signed with `team.key`, in the working folder."""
    monkeypatch.chdir(tmp_path)
    done("simplify", tiny_file("mlp"), "-o", "s.onnx")
    said = done("sign", "s.onnx", "--key", "team.key", "--new-key")
    assert said.out.startswith("s.onnx.sig  signed with key ")
    return tmp_path / "s.onnx"


def test_what_was_signed_is_verified_until_it_changes(qc: Qc, done: Qc, signed: Path) -> None:
    said = done("verify", "s.onnx", "--key", "team.key", "--json").json
    assert said["verified"]["s.onnx"].startswith("sha256:")
    done("simplify", "mlp.onnx", "-o", "t.onnx")
    signed.write_bytes(Path("t.onnx").read_bytes() + b"\xf2\x07\x00")
    found = qc("verify", "s.onnx", "--key", "team.key")
    assert found.code == 1
    assert "differs from its manifest's" in found.err
    assert qc("sign", "s.onnx", "--key", "team.key").code == 1
    assert qc("sign", "s.onnx", "--key", "team.key", "--new-key").code == 2


def test_a_key_demands_signatures_of_what_is_run(qc: Qc, done: Qc, signed: Path) -> None:
    done("simplify", signed, "-o", "t.onnx")
    for command in (
        ("diff", "s.onnx", "t.onnx"),
        ("diff", "s.onnx", "t.onnx", "--layers"),
        ("bench", "t.onnx", "--baseline", "s.onnx", "--max-time", 0.1),
        ("bench", "s.onnx", "--baseline", "t.onnx", "--max-time", 0.1),
    ):
        said = qc(*command, "--verify-key", "team.key")
        assert said.code == 1, said
        assert "t.onnx: is not signed (t.onnx.sig is missing)" in said.err
    done("sign", "t.onnx", "--key", "team.key")
    done("diff", "s.onnx", "t.onnx", "--verify-key", "team.key")
