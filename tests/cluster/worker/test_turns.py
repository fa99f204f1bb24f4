"""Turns of a host, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from qcompile.cluster.worker.turns import turn, turns_folder
from qcompile.errors import StorageError

HOLD = """
import sys, time
from pathlib import Path
from qcompile.cluster.worker.turns import turn
folder, alone, name = Path(sys.argv[1]), sys.argv[2] == "alone", sys.argv[3]
with turn(alone=alone, folder=folder):
    (folder / name).touch()
    while not (folder / f"{name}.leave").exists():
        time.sleep(0.01)
"""


class Holder:
    """A process that takes a turn and keeps it."""

    def __init__(self, folder: Path, kind: str, name: str) -> None:
        self.folder, self.name = folder, name
        words = [sys.executable, "-c", HOLD, str(folder), kind, name]
        self.process = subprocess.Popen(words)

    @property
    def has_it(self) -> bool:
        return (self.folder / self.name).exists()

    def leave(self) -> None:
        (self.folder / f"{self.name}.leave").touch()
        self.process.wait(60)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.01)


@contextmanager
def holders(folder: Path) -> Iterator[Callable[[str, str], Holder]]:
    with ExitStack() as stack:

        def make(kind: str, name: str) -> Holder:
            holder = Holder(folder, kind, name)
            stack.callback(holder.process.wait, 60)
            stack.callback(holder.process.kill)
            return holder

        yield make


class Enough(Exception):
    pass


def is_free(folder: Path, *, alone: bool) -> bool:
    """Whether a turn is to be had at once."""

    def check() -> None:
        raise Enough

    try:
        with turn(alone=alone, folder=folder, check=check):
            return True
    except Enough:
        return False


def test_stages_share_and_a_measurement_is_alone(tmp_path: Path) -> None:
    with turn(folder=tmp_path):
        assert is_free(tmp_path, alone=False)
        assert not is_free(tmp_path, alone=True)
    with turn(alone=True, folder=tmp_path):
        assert not is_free(tmp_path, alone=False)
        assert not is_free(tmp_path, alone=True)
    assert is_free(tmp_path, alone=True)


def test_devices_have_turns_of_their_own(tmp_path: Path) -> None:
    with turn(["gpu/0"], alone=True, folder=tmp_path), turn(["gpu/1"], alone=True, folder=tmp_path):
        assert is_free(tmp_path, alone=True)


def test_a_killed_process_frees_its_turn(tmp_path: Path) -> None:
    with holders(tmp_path) as hold:
        first = hold("alone", "first")
        until(lambda: first.has_it)
        second = hold("alone", "second")
        third = hold("shared", "third")
        time.sleep(0.1)
        assert not second.has_it
        assert not third.has_it
        first.process.kill()
        until(lambda: second.has_it or third.has_it)
        (second if second.has_it else third).leave()
        until(lambda: second.has_it and third.has_it)


def test_a_measurement_is_not_starved_by_new_stages(tmp_path: Path) -> None:
    """There is always a stage that runs, until the measurement waits: then none comes in front of it."""
    events: list[str] = []
    stop = threading.Event()

    def stages() -> None:
        while not stop.is_set():
            with turn(folder=tmp_path):
                events.append("stage")
                time.sleep(0.03)

    threads = [threading.Thread(target=stages) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(events) > 5)
        with turn(alone=True, folder=tmp_path) as waited_s:
            before = len(events)
            time.sleep(0.1)
            assert len(events) == before, "nothing ran beside it"
        assert waited_s < 30
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def test_who_waits_says_so_and_may_give_up(tmp_path: Path) -> None:
    said: list[str] = []

    def check() -> None:
        if said:
            raise Enough

    def progress(text: str, *_: object) -> None:
        said.append(text)

    with turn(folder=tmp_path):
        with pytest.raises(Enough), turn(alone=True, folder=tmp_path, progress=progress, check=check):
            pytest.fail("a stage runs")
        assert said == ["wait until nothing else runs on this host"]
        with turn(folder=tmp_path):
            pass  # who gave up does not stay at the gate


def test_the_folder_is_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = turns_folder()
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    assert turns_folder() == folder
    folder.chmod(0o777)
    with pytest.raises(StorageError, match="others may write to it"):
        turns_folder()
    folder.chmod(0o700)
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    with pytest.raises(StorageError, match="is no folder"):
        turns_folder()
    assert not os.listdir(elsewhere)


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    with turn(folder=tmp_path):
        files = sorted(tmp_path.iterdir())
    target = tmp_path / "target"
    files[0].unlink()
    files[0].symlink_to(target)
    with pytest.raises(StorageError), turn(folder=tmp_path):
        pytest.fail("it is a link")
    assert not target.exists()
