"""A recipe and all that it reads lie on another machine as they lay here: its stages have the same keys."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from carried_recipes import RECIPES, bring, with_arrays, with_functions, write_onnx

from qcompile.artifact.manifest import Manifest
from qcompile.cluster.files.content import ContentStore
from qcompile.cluster.files.parcel import pack, unpack
from qcompile.errors import MissingFile
from qcompile.files import digest_files, write_json
from qcompile.model.source import digest_source, parse_source
from qcompile.pipeline.recipe import Recipe, read_recipe
from qcompile.pipeline.stages import Made
from qcompile.pipeline.steps import Kind, Step, source_digest, stage_of


@pytest.fixture
def content(tmp_path: Path) -> Iterator[ContentStore]:
    store = ContentStore(tmp_path / "worker")
    yield store
    store.close()


def stages(recipe: Recipe, model: Path, source: str) -> dict[str, object]:
    """The key of every stage; files of earlier stages are the same everywhere."""
    made = Made(model, digest_files([model]))
    kinds: tuple[Kind, ...] = ("export", "simplify", "calibrate", "quantize", "build", "bench")
    keys: dict[str, object] = {}
    for kind in kinds:
        artifact = recipe.artifact[0].name if kind in ("quantize", "build") else ""
        if kind == "bench" and recipe.bench is None:
            continue
        files = {"model": made, "ranges": made} if kind in ("quantize", "build") else {"model": made}
        step = Step(kind=kind, artifact=artifact, source_digest=source, files=files, built={"a": made})
        stage = stage_of(recipe, step, model.parent)
        keys[kind] = stage and json.loads(json.dumps(stage.key))
    return keys


@pytest.mark.parametrize("spelled", ["relative", "absolute"])
@pytest.mark.parametrize("kind", RECIPES)
def test_stages_have_the_same_keys_on_another_machine(
    kind: str, spelled: str, tmp_path: Path, content: ContentStore
) -> None:
    root = tmp_path / "client"
    path = root / "recipes" / "recipe.toml"
    path.parent.mkdir(parents=True)
    path.write_text(RECIPES[kind](root, "../" if spelled == "relative" else f"{root}/"))
    write_onnx(tmp_path / "given" / "tiny.onnx")
    recipe = read_recipe(path)
    source = source_digest(recipe)
    before = stages(recipe, tmp_path / "given" / "tiny.onnx", source)
    packed = pack(recipe)
    bring(packed, content)
    root.rename(tmp_path / "gone")  # a path that leads back would be found otherwise
    unpacked = read_recipe(unpack(content, packed.ref, tmp_path / "recipes"))
    assert source_digest(unpacked) == source
    assert stages(unpacked, tmp_path / "given" / "tiny.onnx", source) == before
    assert before["export"]
    assert str(root) not in unpacked.path.read_text()
    assert not [one for one in packed.parcel.files if one.name.endswith("about.txt")]


def test_a_recipe_that_is_not_what_its_file_says_is_carried_as_it_is(
    tmp_path: Path, content: ContentStore
) -> None:
    """A sweep changes recipes in memory; `trust` is the user's, and in no file."""
    from dataclasses import replace

    path = tmp_path / "recipe.toml"
    path.write_text(with_arrays(tmp_path, ""))
    recipe = read_recipe(path)
    changed = replace(
        recipe,
        name="other",
        model=replace(recipe.model, trust=True),
        calibrate=replace(recipe.calibrate, samples=3),
    )
    packed = pack(changed)
    bring(packed, content)
    unpacked = read_recipe(unpack(content, packed.ref, tmp_path / "recipes"))
    assert replace(unpacked, path=changed.path) == changed
    same = pack(recipe)
    bring(same, content)
    assert unpack(content, same.ref, tmp_path / "recipes").read_text() == path.read_text()


def test_external_data_and_manifests_go_along(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(with_arrays(tmp_path, ""))
    names = {one.name for one in pack(read_recipe(path)).parcel.files}
    assert names == {
        "recipe.toml", "models/net.onnx", "models/net.weights", "models/other.onnx",
        "arrays/1.npz", "arrays/2.npz", "test.npz",
    }  # fmt: skip


def test_digests_are_kept_while_a_file_stays_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(with_arrays(tmp_path, ""))
    for one in tmp_path.rglob("*"):
        os.utime(one, (10**9, 10**9))
    monkeypatch.setattr("qcompile.cluster.files.digests._SETTLED_NS", -(10**10))
    first = pack(read_recipe(path))
    read: list[Path] = []

    def noted(paths: list[Path]) -> str:
        read.extend(paths)
        return digest_files(paths)

    monkeypatch.setattr("qcompile.cluster.files.digests.digest_files", noted)
    assert pack(read_recipe(path)).parcel == first.parcel
    assert not read
    (tmp_path / "test.npz").write_bytes(b"another")
    assert pack(read_recipe(path)).parcel != first.parcel
    assert read == [tmp_path / "test.npz"]


def test_lists_that_nothing_uses_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(with_arrays(tmp_path, ""))
    first = pack(read_recipe(path), folder=tmp_path / "kept")
    listed = {first.paths[first.ref.digest], first.paths[digest_files([path])]}
    assert set((tmp_path / "kept" / "parcels").iterdir()) == listed
    for one in listed:
        os.utime(one, (10**9, 10**9))
    np.savez(tmp_path / "test.npz", x=np.ones((2, 4), np.float32))
    second = pack(read_recipe(path), folder=tmp_path / "kept")
    assert second.ref != first.ref
    assert not (tmp_path / "out").exists()
    assert second.paths[second.ref.digest].is_file()
    assert not first.paths[first.ref.digest].exists()


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(with_arrays(tmp_path, ""))
    recipe = read_recipe(path)
    (tmp_path / "test.npz").unlink()
    with pytest.raises(MissingFile, match=r"test\.npz"):
        pack(recipe)


def test_a_model_by_function_has_the_digest_of_what_lies_beside_it(
    tmp_path: Path, content: ContentStore
) -> None:
    """An artifact that lies beside the function is no part of its digest, here and there."""
    path = tmp_path / "client" / "recipe.toml"
    path.parent.mkdir()
    path.write_text(with_functions(path.parent, ""))
    (path.parent / "code" / "net.onnx").write_bytes(b"made by an earlier run")
    manifest = Manifest(kind="onnx", stage="export", digest="sha256:" + "0" * 64)
    write_json(path.parent / "code" / "net.onnx.json", manifest.as_json())
    recipe = read_recipe(path)
    packed = pack(recipe)
    bring(packed, content)
    laid = unpack(content, packed.ref, tmp_path / "recipes").parent
    spelled = "code/model.py:build"
    assert digest_source(parse_source(spelled, base=laid)) == digest_source(
        parse_source(spelled, base=path.parent)
    )
