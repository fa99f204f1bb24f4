"""A manifest may come from anybody: every field is typed when it is read, and a wrong one is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qcompile.artifact import Check, Manifest, checked_input, commit, is_manifest, read_manifest
from qcompile.errors import ArtifactError
from qcompile.files import manifest_path, write_json, writing
from qcompile.tensors import ModelIO, TensorInfo

ENGINE = Manifest(
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
    checks=(Check("outputs", True, "snr 40 dB"),),
    warnings=("larger than it needs to be",),
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of four bytes, with its manifest."""
    path = tmp_path_factory.mktemp("typed") / "m.engine"
    with writing(path) as temporary:
        temporary.write_bytes(b"plan")
        commit(temporary, ENGINE)
    return path


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


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\x00", b"\xed\xa0\x80", b'{"stage": 1e999}', b"NaN"])
def test_bytes_that_are_no_text_are_no_manifest(engine: Path, content: bytes) -> None:
    manifest_path(engine).write_bytes(content)
    with pytest.raises(ArtifactError):
        checked_input(engine)


def test_json_of_another_tool_is_none(engine: Path, tmp_path: Path) -> None:
    path = tmp_path / "voice.onnx"
    path.write_bytes(engine.read_bytes())
    write_json(manifest_path(path), {"audio": {"sample_rate": 22050}, "num_symbols": 256})
    assert read_manifest(path) is None
    assert checked_input(path) == path
