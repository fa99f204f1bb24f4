"""A recipe and all that it reads lie on another machine as they lay here: its stages have the same keys."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qcompile.cluster.content import ContentStore
from qcompile.cluster.messages import FileRef, Parcel, encode
from qcompile.cluster.parcel import Packed, forget_old, pack, unpack
from qcompile.errors import ArtifactError, MissingFile
from qcompile.files import digest_files, write_json
from qcompile.manifest import Manifest
from qcompile.model.source import digest_source, parse_source
from qcompile.pipeline.recipe import Recipe, read_recipe
from qcompile.pipeline.stages import Made
from qcompile.pipeline.steps import Kind, Step, source_digest, stage_of

MODEL = "import torch\n\ndef build():\n    return torch.nn.Linear(4, 2), (torch.zeros(1, 4),)\n"
METRIC = "def accuracy(outputs, labels):\n    return 1.0\n"
DATA = "import numpy as np\n\ndef samples():\n    yield {'x': np.zeros((1, 4), np.float32)}\n"


@pytest.fixture
def content(tmp_path: Path) -> Iterator[ContentStore]:
    store = ContentStore(tmp_path / "worker")
    yield store
    store.close()


def bring(packed: Packed, content: ContentStore) -> None:
    """As a transfer does, but for the network."""
    for digest, path in packed.paths.items():
        writer = content.writer(digest, path.stat().st_size)
        writer.write(0, path.read_bytes())
        assert writer.is_whole


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


def write_images(folder: Path) -> None:
    from PIL import Image

    for name, color in (("cat/1.png", "red"), ("dog/2.png", "blue"), ("dog/deep/3.png", "green")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), color).save(folder / name)
    (folder / "about.txt").write_text("not read")


def write_onnx(path: Path, *, external: bool = False) -> None:
    weight = onnx.numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
    x = onnx.helper.make_tensor_value_info("x", 1, ["n", 4])
    y = onnx.helper.make_tensor_value_info("y", 1, ["n", 2])
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [x], [y], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path, save_as_external_data=external, location=f"{path.stem}.weights", size_threshold=0)


HEAD = 'version = 1\nname = "tiny"\n'
INT8 = '[[artifact]]\nname = "int8"\ntarget = "onnxruntime"\nprecision = "int8"\n'


def with_images(root: Path, folder: str) -> str:
    write_onnx(root / "recipes" / "net.onnx")
    write_images(root / "data" / "images")
    (root / "data" / "labels.csv").write_text("file,label\ncat/1.png,0\ndog/2.png,1\ndog/deep/3.png,1\n")
    (root / "pre.json").write_text('{"kind": "image"}')
    spelled = f"{folder}data/images?labels={folder}data/labels.csv&preprocessing={folder}pre.json"
    return f'{HEAD}[model]\nsource = "net.onnx"\n[data]\ncalibration = "{spelled}"\n{INT8}'


def with_functions(root: Path, folder: str) -> str:
    (root / "code" / "nets").mkdir(parents=True)
    (root / "code" / "model.py").write_text(MODEL)
    (root / "code" / "nets" / "__init__.py").write_text("")
    (root / "code" / "weights.safetensors").write_bytes(bytes(8))
    (root / "metric").mkdir()
    (root / "metric" / "metric.py").write_text(METRIC)
    (root / "samples").mkdir()
    (root / "samples" / "data.py").write_text(DATA)
    (root / "elsewhere.bin").write_bytes(b"read by the function")
    code = f"{folder}code/model.py:build"
    return (
        f'{HEAD}[model]\nsource = "{code}?weights={folder}code/weights.safetensors"\n'
        f'depends = ["{folder}elsewhere.bin"]\n'
        f'[data]\ncalibration = "{folder}samples/data.py:samples"\n'
        f'depends = ["{folder}elsewhere.bin"]\n{INT8}'
        f'[bench]\nmetric = "{folder}metric/metric.py:accuracy"\nmodels = ["other={code}"]\n'
    )


def with_arrays(root: Path, folder: str) -> str:
    write_onnx(root / "models" / "net.onnx", external=True)
    write_onnx(root / "models" / "other.onnx")
    (root / "arrays").mkdir()
    np.savez(root / "arrays" / "1.npz", x=np.zeros((2, 4), np.float32))
    np.savez(root / "arrays" / "2.npz", x=np.ones((2, 4), np.float32))
    np.savez(root / "test.npz", x=np.zeros((2, 4), np.float32), labels=np.zeros(2, np.int64))
    return (
        f'{HEAD}[model]\nsource = "{folder}models/net.onnx"\n'
        f'[data]\ncalibration = "{folder}arrays"\nevaluation = "npz:{folder}test.npz"\n{INT8}'
        f'[bench]\nmodels = ["other={folder}models/other.onnx"]\n'
    )


def with_hugging_face(root: Path, folder: str) -> str:
    model = root / "hub" / "net"
    model.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "vocab.txt", "spiece.model", "preprocessor_config.json"):
        (model / name).write_text("{}")
    (root / "texts.jsonl").write_text('{"text": "a", "label": 0}\n')
    return (
        f'{HEAD}[model]\nsource = "hf:{folder}hub/net"\npreprocessing = "hf:{folder}hub/net"\n'
        f'[data]\ncalibration = "{folder}texts.jsonl"\n{INT8}'
    )


def with_plugins(root: Path, folder: str) -> str:
    write_onnx(root / "recipes" / "net.onnx")
    (root / "plugin.so").write_bytes(b"native code")
    (root / "timing.cache").write_bytes(b"times")
    np.savez(root / "x.npz", x=np.zeros((2, 4), np.float32))
    return (
        f'{HEAD}[model]\nsource = "net.onnx"\nsimplify = false\n[data]\ncalibration = "{folder}x.npz"\n'
        '[[artifact]]\nname = "gpu"\ntarget = "tensorrt-rtx"\nprecision = "fp16"\ngpus = ["sm86"]\n'
        f'[artifact.tensorrt]\nplugins = ["{folder}plugin.so"]\ntiming_cache = "{folder}timing.cache"\n'
    )


RECIPES: dict[str, Callable[[Path, str], str]] = {
    "images": with_images,
    "functions": with_functions,
    "arrays": with_arrays,
    "hf": with_hugging_face,
    "plugins": with_plugins,
}


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
    (tmp_path / "models" / "net.onnx.sig").write_text("signature")
    names = {one.name for one in pack(read_recipe(path)).parcel.files}
    assert names == {
        "recipe.toml", "models/net.onnx", "models/net.weights", "models/net.onnx.sig", "models/other.onnx",
        "arrays/1.npz", "arrays/2.npz", "test.npz",
    }  # fmt: skip


def test_digests_are_kept_while_a_file_stays_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(with_arrays(tmp_path, ""))
    for one in tmp_path.rglob("*"):
        os.utime(one, (10**9, 10**9))
    monkeypatch.setattr("qcompile.cluster.digests._SETTLED_NS", -(10**10))
    first = pack(read_recipe(path))
    read: list[Path] = []

    def noted(paths: list[Path]) -> str:
        read.extend(paths)
        return digest_files(paths)

    monkeypatch.setattr("qcompile.cluster.digests.digest_files", noted)
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


def test_folders_of_recipes_are_forgotten_after_two_weeks(tmp_path: Path, content: ContentStore) -> None:
    ref = packed_files(content, ["recipe.toml"], "recipe.toml")
    folder = unpack(content, ref, tmp_path / "recipes").parent
    forget_old(tmp_path / "recipes")
    assert folder.is_dir()
    os.utime(folder, (10**9, 10**9))
    forget_old(tmp_path / "recipes")
    assert not folder.exists()
    assert content.path(ref.digest)


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
