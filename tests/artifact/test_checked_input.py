"""An input is compared with the manifest beside it, and read once for that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qcompile.artifact import Manifest, accept, accepting, artifact, checked_input, commit, known_digest
from qcompile.errors import ArtifactError, MissingFile
from qcompile.files import digest_files, manifest_path, writing


def make(path: Path, content: bytes = b"graph", *, data: bytes = b"") -> Path:
    with writing(path) as temporary:
        temporary.write_bytes(content)
        if data:
            temporary.with_name(temporary.name + ".data").write_bytes(data)
        commit(temporary, Manifest(kind="onnx", stage="simplify"))
    return path


def test_what_is_missing_or_has_no_manifest_or_fits_it(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"model .* does not exist"):
        checked_input(tmp_path / "m.onnx", what="model")
    plain = tmp_path / "plain.onnx"
    plain.write_bytes(b"of another tool")
    assert checked_input(plain) == plain
    made = make(tmp_path / "m.onnx", data=b"weights")
    assert checked_input(made) == made


@pytest.mark.parametrize("side", ["", ".data"])
def test_a_change_is_refused_with_both_digests_and_the_ways_out(tmp_path: Path, side: str) -> None:
    made = make(tmp_path / "m.onnx", data=b"weights")
    said = artifact.load_artifact(made).manifest.digest
    checked_input(made)  # it is known now
    (tmp_path / f"m.onnx{side}").write_bytes(b"other")
    found = digest_files([made, tmp_path / "m.onnx.data"])
    with pytest.raises(ArtifactError) as caught:
        checked_input(made)
    assert caught.value.message == f"{made}: digest {found[:19]}… differs from its manifest's {said[:19]}…"
    assert caught.value.hint.endswith(
        f"make it again, or remove {manifest_path(made)} if the change was meant"
    )
    manifest_path(made).unlink()
    checked_input(made)


def test_a_settled_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, read = make(tmp_path / "m.onnx"), []
    monkeypatch.setattr(artifact, "digest_files", lambda paths: read.append(paths) or digest_files(paths))
    monkeypatch.setattr(artifact, "_SETTLED_NS", -(10**12))  # as if time had passed
    for _ in range(3):
        checked_input(made)
    assert len(read) == 1
    before = made.stat()
    made.write_bytes(b"grapH")
    while made.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of a file system is coarse
        os.utime(made)
    os.utime(made, ns=(1, before.st_mtime_ns))  # of the size it had, and of the time, as far as it says
    with pytest.raises(ArtifactError):
        checked_input(made)
    assert len(read) == 2


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path) -> None:
    """Within the resolution of the clock, another content has the same time."""
    made = make(tmp_path / "m.onnx")
    before = known_digest([made])
    for number in range(50):
        made.write_bytes(b"%05d" % number)
        assert known_digest([made]) == digest_files([made]) != before


def test_what_the_user_accepts_is_these_very_bytes(tmp_path: Path) -> None:
    made = make(tmp_path / "m.onnx")
    made.write_bytes(b"changed")
    accept(made)
    checked_input(made)
    made.write_bytes(b"changed again")
    with pytest.raises(ArtifactError):
        checked_input(made)
    accept(tmp_path / "none.onnx")  # its reader says that it is missing


def test_looking_at_a_file_does_not_accept_it(tmp_path: Path) -> None:
    made = make(tmp_path / "m.onnx")
    made.write_bytes(b"changed")
    with accepting(made):
        checked_input(made)
    with pytest.raises(ArtifactError):
        checked_input(made)
