"""Artifacts and their manifests: files appear whole or not at all, and a manifest may come from anybody."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qcompile import __version__
from qcompile.core import artifact
from qcompile.core.artifact import (
    Check,
    Manifest,
    cached_digest,
    checked_input,
    commit,
    is_manifest,
    load_artifact,
    read_manifest,
    size_bytes,
    tool_versions,
    trust_content,
    trusting_content,
)
from qcompile.core.files import (
    digest_files,
    manifest_path,
    require_file,
    write_json,
    write_text,
    writing,
)
from qcompile.errors import ArtifactError, InvalidOption, MissingFile
from qcompile.spec.tensors import ModelIO, TensorInfo

MANIFEST = Manifest(
    kind="engine",
    stage="build",
    target="tensorrt-rtx",
    precision="int8",
    io=ModelIO((TensorInfo("x", "float32", ("batch", 3)),), (TensorInfo("y", "int64", ()),)),
    sources={"model": "sha256:aa"},
    tools={"onnx": "1.23"},
    device={"gpus": ["sm86"]},
    options={"plugins": [], "device": None},
    proof={"layers_by_precision": {"int8": {"Conv": 5}}, "profiles": [{"x": {"min": [1, 3]}}]},
    checks=(Check("outputs", True, "snr 40 dB"), Check("layers", False, "2 of 5")),
    warnings=("größer als nötig",),
)


def make(path: Path, content: bytes = b"graph", *, data: bytes = b"") -> Path:
    """Write an artifact as a stage does."""
    with writing(path) as temporary:
        temporary.write_bytes(content)
        if data:
            temporary.with_name(temporary.name + ".data").write_bytes(data)
        commit(temporary, MANIFEST)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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


def test_side_files_move_in_with_the_file_and_a_file_made_again_needs_none(tmp_path: Path) -> None:
    path = make(tmp_path / "model.onnx", data=b"weights")
    assert names(tmp_path) == ["model.onnx", "model.onnx.data", "model.onnx.json"]
    assert (tmp_path / "model.onnx.data").read_bytes() == b"weights"
    assert size_bytes(path) == load_artifact(path).manifest.size_bytes == len(b"graphweights")
    again = make(path, b"small graph")
    assert load_artifact(path).manifest.digest == digest_files([again])


def test_a_folder_a_place_below_a_file_and_code_or_data_of_a_user_are_no_output(tmp_path: Path) -> None:
    for name in ("file", "net.py", "samples.npz"):
        (tmp_path / name).touch()
    refused = {tmp_path: "is a folder; a file name is required", tmp_path / "file/model.onnx": "output"}
    refused |= {tmp_path / name: "would replace code or data" for name in ("net.py", "samples.npz")}
    for path, words in refused.items():
        with pytest.raises(InvalidOption, match=words), writing(path):
            pytest.fail("the block must not run")
    (tmp_path / "m.onnx").touch()
    with pytest.raises(InvalidOption, match="would replace a model"):
        write_json(tmp_path / "m.onnx", {})


def test_a_manifest_reads_back(tmp_path: Path) -> None:
    found = read_manifest(make(tmp_path / "model.engine", b"plan"))
    assert found is not None
    assert found.digest == f"sha256:{hashlib.sha256(b'plan').hexdigest()}"
    assert replace(found, digest="", size_bytes=0) == MANIFEST


def test_a_file_without_manifest_has_none_and_is_no_artifact(tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    path.write_bytes(b"plan")
    assert read_manifest(path) is None
    with pytest.raises(ArtifactError, match=r"has no manifest \(model\.engine\.json\)"):
        load_artifact(path)


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


def test_tool_versions_leave_out_what_is_absent() -> None:
    versions = tool_versions("numpy", "no-such-package")
    assert list(versions) == ["qcompile", "numpy"]


def test_versions_are_those_that_importlib_reads() -> None:
    names = {found.name for found in importlib.metadata.distributions()}
    assert len(names) > 30
    assert tool_versions(*names) == {
        "qcompile": __version__, **{name: importlib.metadata.version(name) for name in names},
    }  # fmt: skip


def test_what_is_missing_or_has_no_manifest_or_fits_it(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"model .* does not exist"):
        checked_input(tmp_path / "m.onnx", what="model")
    plain = tmp_path / "plain.onnx"
    plain.write_bytes(b"of another tool")
    assert checked_input(plain) == plain
    made = make(tmp_path / "m.onnx", data=b"weights")
    assert checked_input(made) == made


@pytest.mark.parametrize("side", ["", ".data"])
def test_a_change_is_refused_with_both_digests_and_the_ways_out(tmp_path: Path, side: str) -> None:
    made = make(tmp_path / "m.onnx", data=b"weights")
    said = load_artifact(made).manifest.digest
    checked_input(made)  # it is known now
    (tmp_path / f"m.onnx{side}").write_bytes(b"other")
    found = digest_files([made, tmp_path / "m.onnx.data"])
    for read in (checked_input, load_artifact):
        with pytest.raises(ArtifactError) as caught:
            read(made)
        differs = f"{made}: digest {found[:19]}… differs from its manifest's {said[:19]}…"
        assert (caught.value.message, caught.value.data["file"]) == (differs, made)
        assert caught.value.hint.endswith(
            f"make it again, or remove {manifest_path(made)} if the change was meant"
        )
    manifest_path(made).unlink()
    checked_input(made)


def test_a_settled_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, read = make(tmp_path / "m.onnx"), []
    monkeypatch.setattr(artifact, "digest_files", lambda paths: read.append(paths) or digest_files(paths))
    monkeypatch.setattr(artifact, "_SETTLED_NS", -(10**12))  # as if time had passed
    for _ in range(3):
        checked_input(made)
    assert len(read) == 1
    before = made.stat()
    made.write_bytes(b"grapH")
    while made.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of a file system is coarse
        os.utime(made)
    os.utime(made, ns=(1, before.st_mtime_ns))  # of the size it had, and of the time, as far as it says
    with pytest.raises(ArtifactError):
        checked_input(made)
    assert len(read) == 2


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path) -> None:
    """Within the resolution of the clock, another content has the same time."""
    made = make(tmp_path / "m.onnx")
    before = cached_digest([made])
    for number in range(50):
        made.write_bytes(b"%05d" % number)
        assert cached_digest([made]) == digest_files([made]) != before


def test_what_the_user_accepts_is_these_very_bytes(tmp_path: Path) -> None:
    made = make(tmp_path / "m.onnx")
    made.write_bytes(b"changed")
    trust_content(made)
    checked_input(made)
    made.write_bytes(b"changed again")
    with pytest.raises(ArtifactError):
        checked_input(made)
    trust_content(tmp_path / "none.onnx")  # its reader says that it is missing


def test_looking_at_a_file_does_not_accept_it(tmp_path: Path) -> None:
    made = make(tmp_path / "m.onnx")
    made.write_bytes(b"changed")
    with trusting_content(made):
        checked_input(made)
    with pytest.raises(ArtifactError):
        checked_input(made)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact with its manifest."""
    return make(tmp_path_factory.mktemp("typed") / "m.engine")


