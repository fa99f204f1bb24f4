"""A crash at any call leaves no wrong pair of a file and its manifest."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qcompile.core.artifact import Manifest, commit, digest_artifact, read_manifest
from qcompile.core.files import manifest_path, writing

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX locks, limits and files")
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
