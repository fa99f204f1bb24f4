"""A parcel is laid out whole or not at all, in its folder and nowhere else."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from carried_recipes import bring, with_arrays
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qcompile.cluster.files.content import ContentStore
from qcompile.cluster.files.parcel import Packed, forget_old, pack, unpack
from qcompile.cluster.messages import FileRef, Parcel, encode
from qcompile.errors import ArtifactError
from qcompile.files import digest_files
from qcompile.pipeline.recipe import read_recipe


@pytest.fixture
def content(tmp_path: Path) -> Iterator[ContentStore]:
    store = ContentStore(tmp_path / "worker")
    yield store
    store.close()


def packed_files(content: ContentStore, names: list[str], recipe: str) -> FileRef:
    def brought(name: str, data: bytes, folder: Path) -> FileRef:
        path = folder / "file"
        path.write_bytes(data)
        ref = FileRef(name, digest_files([path]), len(data))
        content.writer(ref.digest, len(data)).write(0, data)
        return ref

    folder = content.folder.parent
    files = tuple(brought(name, name.encode("utf-8", "replace"), folder) for name in names)
    return brought("parcel.json", encode(Parcel(recipe, files)), folder)


ESCAPES = [
    "..",
    "../x",
    "a/../../x",
    "/etc/x",
    "a//b",
    "a/./b",
    ".",
    "",
    "a\\..\\b",
    "a\0b",
    "a/",
    "x/..",
    "//x",
]


@pytest.mark.parametrize("name", ESCAPES)
def test_names_that_lead_out_of_the_folder_are_refused(
    name: str, tmp_path: Path, content: ContentStore
) -> None:
    ref = packed_files(content, ["recipe.toml", name], "recipe.toml")
    with pytest.raises(ArtifactError, match="a name below its folder is required"):
        unpack(content, ref, tmp_path / "recipes")
    assert not list((tmp_path / "recipes").glob("*")) if (tmp_path / "recipes").exists() else True


PARTS = st.sampled_from(["..", ".", "", "a", "b", "~", "-", "c:", "\\", "é", " "])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(st.lists(PARTS, min_size=1, max_size=4).map("/".join), min_size=1, max_size=3))
def test_whatever_the_names_nothing_is_written_elsewhere(
    names: list[str], tmp_path: Path, content: ContentStore
) -> None:
    shutil.rmtree(tmp_path / "place", ignore_errors=True)
    (tmp_path / "place").mkdir()
    folder = tmp_path / "place" / "recipes"
    before = {path for path in tmp_path.rglob("*") if "worker" not in path.parts}
    try:
        path = unpack(content, packed_files(content, names, names[0]), folder)
    except ArtifactError:
        path = folder / "refused"
    assert path.resolve().is_relative_to(folder.resolve())
    after = {
        path for path in tmp_path.rglob("*") if "worker" not in path.parts and folder not in path.parents
    }
    assert after - before <= {folder}


def test_a_list_that_is_none_is_refused(tmp_path: Path, content: ContentStore) -> None:
    for data in (b"", b"[]", b'{"recipe": "r", "files": []}', b"[" * 100_000, b'{"recipe": 3, "files": []}'):
        path = tmp_path / "list"
        path.write_bytes(data)
        ref = FileRef("parcel.json", digest_files([path]), len(data))
        content.writer(ref.digest, len(data)).write(0, data)
        with pytest.raises(ArtifactError):
            unpack(content, ref, tmp_path / "recipes")


def test_a_file_that_was_changed_in_the_folder_is_put_back(tmp_path: Path, content: ContentStore) -> None:
    """Whoever may write to everything writes through a read-only link into the store."""
    path = tmp_path / "recipe.toml"
    path.write_text(with_arrays(tmp_path, ""))
    packed = pack(read_recipe(path))
    bring(packed, content)
    laid = unpack(content, packed.ref, tmp_path / "recipes").parent
    inside = laid / "test.npz"
    assert not inside.stat().st_mode & 0o222
    os.chmod(inside, 0o644)
    inside.write_bytes(b"changed")
    (laid / "arrays" / "1.npz").unlink()
    [damaged] = content.missing(packed.paths)
    assert damaged == digest_files([tmp_path / "test.npz"])
    with pytest.raises(ArtifactError, match="must be brought first"):
        unpack(content, packed.ref, tmp_path / "recipes")
    bring(Packed(packed.parcel, packed.ref, {damaged: packed.paths[damaged]}), content)
    assert unpack(content, packed.ref, tmp_path / "recipes").parent == laid
    for one in packed.parcel.files:
        assert digest_files([laid / one.name]) == one.digest


UNPACK = """
import os, signal, sys
from pathlib import Path
from qcompile.cluster.files import parcel
from qcompile.cluster.files.content import ContentStore
from qcompile.cluster.messages import FileRef

class Killed(ContentStore):
    def link(self, digest, target):
        super().link(digest, target)
        if target.name == "b":
            os.kill(os.getpid(), signal.SIGKILL)

parcel.unpack(Killed(Path(sys.argv[1])), FileRef("parcel.json", sys.argv[2], 0), Path(sys.argv[3]))
"""


def test_a_kill_in_the_middle_leaves_no_folder_of_a_recipe(tmp_path: Path, content: ContentStore) -> None:
    ref = packed_files(content, ["a", "b", "c"], "a")
    folder = tmp_path / "recipes"
    command = [sys.executable, "-c", UNPACK, str(tmp_path / "worker"), ref.digest, str(folder)]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL
    final = folder / ref.digest.removeprefix("sha256:")
    assert list(folder.iterdir())  # what it had begun
    assert not final.exists()
    forget_old(folder)
    assert not list(folder.iterdir())
    assert unpack(content, ref, folder) == final / "a"
    assert sorted(path.name for path in final.iterdir()) == ["a", "b", "c"]


def test_folders_of_recipes_are_forgotten_after_two_weeks(tmp_path: Path, content: ContentStore) -> None:
    ref = packed_files(content, ["recipe.toml"], "recipe.toml")
    folder = unpack(content, ref, tmp_path / "recipes").parent
    forget_old(tmp_path / "recipes")
    assert folder.is_dir()
    os.utime(folder, (10**9, 10**9))
    forget_old(tmp_path / "recipes")
    assert not folder.exists()
    assert content.path(ref.digest)
