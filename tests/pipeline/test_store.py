from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qcompile.errors import InvalidOption
from qcompile.pipeline.store import FOLDER, Store


class Work:
    """Writes two files and counts how often it was asked to."""

    def __init__(self, content: str = "weights") -> None:
        self.runs, self.content = 0, content

    def __call__(self, folder: Path) -> None:
        self.runs += 1
        (folder / "model.onnx").write_text(self.content)
        (folder / "model.onnx.json").write_text("{}")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    store.folder.mkdir()
    return store


@pytest.fixture
def work() -> Work:
    return Work()


def stages(store: Store) -> list[str]:
    return sorted(path.name.rpartition("-")[0] for path in store.folder.iterdir())


def test_a_stage_is_carried_out_once(store: Store, work: Work, tmp_path: Path) -> None:
    first = store.run("export", {"model": "a", "opset": 20}, work)
    second = Store(tmp_path).run("export", {"opset": 20, "model": "a"}, work)
    assert (first.was_done, second.was_done, work.runs) == (False, True, 1)
    assert (first.folder, first.files) == (second.folder, second.files)
    assert set(first.files) == {"model.onnx", "model.onnx.json"}
    assert (first.folder / "model.onnx").read_text() == "weights"


def test_another_key_or_stage_is_another_run(store: Store, work: Work) -> None:
    store.run("export", {"model": "a"}, work)
    store.run("export", {"model": "b"}, work)
    store.run("simplify", {"model": "a"}, work)
    assert work.runs == 3
    assert store.run("export", {"model": "a"}, work).was_done


def test_a_stage_asked_for_again_is_carried_out_again(store: Store, tmp_path: Path) -> None:
    store.run("bench", {}, Work("old"))
    stored = store.run("bench", {}, Work("new"), again=True)
    assert not stored.was_done
    assert (tmp_path / "model.onnx").read_text() == "new"


def change_in_place(folder: Path) -> None:
    with (folder / "model.onnx").open("r+b") as file:
        file.write(b"W")
    os.utime(folder / "model.onnx", ns=(1, 1))


def lengthen(folder: Path) -> None:
    with (folder / "model.onnx").open("ab") as file:
        file.write(b"more")


def delete(folder: Path) -> None:
    (folder / "model.onnx").unlink()


def delete_record(folder: Path) -> None:
    (folder / "stage.json").unlink()


@pytest.mark.parametrize("damage", [change_in_place, lengthen, delete, delete_record])
def test_a_stage_whose_files_were_changed_is_made_again(
    store: Store, work: Work, damage: Callable[[Path], None]
) -> None:
    stored = store.run("export", {}, work)
    damage(stored.folder)
    again = store.run("export", {}, work)
    assert (again.was_done, work.runs) == (False, 2)
    assert (again.folder / "model.onnx").read_text() == "weights"
    assert store.run("export", {}, work).was_done


@pytest.mark.parametrize("text", ["", "{", "{}", "null", "[]", '{"files": {"model.onnx": "sha256:aa"}}'])
def test_a_damaged_record_makes_the_stage_again(store: Store, work: Work, text: str) -> None:
    stored = store.run("export", {}, work)
    (stored.folder / "stage.json").write_text(text)
    assert not store.run("export", {}, work).was_done
    assert work.runs == 2


def test_a_new_time_with_the_same_content_changes_nothing(store: Store, work: Work) -> None:
    stored = store.run("export", {}, work)
    os.utime(stored.folder / "model.onnx", ns=(1, 1))
    assert store.run("export", {}, work).was_done


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_published_file_is_restored_without_work(
    store: Store, work: Work, tmp_path: Path, how: str
) -> None:
    store.run("export", {}, work)
    public = tmp_path / "model.onnx"
    assert public.read_text() == "weights"
    public.unlink()
    if how == "replaced":
        public.write_text("another program's")
    assert store.run("export", {}, work).was_done
    assert public.read_text() == "weights"
    assert work.runs == 1


