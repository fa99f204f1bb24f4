"""The campaign that traces every verb reads what strace wrote, and finds what it is for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "reliability" / "connections.py"
sys.path.insert(0, str(SCRIPT.parent))
import connections  # noqa: E402

WORK = Path("/place")


@pytest.mark.parametrize(
    ("line", "paths"),
    [
        ('7 openat(AT_FDCWD</place>, "a", O_WRONLY|O_CREAT, 0666) = 3</place/a>', ["/place/a"]),
        ('7 openat(AT_FDCWD</place>, "a", O_RDONLY|O_CLOEXEC) = 3</place/a>', []),
        ('7 openat(AT_FDCWD</place>, "../b", O_RDWR) = 3</b>', ["/b"]),
        ('7 openat(AT_FDCWD</place>, "a", O_WRONLY) = -1 EACCES (Permission denied)', []),
        ('7 openat(AT_FDCWD</place>, "/dev/null", O_WRONLY) = 3</dev/null>', []),
        ('7 rename("a", "/home/b") = 0', ["/place/a", "/home/b"]),
        ('7 unlinkat(4</home/x>, "c", 0) = 0', ["/home/x/c"]),
        ('7 symlink("/etc/passwd", "d") = 0', ["/place/d"]),
        ('7 mkdir("/tmp/e", 0777) = -1 EEXIST (File exists)', []),
        ("7 connect(3<TCP:[1]>, {sa_family=AF_INET}, 16) = 0", []),
    ],
)
def test_what_was_written_is_found(line: str, paths: list[str]) -> None:
    assert [str(path) for path in connections._written(line, WORK)] == paths


def why_no_strace() -> str:
    """Why system calls cannot be watched here; empty where they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    done = subprocess.run(["strace", "-f", "--seccomp-bpf", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "strace is not permitted here"


@pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace())
def test_a_connection_away_and_a_file_elsewhere_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a program that does both, in place of a verb; 192.0.2.1 is nobody's, and UDP sends nothing."""
    package = tmp_path / "packages" / "qcompile"
    folders = [tmp_path / name for name in ("work", "home", "tmp", "elsewhere")]
    for folder in (package, *folders):
        folder.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "import socket\n"
        "for host in ('192.0.2.1', '127.0.0.1'):\n"
        "    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:\n"
        "        try:\n            one.connect((host, 9))\n        except OSError:\n            pass\n"
        f"open({str(folders[3] / 'file')!r}, 'w').close()\nopen('mine', 'w').close()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    found = connections.watch(["x"], *folders[:3], tmp_path / "calls")
    assert (found.code, found.away, found.loopback) == (0, ["192.0.2.1"], 1)
    assert found.elsewhere == [str(folders[3] / "file")]
    assert found.places["outputs"] >= 1
    assert os.fspath(folders[0] / "mine") not in found.elsewhere
