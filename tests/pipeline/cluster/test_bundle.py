"""Files in chunks come back whatever the cut; a stage in a process answers, and says why it ended."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qcompile.errors import ArtifactError
from qcompile.pipeline.cluster import bundle
from qcompile.pipeline.cluster.bundle import (
    Bundle,
    FileRef,
    MissingChunk,
    StageKilled,
    StoreCarrier,
    bundle_of_recipe,
    bundle_of_stage,
    read_index,
    write_files,
)
from qcompile.pipeline.cluster.plugin import Cancelled, _in_process
from qcompile.pipeline.recipe.recipe import read_recipe


def of_stage(folder: Path, contents: list[bytes]) -> bundle.LocalBundle:
    folder.mkdir(parents=True, exist_ok=True)
    digests = {}
    for number, content in enumerate(contents):
        (folder / f"{number}.bin").write_bytes(content)
        digests[f"{number}.bin"] = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return bundle_of_stage(folder, "0.bin", digests)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(contents=st.lists(st.binary(max_size=40), min_size=1, max_size=5), size=st.integers(1, 16))
def test_files_come_back_whatever_the_chunks(
    contents: list[bytes], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bundle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle, "CHUNK_BYTES", size)
        made = of_stage(folder / "made", contents)
        (index_key, index), *chunks = made.items()
        assert [key for key, _ in chunks] == made.bundle.keys()[1:]
        assert all(0 < len(chunk) <= size for _, chunk in chunks)
        read = read_index(index, index_key.removeprefix("qcompile-"))
        write_files(read, iter([chunk for _, chunk in chunks]), folder / "there")
    assert [(folder / f"there/{number}.bin").read_bytes() for number in range(len(contents))] == contents


@pytest.mark.parametrize("damaged", [b"", b"abcdeX", b"abc"])
def test_a_damaged_or_short_chunk_gets_no_name(damaged: bytes, tmp_path: Path) -> None:
    made = of_stage(tmp_path / "made", [b"abcdef"])
    with pytest.raises(ArtifactError, match=r"0\.bin: has another digest"):
        write_files(made.bundle, iter([damaged] if damaged else []), tmp_path / "there")


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../up", "", ".", "a\\b", "a\0b", "a//b"])
def test_an_index_names_files_inside_its_folder(name: str) -> None:
    index = msgspec.json.encode(Bundle((FileRef(name, "sha256:0", 1),)))
    with pytest.raises(ArtifactError, match="a name inside is required"):
        read_index(index, hashlib.sha256(index).hexdigest())
    with pytest.raises(ArtifactError, match="arrived damaged"):
        read_index(index, "0" * 64)


def test_a_recipe_brings_the_files_around_it(tmp_path: Path) -> None:
    """Absolute and relative paths mean the same there."""
    found = []
    for place in (tmp_path / "one", tmp_path / "two"):
        (place / "recipes").mkdir(parents=True)
        (place / "net.py").write_text("def build(): ...")
        (place / "samples.npz").write_bytes(b"samples")
        model = "../net.py:build" if place.name == "one" else f"{place / 'net.py'}:build"
        path = place / "recipes/recipe.toml"
        path.write_text(
            f'version = 1\nname = "tiny"\n[model]\nsource = "{model}"\n[data]\n'
            'calibration = "../samples.npz"\n[[artifact]]\nname = "a"\ntarget = "onnxruntime"\n'
        )
        found.append(bundle_of_recipe(read_recipe(path)))
    names = [[file.name for file in one.bundle.files] for one in found]
    assert names[0] == names[1] == ["recipes/recipe.toml", "net.py", "samples.npz"]
    assert found[0].bundle.recipe == "recipes/recipe.toml"


def test_a_store_keeps_chunks_by_their_keys(tmp_path: Path) -> None:
    for url in (str(tmp_path / "store"), "memory://chunks"):
        carrier = StoreCarrier(url)
        with pytest.raises(MissingChunk):
            carrier.get("qcompile-0")
        carrier.put("qcompile-0", b"bytes")
        carrier.put("qcompile-0", b"other")  # the same key means the same bytes
        assert StoreCarrier(url).get("qcompile-0") == b"bytes"


@pytest.fixture
def service() -> Any:
    """What a stage's process needs of a worker."""
    return SimpleNamespace(name="one", cores=1, worker=SimpleNamespace(nanny=None))


def test_a_process_answers_what_the_machine_has(service: Any) -> None:
    assert _in_process(service, {"do": "look"}, lambda: None, lambda *_: None)["onnxruntime"] > 0


def test_a_process_that_fails_says_its_last_lines(service: Any, tmp_path: Path) -> None:
    question = {"do": "find", "request": {"nothing": 1}, "folder": str(tmp_path)}
    with pytest.raises(
        StageKilled, match=r"worker one: the process of a stage ended \(exit code 1\)"
    ) as seen:
        _in_process(service, question, lambda: None, lambda *_: None)
    assert "ValidationError" in str(seen.value)


def test_a_process_that_nobody_wants_ends(service: Any) -> None:
    def check() -> None:
        raise Cancelled

    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(Cancelled):
        _in_process(service, {"do": "look"}, check, lambda *_: None)
    deadline = time.monotonic() + 10
    while {child.pid for child in psutil.Process().children()} - before:
        assert time.monotonic() < deadline
        time.sleep(0.02)
