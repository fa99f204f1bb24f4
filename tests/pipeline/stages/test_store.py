"""A stage is carried out once, kept whole or not at all, and published so that no pair of files is wrong."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qcompile.core.files import digest_files
from qcompile.errors import InvalidOption, QCompileError, StorageError
from qcompile.pipeline.stages.store import FOLDER, Store

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="links of POSIX")


class Work:
    """Writes a file, its weights and its manifest, and counts how often it was asked to."""

    def __init__(self, content: str = "graph") -> None:
        self.runs, self.content = 0, content

    def __call__(self, folder: Path) -> None:
        self.runs += 1
        (folder / "m.onnx").write_text(self.content)
        (folder / "m.onnx.data").write_text("weights")
        (folder / "m.onnx.json").write_text("{}")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "out")
    store.folder.mkdir(parents=True)
    return store


@pytest.fixture
def work() -> Work:
    return Work()


def test_a_stage_is_carried_out_once_for_each_key(store: Store, work: Work) -> None:
    first = store.run("export", {"model": "a", "opset": 20}, work)
    second = Store(store.output).run("export", {"opset": 20, "model": "a"}, work)
    assert (first.was_done, second.was_done, work.runs) == (False, True, 1)
    assert (first.folder, first.files) == (second.folder, second.files)
    assert set(first.files) == {"m.onnx", "m.onnx.data", "m.onnx.json"}
    assert (first.folder / "m.onnx").read_text() == "graph"
    store.run("export", {"model": "b"}, work)
    store.run("simplify", {"model": "a", "opset": 20}, work)
    assert work.runs == 3
    again = store.run("export", {"model": "a", "opset": 20}, Work("new"), again=True)
    assert not again.was_done
    assert (store.output / "m.onnx").read_text() == "new"


def change_in_place(folder: Path) -> None:
    with (folder / "m.onnx").open("r+b") as file:
        file.write(b"G")
    os.utime(folder / "m.onnx", ns=(1, 1))


def lengthen(folder: Path) -> None:
    with (folder / "m.onnx").open("ab") as file:
        file.write(b"more")


def link(folder: Path) -> None:
    """A link to a file of the same content is none of the stage's."""
    (folder.parent / "secret").write_text("graph")
    (folder / "m.onnx").unlink()
    (folder / "m.onnx").symlink_to(folder.parent / "secret")


def record(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "stage.json").write_text(text)


def change(**values: Any) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        path = folder / "stage.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return write


