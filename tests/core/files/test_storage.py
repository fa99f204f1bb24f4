"""What a disk refuses is a message with the next step; nothing partial gets a name, nothing killed stays.

A crash at any call leaves no wrong pair of a file and its manifest.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from qcompile.core.artifact import Manifest, commit, digest_artifact, read_manifest
from qcompile.core.files import manifest_path, read_bytes, require_file, temporary, writing
from qcompile.core.files.storage import TEMPORARY, hidden_storage_error, storage_error
from qcompile.core.files.temporary import held_folder, remove_stale, temporary_folder
from qcompile.errors import InvalidOption, MissingFile, ModelError, StorageError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX locks, limits and files")
ROOT = Path(__file__).parents[3]
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


def test_temporary_folders_are_made_in_one_place() -> None:
    """In `temporary.py`, where those of killed processes are swept."""
    makers = ("TemporaryDirectory(", "mkdtemp(", "mkstemp(", "NamedTemporaryFile(", "mktemp(")
    others = ("tests", "examples", "build", "docs")
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name not in others]
    sources = [path for folder in folders if folder.name[0] != "." for path in folder.rglob("*.py")]
    found = [
        str(path.relative_to(ROOT))
        for path in [*ROOT.glob("*.py"), *sources]
        if path.name != "temporary.py" and any(maker in path.read_text() for maker in makers)
    ]
    assert found == []


HOLDER = """
import os, sys, time
from pathlib import Path
from qcompile.core.files.temporary import held_folder
with held_folder(Path(sys.argv[1])) as folder:
    (folder / "work").write_text("half")
    print(folder, flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that holds a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate(timeout=60)


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(60)
    return process.pid


def test_a_temporary_folder_takes_those_of_dead_processes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"{TEMPORARY}{dead_pid()}-simplify-x"
    left.mkdir()
    (left / "file").write_text("of a process that was killed")
    (file := tmp_path / f"{TEMPORARY}{dead_pid()}-model.onnx").write_text("half")
    (tmp_path / f"{TEMPORARY}{os.getppid()}-build-y").mkdir()
    with temporary_folder("simplify") as folder:
        assert folder.is_dir()
        assert not left.exists()
        assert not file.exists()
    assert [path.name for path in tmp_path.iterdir()] == [f"{TEMPORARY}{os.getppid()}-build-y"]


def test_a_temporary_folder_that_cannot_be_made_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="temporary files"), temporary_folder("simplify"):
        pass


def test_a_killed_process_s_folder_goes_and_a_live_one_s_stays(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, folder):
        remove_stale(tmp_path)
        assert (folder / "work").is_file()
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        remove_stale(tmp_path)
        assert not folder.exists()


def test_a_live_process_of_another_container_keeps_its_folder(tmp_path: Path) -> None:
    """Its id means nothing here, or is that of another process: the lock alone tells."""
    with holder(tmp_path) as (_, folder):
        foreign = folder.rename(tmp_path / f"{TEMPORARY}{dead_pid()}-build-x")
        remove_stale(tmp_path)
        assert (foreign / "work").is_file()