@pytest.fixture(scope="module")
def written(engine: Path) -> dict[str, Any]:
    """Its manifest, as JSON."""
    found: dict[str, Any] = json.loads(manifest_path(engine).read_text())
    return found


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of JSON with another value at a path."""
    if not path:
        return new
    if isinstance(value, dict):
        return value | {path[0]: changed(value.get(path[0]), path[1:], new)}
    return [changed(one, path[1:], new) if index == path[0] else one for index, one in enumerate(value)]


def paths(value: Any, *at: Any) -> list[tuple[Any, ...]]:
    """Where JSON has values: at every key and index, at every depth."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at] * bool(at) + [path for key, one in inner for path in paths(one, *at, key)]


WRONG: list[tuple[tuple[Any, ...], Any]] = [
    (("kind",), 5), (("kind",), None), (("stage",), ["build"]), (("target",), {}), (("precision",), 8),
    (("schema_version",), "1"), (("schema_version",), None), (("schema_version",), True),
    (("io",), 5), (("io", "inputs"), None), (("io", "inputs", 0, "name"), 5),
    (("io", "inputs", 0, "shape"), [1.5]), (("io", "inputs", 0, "shape"), [-3]),
    (("io", "inputs", 0, "shape"), [[1]]), (("io", "inputs", 0, "dtype"), "__class__"),
    (("io", "inputs", 0, "preprocessing"), 5), (("io", "outputs", 0), "y"),
    (("sources",), []), (("sources", "model"), 5), (("tools",), "onnx"), (("tools", "onnx"), None),
    (("device",), []), (("device", "gpus"), "sm86"), (("device", "gpus"), [86]),
    (("options",), None), (("options", "plugins"), 5), (("options", "plugins"), "libx.so"),
    (("options", "device"), "cuda"), (("options", "strip_weights"), "no"),
    (("proof",), 5), (("proof", "layers_by_precision"), 5),
    (("proof", "layers_by_precision", "int8"), ["Conv"]),
    (("proof", "layers_by_precision", "int8", "Conv"), "five"), (("proof", "left_in_float"), ["conv1"]),
    (("proof", "profiles"), {"x": 1}), (("proof", "provider"), 7),
    (("checks",), None), (("checks", 0, "passed"), "yes"), (("checks", 0), []), (("warnings",), "all well"),
    (("warnings", 0), 5), (("digest",), 5), (("size_bytes",), "many"), (("size_bytes",), -1),
    (("warnings", 0), "\ud800"), (("proof", "note"), {"\udfff": 1}),
    (("checks",), [{"nam": "x"}]), (("io",), ["x"]), (("io", "inputs", 0, "shape"), "1x3"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_a_wrong_type_is_named(
    engine: Path, written: dict[str, Any], path: tuple[Any, ...], value: Any
) -> None:
    manifest_path(engine).write_text(json.dumps(changed(written, path, value)))
    with pytest.raises(ArtifactError) as caught:
        read_manifest(engine)
    assert str(caught.value.message).startswith(f"{manifest_path(engine)}: not a manifest")
    assert caught.value.hint
    assert caught.value.data["file"] == manifest_path(engine)


@pytest.mark.parametrize("field", list(Manifest.__dataclass_fields__))
def test_a_missing_field_is_named(engine: Path, written: dict[str, Any], field: str) -> None:
    write_json(manifest_path(engine), {name: value for name, value in written.items() if name != field})
    with pytest.raises(ArtifactError, match=field):
        read_manifest(engine)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_whatever_it_holds_it_is_read_or_refused(
    engine: Path, written: dict[str, Any], data: st.DataObject
) -> None:
    """What was read has the types that others rely on."""
    where = data.draw(st.sampled_from(paths(written)))
    manifest_path(engine).write_text(json.dumps(changed(written, where, data.draw(JSON))))
    try:
        manifest = read_manifest(engine)
    except ArtifactError:
        return
    assert manifest is not None
    for name in ("kind", "stage", "target", "precision", "digest"):
        assert type(getattr(manifest, name)) is str
    assert all(isinstance(getattr(manifest, name), Mapping) for name in ("proof", "device", "options"))
    assert all(type(check.passed) is bool for check in manifest.checks)
    json.dumps(manifest.as_json(), ensure_ascii=False).encode()


def test_deep_nesting_is_no_manifest(engine: Path, written: dict[str, Any]) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    manifest_path(engine).write_text(deep)
    with pytest.raises(ArtifactError, match="nested too deeply"):
        read_manifest(engine)
    assert not is_manifest(manifest_path(engine))
    nested: Any = 1
    for _ in range(200):
        nested = [nested]
    write_json(manifest_path(engine), changed(written, ("proof", "deep"), nested))
    with pytest.raises(ArtifactError, match="nested deeper than 32 levels"):
        read_manifest(engine)


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"\x00", b"\xed\xa0\x80", b'{"stage": 1e999}', b"NaN", b"", b"{", b"[]", b"{}",
     b'{"schema_version": 1}', b'{"schema_version": 99}'],
)  # fmt: skip
def test_what_is_damaged_or_foreign_is_no_manifest(engine: Path, content: bytes) -> None:
    manifest_path(engine).write_bytes(content)
    for read in (checked_input, load_artifact):
        with pytest.raises(ArtifactError, match=r"m\.engine\.json"):
            read(engine)


def test_json_of_another_tool_is_none(engine: Path, tmp_path: Path) -> None:
    path = tmp_path / "voice.onnx"
    path.write_bytes(engine.read_bytes())
    write_json(manifest_path(path), {"audio": {"sample_rate": 22050}, "num_symbols": 256})
    assert read_manifest(path) is None
    assert checked_input(path) == path
