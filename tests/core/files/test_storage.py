"""What a disk refuses is a message with the next step."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from qcompile.core.files import read_bytes, require_file, writing
from qcompile.core.files.storage import hidden_storage_error, storage_error
from qcompile.errors import InvalidOption, MissingFile, ModelError, StorageError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX locks, limits and files")
REFUSALS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EMFILE, errno.EACCES, errno.EPERM,
    errno.ENAMETOOLONG,
)  # fmt: skip


def refuse(number: int, part: Path) -> None:
    part.write_bytes(b"half")
    raise OSError(number, os.strerror(number), str(part))


@pytest.mark.parametrize("number", REFUSALS)
def test_a_refusal_names_the_file_and_the_next_step(tmp_path: Path, number: int) -> None:
    path = tmp_path / "m.onnx"
    words = re.escape(f"{path}: {os.strerror(number)}")
    with pytest.raises(StorageError, match=words) as caught, writing(path) as part:
        refuse(number, part)
    assert caught.value.hint
    assert caught.value.exit_code == 1
    assert ".qcompile-tmp" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_error_that_hides_a_full_disk_is_told_as_one(tmp_path: Path) -> None:
    """ONNX Runtime, torch and safetensors raise types of their own, and so does what reads a short file."""
    path = tmp_path / "m.onnx"
    words = RuntimeError("[enforce fail] write to m.onnx failed: No space left on device (28)")
    error = ModelError("m.onnx: not an ONNX model, or cut off")
    error.__cause__ = words
    for hides in (words, error):
        with pytest.raises(StorageError, match=r"m\.onnx: No space left on device"), writing(path):
            raise hides
    with pytest.raises(ModelError, match="cut off"), writing(path):
        raise ModelError("m.onnx: not an ONNX model, or cut off")


def test_a_short_write_on_a_full_disk_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A native writer that says nothing leaves a short file, which its reader calls damaged."""
    monkeypatch.setattr("qcompile.core.files.storage.is_full", lambda folder: folder == tmp_path)
    found = hidden_storage_error(ModelError("m.onnx: cut off"), tmp_path / "m.onnx")
    assert found is not None
    assert "No space left on device" in found.message
    assert "cut off" in found.message
    assert hidden_storage_error(InvalidOption("`axis`"), tmp_path / "m.onnx") is None


@pytest.mark.parametrize(
    "error",
    [
        BrokenPipeError(errno.EPIPE, "pipe"), ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        OSError("no number"), FileNotFoundError(errno.ENOENT, "no file is named"),
    ],
)  # fmt: skip
def test_what_is_no_matter_of_files_stays_what_it_is(error: OSError) -> None:
    assert storage_error(error) is None


LIMITED = """
import resource, sys
from pathlib import Path
from qcompile.cli import main
from qcompile.core.files import writing
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
from importlib import import_module
command = import_module("qcompile.cli.main")
def verb(*_):
    with writing(Path(sys.argv[1])) as path:
        path.write_bytes(bytes(5000))
command.VerbGroup.get_command = lambda *_: command.click.Command("write", callback=verb)
main(["write"])
"""


def test_a_file_over_the_limit_is_a_message_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    words = [sys.executable, "-c", LIMITED, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert f"error: {path}: File too large\n  hint: raise the limit" in done.stderr
    assert "defect" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_takes_an_error_of_files_for_none_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = import_module("qcompile.cli.main")

    def verb() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "secret.onnx")

    monkeypatch.setattr(
        command.VerbGroup, "get_command", lambda *_: command.click.Command("x", callback=verb)
    )
    with pytest.raises(SystemExit) as done:
        command.main(["x"])
    assert done.value.code == 1
    assert "error: secret.onnx: Permission denied\n  hint: change its permissions" in capsys.readouterr().err


def test_what_is_no_file_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    """Reading a pipe waits for ever; writing over a device puts a file into its place."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    for path, kind in (
        (tmp_path / "pipe", "a pipe"), (tmp_path / "socket", "a socket"), (Path("/dev/null"), "a device"),
        (tmp_path, "a folder"),
    ):  # fmt: skip
        with pytest.raises(MissingFile, match=f"is {kind}"):
            require_file(path)
        with pytest.raises(InvalidOption, match=f"is {kind}"), writing(path):
            pass
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    with pytest.raises(StorageError, match="circle"):
        require_file(tmp_path / "circle")
    with pytest.raises(MissingFile, match=r"link to .*nothing, which does not exist"):
        require_file(tmp_path / "dangling")
    with pytest.raises(StorageError, match="File name too long"):
        require_file(tmp_path / ("long" * 80))


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="Linux")
def test_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(StorageError, match="/proc/self/mem"):
        read_bytes(Path("/proc/self/mem"))