def test_the_id_of_a_dead_process_may_be_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container every process is number 7: what number 7 left before this one began is not its own."""
    left = tmp_path / f"{TEMPORARY}{os.getpid()}-build-x"
    left.mkdir()
    remove_stale(tmp_path)
    assert left.is_dir()
    monkeypatch.setattr(temporary, "_began_s", lambda _: left.stat().st_ctime + 60)
    remove_stale(tmp_path)
    assert not left.exists()


def test_what_another_user_left_or_a_link_leads_to_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "kept").touch()
    link = tmp_path / f"{TEMPORARY}{dead_pid()}-link"
    link.symlink_to(mine)
    inside = tmp_path / f"{TEMPORARY}{dead_pid()}-folder"
    inside.mkdir()
    (inside / "link").symlink_to(mine)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    remove_stale(tmp_path)
    assert inside.is_dir()
    monkeypatch.undo()
    remove_stale(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
    assert (mine / "kept").is_file()


def test_a_name_that_only_looks_like_ours_stays(tmp_path: Path) -> None:
    for name in ("notes", "٣-x", "99999999999999-x", "-x", "1a-x"):
        (tmp_path / f"{TEMPORARY}{name}").mkdir()
    remove_stale(tmp_path)
    assert len(list(tmp_path.iterdir())) == 5


def test_many_processes_that_sweep_at_once_spare_the_living(tmp_path: Path) -> None:
    sweep = "import sys; from pathlib import Path; from qcompile.core.files.temporary import *\n"
    sweep += "for _ in range(100):\n    remove_stale(Path(sys.argv[1]))\n"
    sweep += "    with held_folder(Path(sys.argv[1])) as f: (f / 'a').touch(); assert (f / 'a').exists()\n"
    with held_folder(tmp_path) as folder:
        several = [subprocess.Popen([sys.executable, "-c", sweep, str(tmp_path)]) for _ in range(3)]
        try:
            assert [process.wait(120) for process in several] == [0, 0, 0]
        finally:
            for process in several:
                process.kill()
        assert list(tmp_path.iterdir()) == [folder]


def test_a_full_temporary_disk_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    words = r"temporary files .*No space left"
    with pytest.raises(StorageError, match=words) as caught, temporary_folder("build") as folder:
        raise OSError(28, "No space left on device", str(folder / "model.onnx"))
    assert "TMPDIR" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError), temporary_folder("build"):
        raise FileNotFoundError(2, "No such file", "elsewhere")


CALLS = ("replace", "unlink", "fsync")


class Crash(BaseException):
    """The process is gone: nothing after it happens."""


class Disk:
    """Counts the calls that change names or sync, notes them, and crashes at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int = -1) -> None:
        self.calls: list[tuple[str, str]] = []
        self.at = at
        for name in CALLS:
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(path: Any, *more: Any, **options: Any) -> Any:
            if len(self.calls) == self.at:
                raise Crash
            source = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
            self.calls.append((name, str(more[0]) if name == "replace" else source))
            return call(path, *more, **options)

        return watched


def write(path: Path, version: int, *, side: bool) -> None:
    with writing(path) as part:
        part.write_bytes(bytes([version]))
        if side:
            part.with_name(f"{part.name}.data").write_bytes(bytes([version]))
        commit(part, Manifest("engine", "build"))


def require_no_wrong_pair(path: Path) -> None:
    data = path.with_name(f"{path.name}.data")
    if path.is_file() and data.is_file():
        assert path.read_bytes() == data.read_bytes()
    if path.is_file() and manifest_path(path).is_file():
        manifest = read_manifest(path)
        assert manifest is not None
        assert digest_artifact(path) == manifest.digest


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="Linux")
@pytest.mark.parametrize(
    ("before", "after"), [(None, False), (False, False), (False, True), (True, True), (True, False)]
)
def test_a_crash_at_any_call_leaves_no_wrong_pair(tmp_path: Path, before: bool | None, after: bool) -> None:
    crashed, moment = True, 0
    while crashed:
        folder = tmp_path / str(moment)
        folder.mkdir()
        path = folder / "m.engine"
        if before is not None:
            write(path, 1, side=before)
        with pytest.MonkeyPatch.context() as patched:
            Disk(patched, at=moment)
            try:
                write(path, 2, side=after)
                crashed = False
            except Crash:
                moment += 1
        require_no_wrong_pair(path)
    assert path.read_bytes() == b"\2"
    assert moment > 8


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="Linux")
def test_what_gets_a_name_was_synced_and_its_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power loss a name may lead to nothing otherwise, or a manifest lie alone."""
    path = tmp_path / "m.engine"
    disk = Disk(monkeypatch)
    write(path, 1, side=True)
    named = [index for index, (name, what) in enumerate(disk.calls) if name == "replace"
             and Path(what).parent == tmp_path]  # fmt: skip
    synced = [(Path(what).name, index) for index, (name, what) in enumerate(disk.calls) if name == "fsync"]
    assert [Path(disk.calls[index][1]).name for index in named] == [
        "m.engine.data", "m.engine", "m.engine.json",
    ]  # fmt: skip
    for index in named:
        name = Path(disk.calls[index][1]).name
        assert any(what == name and at < index for what, at in synced)
    folder = [at for what, at in synced if what == tmp_path.name]
    assert any(named[1] < at < named[2] for at in folder)
    assert any(at > named[2] for at in folder)
