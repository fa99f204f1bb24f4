"""A record that another hand wrote publishes nothing from elsewhere, and a stage survives a power loss."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from qcompile.errors import StorageError
from qcompile.files import digest_files
from qcompile.pipeline.store import Store, Stored


def work(folder: Path) -> None:
    (folder / "m.onnx").write_text("graph")
    (folder / "m.onnx.data").write_text("weights")
    (folder / "m.onnx.json").write_text("{}")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one stage."""
    made = Store(tmp_path / "out")
    made.folder.mkdir(parents=True)
    return made


def rewrite(stored: Stored, change: dict[str, Any]) -> None:
    path = stored.folder / "stage.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


@pytest.mark.parametrize("name", ["../../secret", "/{secret}", "..", "a/b", "", ".", "a\0b", "a\\b"])
def test_a_record_that_names_a_file_elsewhere_is_none(store: Store, tmp_path: Path, name: str) -> None:
    """Such a name would publish a file of elsewhere, or write one there."""
    secret = tmp_path / "secret"
    secret.write_text("key")
    stored = store.run("export", {}, work)
    name = name.replace("{secret}", str(secret)[1:])
    status = secret.stat()
    rewrite(
        stored,
        {"files": {name: digest_files([secret])}, "stats": {name: [status.st_size, status.st_mtime_ns]}},
    )
    before = sorted(path.name for path in tmp_path.iterdir())
    assert store.find("export", {}) is None
    assert store.records("export") == []
    assert not store.run("export", {}, work).was_done
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert secret.read_text() == "key"


def test_a_link_in_a_stage_is_not_published(store: Store, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("graph")  # even of the same content
    stored = store.run("export", {}, work)
    (stored.folder / "m.onnx").unlink()
    (stored.folder / "m.onnx").symlink_to(tmp_path / "secret")
    assert not store.run("export", {}, work).was_done
    assert not (store.output / "m.onnx").is_symlink()


@pytest.mark.parametrize(
    "change",
    [
        {"files": ["m.onnx"]}, {"files": {"m.onnx": 5}}, {"files": None}, {"stats": {}},
        {"stats": {"m.onnx": 5}}, {"stats": {"m.onnx": [1]}}, {"stats": {"m.onnx": ["1", "2"]}},
        {"key": "export"}, {"seconds": "long"}, {"seconds": [1]}, {"peak_bytes": {}},
    ],
)  # fmt: skip
def test_a_record_of_wrong_types_is_none(store: Store, change: dict[str, Any]) -> None:
    stored = store.run("export", {}, work)
    rewrite(stored, change)
    assert store.records("export") == []
    assert not store.run("export", {}, work).was_done


def test_a_record_nested_deeply_is_none(store: Store) -> None:
    stored = store.run("export", {}, work)
    (stored.folder / "stage.json").write_text("[" * 100_000)
    assert store.records("export") == []
    assert not store.run("export", {}, work).was_done


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

    monkeypatch.setattr("os.open", note_open)
    monkeypatch.setattr("os.fsync", note_fsync)
    monkeypatch.setattr("os.replace", note_replace)
    store.run("export", {}, work)
    named = events.index("name export")
    for name in ("m.onnx", "m.onnx.data", "m.onnx.json", "the stage"):
        assert f"sync {name}" in events[:named], events
    assert events.index("name stage.json") < events.index("sync the stage", events.index("name stage.json"))
    assert events[named + 1] == "sync .qcompile"
    assert [one for one in events[named:] if one.startswith("name m")] == [
        "name m.onnx.data", "name m.onnx", "name m.onnx.json",
    ]  # fmt: skip
    assert events[-1] == "sync out"


def test_weights_of_a_former_file_do_not_stay_beside_the_new_one(store: Store) -> None:
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


def test_a_folder_under_a_public_name_is_named(store: Store) -> None:
    (store.output / "m.onnx").mkdir()
    with pytest.raises(StorageError, match=r"m\.onnx: cannot be written") as caught:
        store.run("export", {}, work)
    assert caught.value.data["file"] == store.output / "m.onnx"
    (store.output / "m.onnx").rmdir()
    assert store.run("export", {}, work).was_done
    assert sorted(path.name for path in store.output.iterdir()) == [
        ".qcompile", "m.onnx", "m.onnx.data", "m.onnx.json",
    ]  # fmt: skip