TEXTS = ("", "{", "{}", "null", "[]", '{"files": {"m.onnx": "sha256:aa"}}', "[" * 100_000)
TYPES: list[dict[str, Any]] = [
    {"files": ["m.onnx"]}, {"files": {"m.onnx": 5}}, {"files": None}, {"stats": {}},
    {"stats": {"m.onnx": 5}}, {"stats": {"m.onnx": [1]}}, {"stats": {"m.onnx": ["1", "2"]}},
    {"key": "export"}, {"seconds": "long"}, {"seconds": [1]}, {"peak_bytes": {}},
]  # fmt: skip
DAMAGES: list[Any] = [
    change_in_place,
    lengthen,
    pytest.param(link, marks=POSIX),
    lambda folder: (folder / "m.onnx").unlink(),
    lambda folder: (folder / "stage.json").unlink(),
    *(RECORDS := [*map(record, TEXTS), *(change(**values) for values in TYPES)]),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_stage_that_was_damaged_is_made_again(
    store: Store, work: Work, damage: Callable[[Path], object]
) -> None:
    stored = store.run("export", {}, work)
    damage(stored.folder)
    if damage in RECORDS:
        assert store.records("export") == []
    again = store.run("export", {}, work)
    assert (again.was_done, work.runs) == (False, 2)
    assert (again.folder / "m.onnx").read_text() == "graph"
    assert not (store.output / "m.onnx").is_symlink()
    assert store.run("export", {}, work).was_done


@pytest.mark.parametrize("name", ["../../secret", "/{secret}", "..", "a/b", "", ".", "a\0b", "a\\b"])
def test_a_record_that_names_a_file_elsewhere_is_none(
    store: Store, work: Work, tmp_path: Path, name: str
) -> None:
    """Such a name would publish a file of elsewhere, or write one there."""
    secret = tmp_path / "secret"
    secret.write_text("key")
    stored, status = store.run("export", {}, work), secret.stat()
    name = name.replace("{secret}", str(secret)[1:])
    stats = {name: [status.st_size, status.st_mtime_ns]}
    change(files={name: digest_files([secret])}, stats=stats)(stored.folder)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert store.find("export", {}) is None
    assert store.records("export") == []
    assert not store.run("export", {}, work).was_done
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert secret.read_text() == "key"


@pytest.mark.parametrize(("change", "runs"), [("touched", 1), ("deleted", 1), ("replaced", 1), ("edited", 2)])
def test_a_published_file_is_restored(store: Store, work: Work, change: str, runs: int) -> None:
    """Also one that shares its content with the stage's, which is made again."""
    stored, public = store.run("export", {}, work), store.output / "m.onnx"
    if change == "touched":
        os.utime(stored.folder / "m.onnx", ns=(1, 1))
    elif change == "edited":
        public.write_text("edited")
    else:
        public.unlink()
        if change == "replaced":
            public.write_text("another program's")
    stored = store.run("export", {}, work)
    assert stored.was_done == (runs == 1)
    assert public.read_text() == (stored.folder / "m.onnx").read_text() == "graph"
    assert work.runs == runs


def test_failing_work_leaves_nothing(store: Store, work: Work) -> None:
    def fail(folder: Path) -> None:
        (folder / "m.onnx").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.run("export", {}, fail)
    assert list(store.folder.iterdir()) == []
    assert [path.name for path in store.output.iterdir()] == [FOLDER]
    assert not store.run("export", {}, work).was_done


def test_one_run_at_a_time_holds_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for folder, says in ((tmp_path, "another run is using it"), (tmp_path / "file", "output")):
        with Store(tmp_path).locked(), pytest.raises(InvalidOption, match=says), Store(folder).locked():
            pytest.fail("the block must not run")
    with Store(tmp_path).locked():  # it is free again after an error
        assert (tmp_path / FOLDER).is_dir()


def test_stages_unused_for_two_weeks_are_forgotten(store: Store, work: Work) -> None:
    for stage in ("export", "build"):
        os.utime(store.run(stage, {}, work).folder / "stage.json", (time.time() - 30 * 86400,) * 2)
    store.run("simplify", {}, work)
    later = Store(store.output)
    later.run("build", {}, work)
    later.forget_old()
    assert sorted(path.name.rpartition("-")[0] for path in store.folder.iterdir()) == ["build", "simplify"]


@pytest.mark.parametrize("jumps", [True, False])
def test_a_clock_that_jumps_costs_a_run_no_stage(
    store: Store, work: Work, monkeypatch: pytest.MonkeyPatch, jumps: bool
) -> None:
    """A device without a battery for its clock begins in 1970, and is told the year while it works."""
    stored, now = store.run("stage", {}, work), time.time
    if jumps:
        monkeypatch.setattr(time, "time", lambda: now() + 365 * 86400)
    else:  # its files are of the future
        for path in stored.folder.iterdir():
            os.utime(path, (4e9, 4e9))
    store.forget_old()
    assert store.run("stage", {}, work).was_done


def test_a_finished_stage_is_taken_by_name(store: Store) -> None:
    store.run("build-a", {"of": 1}, Work("one"))
    (first,) = store.finished_names("build-a")
    store.run("build-a", {"of": 2}, Work("two"), took={"seconds": 7.0, "peak_bytes": None})
    assert (store.output / "m.onnx").read_text() == "two"
    assert store.records("build-a")[0].seconds == 7.0
    assert (len(store.finished_names("build-a")), store.finished_names("build")) == (2, [])
    taken = store.take(first)
    assert taken is not None
    assert (store.output / "m.onnx").read_text() == "one"
    (taken.folder / "m.onnx").write_text("changed")
    assert store.take(first) is None
    assert first not in store.finished_names("build-a")


def test_a_kill_while_files_are_published_leaves_no_file_beside_anothers_manifest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, public = os.replace, store.output / "m.onnx"

    def cut(source: Path, target: Path) -> None:
        replace(source, target)
        if Path(target) == public:
            raise KeyboardInterrupt

    def work(folder: Path, version: int = 2) -> None:
        (folder / "m.onnx").write_text(f"{version}")
        (folder / "m.onnx.json").write_text(f'{{"of": {version}}}')

    store.run("export", {"number": 1}, lambda folder: work(folder, 1))
    monkeypatch.setattr(os, "replace", cut)
    with pytest.raises(KeyboardInterrupt):
        store.run("export", {"number": 2}, work)
    monkeypatch.undo()
    assert public.read_text() == "2"
    assert not public.with_name("m.onnx.json").exists()
    assert store.run("export", {"number": 2}, work).was_done
    assert public.with_name("m.onnx.json").read_text() == '{"of": 2}'


def test_a_stage_is_on_the_disk_before_it_has_its_name(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content, the names in the folder, the folder's own name, then what is published: in this order."""
    events: list[str] = []
    opened: dict[int, str] = {}
    replace, fsync, open_ = os.replace, os.fsync, os.open

    def note_open(path: Any, *arguments: Any, **options: Any) -> int:
        number = open_(path, *arguments, **options)
        opened[number] = Path(path).name
        return number

    def note_fsync(number: int) -> None:
        name = opened.get(number, "a file")
        events.append(f"sync {'the stage' if name.startswith('.qcompile-tmp') else name}")
        fsync(number)

    def note_replace(source: Any, target: Any) -> None:
        events.append(f"name {Path(target).name.partition('-')[0]}")
        replace(source, target)

    for name, function in (("open", note_open), ("fsync", note_fsync), ("replace", note_replace)):
        monkeypatch.setattr(os, name, function)
    store.run("export", {}, Work())
    named, recorded = events.index("name export"), events.index("name stage.json")
    assert {f"sync {name}" for name in ("m.onnx", "m.onnx.data", "m.onnx.json")} <= {*events[:named]}, events
    assert recorded < events.index("sync the stage", recorded) < named
    assert events[named + 1] == "sync .qcompile"
    public = [event.removeprefix("name ") for event in events[named:] if event.startswith("name m")]
    assert public == ["m.onnx.data", "m.onnx", "m.onnx.json"]
    assert events[-1] == "sync out"


def test_weights_of_a_former_file_do_not_stay_beside_the_new_one(store: Store, work: Work) -> None:
    """The manifest's digest is over both: what was left would count as a change."""
    store.run("export", {"size": "large"}, work)
    assert (store.output / "m.onnx.data").is_file()

    def small(folder: Path) -> None:
        (folder / "m.onnx").write_text("all in one")
        (folder / "m.onnx.json").write_text("{}")

    store.run("export", {"size": "small"}, small)
    assert not (store.output / "m.onnx.data").exists()
    store.run("export", {"size": "large"}, work)
    assert (store.output / "m.onnx.data").read_text() == "weights"


def test_a_folder_under_a_public_name_is_named(store: Store, work: Work) -> None:
    (store.output / "m.onnx").mkdir()
    with pytest.raises(StorageError, match=r"m\.onnx: cannot be written") as caught:
        store.run("export", {}, work)
    assert caught.value.data["file"] == store.output / "m.onnx"
    (store.output / "m.onnx").rmdir()
    assert store.run("export", {}, work).was_done
    names = {path.name for path in store.output.iterdir()}
    assert names == {".qcompile", "m.onnx", "m.onnx.data", "m.onnx.json"}


@POSIX
def test_links_that_others_plant_are_neither_followed_nor_emptied(
    tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the names of the store, its lock and what it publishes; also where there are no hard links."""
    precious, elsewhere, linked = tmp_path / "precious", tmp_path / "elsewhere", Store(tmp_path / "linked")
    precious.write_text("of the user")
    for folder in (elsewhere, linked.output):
        folder.mkdir()
    linked.folder.symlink_to(elsewhere)
    with pytest.raises(InvalidOption, match="is a link"), linked.locked():
        pytest.fail("the block must not run")
    assert list(elsewhere.iterdir()) == []
    store = Store(tmp_path / "out")
    store.folder.mkdir(parents=True)
    (store.folder / "lock").symlink_to(precious)
    with pytest.raises(InvalidOption, match=r"is a link.*lock"), store.locked():
        pytest.fail("the block must not run")
    (store.output / "m.onnx").symlink_to(precious)
    store.run("export", {}, work)
    assert (store.output / "m.onnx").read_text() == "graph"
    assert not (store.output / "m.onnx").is_symlink()

    def refused(_: Path, target: Path) -> None:
        target.symlink_to(precious)  # between two steps of the publication
        raise OSError("a file system without hard links")

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(QCompileError, match="cannot be written"):
        store.run("export", {"new": 1}, work)
    assert precious.read_text() == "of the user"
