"""Temporary folders of killed processes go; those of the living stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qcompile.core.files import temporary
from qcompile.core.files.storage import TEMPORARY
from qcompile.core.files.temporary import locked_folder, remove_stale, temporary_folder
from qcompile.errors import StorageError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX locks, limits and files")
ROOT = Path(__file__).parents[3]


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
from qcompile.core.files.temporary import locked_folder
with locked_folder(Path(sys.argv[1])) as folder:
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
    monkeypatch.setattr(temporary, "_start_time_s", lambda _: left.stat().st_ctime + 60)
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
    sweep += "    with locked_folder(Path(sys.argv[1])) as f: (f / 'a').touch(); assert (f / 'a').exists()\n"
    with locked_folder(tmp_path) as folder:
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
