from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qcompile.artifact import (
    Artifact,
    Check,
    Manifest,
    commit,
    load_artifact,
    read_manifest,
    size_bytes,
    tool_versions,
)
from qcompile.errors import ArtifactError, InvalidOption, MissingFile
from qcompile.files import (
    digest_files,
    manifest_path,
    remove_stale,
    require_file,
    write_json,
    write_text,
    writing,
)
from qcompile.tensors import ModelIO, TensorInfo

MANIFEST = Manifest(
    kind="engine",
    stage="build",
    target="tensorrt-rtx",
    precision="int8",
    io=ModelIO((TensorInfo("x", "float32", ("batch", 3)),), (TensorInfo("y", "int64", ()),)),
    sources={"model": "sha256:aa"},
    tools={"onnx": "1.23"},
    device={"gpus": ["sm86"]},
    options={"threads": 2},
    proof={"layers": {"int8": 5}},
    checks=(Check("outputs", True, "snr 40 dB"), Check("layers", False, "2 of 5")),
    warnings=("größer als nötig",),
)


def make(path: Path, content: bytes = b"plan", *, data: bytes = b"") -> Artifact:
    """Write an artifact as a stage does."""
    with writing(path) as temporary:
        temporary.write_bytes(content)
        if data:
            temporary.with_name(temporary.name + ".data").write_bytes(data)
        manifest = commit(temporary, MANIFEST)
    return Artifact(path, manifest)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_side_files_appear_first_and_the_manifest_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends the process in between, no manifest lies beside a file that is not its own."""
    moved: list[str] = []
    replace = os.replace

    def note(source: Path, target: Path) -> None:
        replace(source, target)
        if Path(target).parent == tmp_path:
            moved.append(Path(target).name)

    monkeypatch.setattr("os.replace", note)
    make(tmp_path / "m.onnx", data=b"weights")
    assert moved == ["m.onnx.data", "m.onnx", "m.onnx.json"]


def test_files_appear_only_when_the_block_is_over(tmp_path: Path) -> None:
    final = tmp_path / "deep/er/model.engine"
    with writing(final) as temporary:
        temporary.write_text("plan")
        assert temporary.name == final.name
        assert not final.exists()
    assert final.read_text() == "plan"
    assert names(final.parent) == ["model.engine"]


def test_an_error_leaves_nothing_new_and_the_old_file_whole(tmp_path: Path) -> None:
    final = tmp_path / "model.engine"
    final.write_text("old")

    def fail() -> None:
        with writing(final) as temporary:
            temporary.write_text("new")
            temporary.with_name("model.engine.data").write_text("side")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert names(tmp_path) == ["model.engine"]
    assert final.read_text() == "old"


def test_side_files_move_in_with_the_file(tmp_path: Path) -> None:
    artifact = make(tmp_path / "model.onnx", b"graph", data=b"weights")
    assert names(tmp_path) == ["model.onnx", "model.onnx.data", "model.onnx.json"]
    assert (tmp_path / "model.onnx.data").read_bytes() == b"weights"
    assert load_artifact(tmp_path / "model.onnx") == artifact
    assert size_bytes(tmp_path / "model.onnx") == artifact.manifest.size_bytes == len(b"graphweights")


def test_an_artifact_made_again_without_side_file_is_whole(tmp_path: Path) -> None:
    make(tmp_path / "model.onnx", b"graph", data=b"weights")
    again = make(tmp_path / "model.onnx", b"small graph")
    assert load_artifact(tmp_path / "model.onnx") == again


def test_a_folder_is_no_output_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="is a folder; a file name is required"), writing(tmp_path):
        pytest.fail("the block must not run")


def test_an_output_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOption, match="output"), writing(tmp_path / "file/model.onnx"):
        pytest.fail("the block must not run")


def test_a_manifest_reads_back(tmp_path: Path) -> None:
    artifact = make(tmp_path / "model.engine")
    found = read_manifest(tmp_path / "model.engine")
    assert found == artifact.manifest
    assert found.digest == f"sha256:{hashlib.sha256(b'plan').hexdigest()}"
    assert found.io == MANIFEST.io
    assert (found.checks, found.warnings) == (MANIFEST.checks, MANIFEST.warnings)


def test_a_manifest_of_an_older_version_is_read_in_todays_words(tmp_path: Path) -> None:
    with writing(tmp_path / "m.engine") as path:
        path.write_bytes(b"plan")
        proof = {"layers_by_precision": {"untold": {"CONVOLUTION": 2}, "fp16": {}}, "untold": 2}
        commit(path, Manifest(kind="engine", stage="build", proof=proof))
    manifest = read_manifest(tmp_path / "m.engine")
    assert manifest is not None
    assert manifest.proof["layers_by_precision"] == {"unreported": {"CONVOLUTION": 2}, "fp16": {}}
    assert manifest.proof["untold"] == 2


def test_a_file_without_manifest_has_none_and_is_no_artifact(tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    path.write_bytes(b"plan")
    assert read_manifest(path) is None
    with pytest.raises(ArtifactError, match=r"has no manifest \(model\.engine\.json\)"):
        load_artifact(path)


@pytest.mark.parametrize("side", ["", ".data"])
def test_a_file_changed_after_it_was_made_is_detected(tmp_path: Path, side: str) -> None:
    path = tmp_path / "model.onnx"
    make(path, b"graph", data=b"weights")
    changed = tmp_path / f"model.onnx{side}"
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    with pytest.raises(ArtifactError, match="differs from its manifest's") as caught:
        load_artifact(path)
    assert caught.value.data["file"] == path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"schema_version": 1}',
        '{"schema_version": 99}',
    ],
)
def test_a_damaged_or_foreign_manifest_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.engine"
    path.write_bytes(b"plan")
    manifest_path(path).write_text(text)
    with pytest.raises(ArtifactError, match=r"model\.engine\.json"):
        load_artifact(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("checks", [{"nam": "x"}]),
        ("warnings", 5),
        ("io", ["x"]),
        ("io", {"inputs": [{"name": "x", "dtype": "float32", "shape": "1x3"}], "outputs": []}),
    ],
)
def test_a_manifest_with_a_damaged_value_is_named(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "model.engine"
    make(path)
    written = json.loads(manifest_path(path).read_text())
    write_json(manifest_path(path), {**written, key: value})
    with pytest.raises(ArtifactError, match=r"model\.engine\.json"):
        read_manifest(path)


def test_text_and_json_are_written_whole(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "größer\n")
    write_json(tmp_path / "b.json", {"b": 1, "a": "ü"})
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "größer\n"
    assert (tmp_path / "b.json").read_text(encoding="utf-8") == '{\n  "b": 1,\n  "a": "ü"\n}\n'
    with pytest.raises(TypeError):
        write_json(tmp_path / "b.json", {"a": object()})
    assert names(tmp_path) == ["a.txt", "b.json"]
    assert json.loads((tmp_path / "b.json").read_text(encoding="utf-8")) == {"b": 1, "a": "ü"}


def test_a_digest_depends_on_content_and_order(tmp_path: Path) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    one.write_bytes(b"a")
    two.write_bytes(b"b")
    assert digest_files([one, two]) != digest_files([two, one])
    before = digest_files([one, two])
    two.write_bytes(b"c")
    assert digest_files([one, two]) != before


def test_a_missing_file_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "resnet18.onnx").write_text("")
    with pytest.raises(MissingFile, match="does not exist") as caught:
        require_file(tmp_path / "resnet81.onnx", what="model")
    assert caught.value.hint == f"did you mean {tmp_path / 'resnet18.onnx'}?"
    with pytest.raises(MissingFile) as caught:
        require_file(tmp_path / "none" / "a.onnx")
    assert caught.value.hint == f"the folder {tmp_path / 'none'} does not exist either"
    with pytest.raises(MissingFile, match="is a folder; a file is required"):
        require_file(tmp_path)


def test_only_leftovers_of_dead_processes_are_removed(tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True)
    pid = int(dead.stdout)
    for name in (f".qcompile-tmp-{pid}-folder", f".qcompile-tmp-{os.getpid()}-folder"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_text("half")
    (tmp_path / f".qcompile-tmp-{pid}-model.onnx").write_text("half")
    (tmp_path / ".qcompile-tmp-notes").write_text("not ours")
    (tmp_path / "model.onnx").write_text("whole")
    remove_stale(tmp_path)
    assert names(tmp_path) == [f".qcompile-tmp-{os.getpid()}-folder", ".qcompile-tmp-notes", "model.onnx"]


def test_tool_versions_leave_out_what_is_absent() -> None:
    versions = tool_versions("numpy", "no-such-package")
    assert list(versions) == ["qcompile", "numpy"]