def test_an_edited_published_file_does_not_corrupt_the_store(
    store: Store, work: Work, tmp_path: Path
) -> None:
    store.run("export", {}, work)
    (tmp_path / "model.onnx").write_text("edited")
    stored = store.run("export", {}, work)
    assert (stored.folder / "model.onnx").read_text() == "weights"
    assert (tmp_path / "model.onnx").read_text() == "weights"


def test_failing_work_leaves_nothing(store: Store, tmp_path: Path) -> None:

    def fail(folder: Path) -> None:
        (folder / "model.onnx").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.run("export", {}, fail)
    assert list(store.folder.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER]
    assert not store.run("export", {}, Work()).was_done


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with (
        Store(tmp_path).locked(),
        pytest.raises(InvalidOption, match="another run is using it"),
        Store(tmp_path).locked(),
    ):
        pytest.fail("the block must not run")
    with Store(tmp_path).locked():
        assert (tmp_path / FOLDER).is_dir()


def test_the_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Store(tmp_path).locked():
        raise ZeroDivisionError
    store = Store(tmp_path)
    with store.locked():
        assert not store.run("export", {}, Work()).was_done


def test_an_output_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InvalidOption, match="output"), Store(tmp_path / "out").locked():
        pytest.fail("the block must not run")


def test_stages_unused_for_two_weeks_are_forgotten(store: Store, tmp_path: Path) -> None:
    old = store.run("export", {}, Work("old"))
    store.run("simplify", {}, Work("new"))
    month_ago = time.time() - 30 * 86400
    os.utime(old.folder / "stage.json", (month_ago, month_ago))
    Store(tmp_path).forget_old()
    assert stages(store) == ["simplify"]


def test_a_used_stage_is_not_forgotten(store: Store, work: Work) -> None:
    stored = store.run("export", {}, work)
    month_ago = time.time() - 30 * 86400
    os.utime(stored.folder / "stage.json", (month_ago, month_ago))
    store.run("export", {}, work)
    store.forget_old()
    assert stages(store) == ["export"]


def test_a_clock_that_jumps_in_a_run_costs_it_no_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device without a battery for its clock begins in 1970, and is told the year while it works."""
    store, work = Store(tmp_path), Work()
    with store.locked():
        kept = store.run("stage", {"number": 1}, work)
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 365 * 86400)
        store.forget_old()
        assert kept.folder.is_dir()
        assert store.run("stage", {"number": 1}, work).was_done


def test_a_time_in_the_future_is_no_reason_to_make_a_stage_again(tmp_path: Path) -> None:
    store, work = Store(tmp_path), Work()
    with store.locked():
        kept = store.run("stage", {"number": 1}, work)
        for path in kept.folder.iterdir():
            os.utime(path, (4e9, 4e9))
        store.forget_old()
        assert store.run("stage", {"number": 1}, work).was_done


def test_a_kill_while_files_are_published_leaves_no_file_beside_anothers_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, replace = Store(tmp_path), os.replace

    def cut(source: Path, target: Path) -> None:
        replace(source, target)
        if Path(target) == tmp_path / "model.onnx":
            raise KeyboardInterrupt

    def work(version: int) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            (folder / "model.onnx").write_text(f"{version}")
            (folder / "model.onnx.json").write_text(f'{{"of": {version}}}')

        return write

    with store.locked():
        store.run("export", {"number": 1}, work(1))
        monkeypatch.setattr(os, "replace", cut)
        with pytest.raises(KeyboardInterrupt):
            store.run("export", {"number": 2}, work(2))
        assert (tmp_path / "model.onnx").read_text() == "2"
        assert not (tmp_path / "model.onnx.json").exists()
        monkeypatch.undo()
        assert store.run("export", {"number": 2}, work(3)).was_done
        assert (tmp_path / "model.onnx.json").read_text() == '{"of": 2}'
