"""Files: JSON that is read, and folders for what is temporary."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from qcompile.errors import ArtifactError, StorageError
from qcompile.files import TEMPORARY, read_json, temporary_folder


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b'{"a": "\xff"}'])
def test_what_is_no_json_is_an_error_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"m\.json: not results"):
        read_json(path, what="results")


def test_a_temporary_folder_goes_and_takes_those_of_dead_processes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    left = tmp_path / f"{TEMPORARY}{process.pid}-simplify-x"
    left.mkdir()
    (left / "file").write_text("of a process that was killed")
    (tmp_path / f"{TEMPORARY}{os.getppid()}-build-y").mkdir()
    with temporary_folder("simplify") as folder:
        assert folder.is_dir()
        assert not left.exists()
    assert [path.name for path in tmp_path.iterdir()] == [f"{TEMPORARY}{os.getppid()}-build-y"]


def test_a_temporary_folder_that_cannot_be_made_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="temporary files"), temporary_folder("simplify"):
        pass
