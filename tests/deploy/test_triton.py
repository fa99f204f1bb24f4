"""Model repositories on disk: what is written, what stays, what is refused, and that nothing is half done."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging_engines import IMAGE, make_engine

from qcompile.artifact import load_artifact
from qcompile.deploy import TritonOptions, package_triton, triton
from qcompile.errors import ArtifactError, EngineUnavailable, InvalidOption, MissingFile

LARGER = {"x": ((1, 3, 8, 8), (8, 3, 8, 8), (32, 3, 8, 8))}


def tree(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return make_engine(tmp_path / "net.engine")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "deep/models"


def test_an_engine_lies_where_triton_looks_with_its_manifest(engine: Path, repository: Path) -> None:
    packaged = package_triton(engine, repository, name="net")
    assert tree(repository) == ["net/1/model.plan", "net/1/model.plan.json", "net/config.pbtxt"]
    assert (repository / "net/config.pbtxt").read_text(encoding="utf-8") == packaged.config
    assert load_artifact(repository / "net/1/model.plan").manifest == load_artifact(engine).manifest
    assert packaged.versions == [1]
    assert packaged.server == f"tritonserver --model-repository={repository}"
    names = [check.name for check in packaged.checks]
    assert names[0] == "the file is what its manifest says"


def test_a_new_version_keeps_the_older_ones(tmp_path: Path, engine: Path, repository: Path) -> None:
    package_triton(engine, repository, name="net")
    better = make_engine(tmp_path / "better.engine", plan=b"better")
    options = TritonOptions(version_policy="specific:1,2")
    assert package_triton(better, repository, name="net", version=2, options=options).versions == [1, 2]
    assert (repository / "net/1/model.plan").read_bytes() == b"plan"
    assert (repository / "net/2/model.plan").read_bytes() == b"better"
    assert "versions: [1, 2]" in (repository / "net/config.pbtxt").read_text()


def test_versions_must_be_served_by_one_configuration(tmp_path: Path, engine: Path, repository: Path) -> None:
    package_triton(engine, repository, name="net")
    before = tree(repository)

    def refused(message: str, options: TritonOptions | None = None, **other: object) -> None:
        path = make_engine(tmp_path / "other.engine", **other)  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match=message):
            package_triton(path, repository, name="net", version=2, options=options)
        assert tree(repository) == before

    refused(
        r"version 1 has x TYPE_FP32 \[3, 8, 8\], y TYPE_FP32 \[5\]; this one", outputs={"y": ("batch", 6)}
    )
    refused("this one has x TYPE_FP16", dtypes={"x": "float16"})
    refused("version 1 has 1 optimization profiles; this one has 2", profiles=[IMAGE, LARGER])
    refused("takes batches up to 16; this one up to 32", profiles=[LARGER])
    wider = make_engine(tmp_path / "wider.engine", profiles=[LARGER])
    package_triton(wider, repository, name="net", version=2, options=TritonOptions(max_batch_size=16))


def test_versions_of_another_backend_or_without_manifest_are_refused(
    engine: Path, repository: Path, tiny_file: Callable[..., Path]
) -> None:
    package_triton(engine, repository, name="net")
    with pytest.raises(InvalidOption, match="version 1 cannot be compared"):
        package_triton(tiny_file("mlp"), repository, name="net", version=2)
    (repository / "net/1/model.plan.json").unlink()
    with pytest.raises(
        InvalidOption, match=r"version 1 cannot be compared with this one: .* has no manifest"
    ):
        package_triton(engine, repository, name="net", version=2)


def test_nothing_is_replaced_unless_said(tmp_path: Path, engine: Path, repository: Path) -> None:
    package_triton(engine, repository, name="net")
    other = make_engine(tmp_path / "other.engine", plan=b"other")
    with pytest.raises(InvalidOption, match="version 1 is there") as caught:
        package_triton(other, repository, name="net")
    assert caught.value.hint == "give `version` 2, or `overwrite`"
    assert (repository / "net/1/model.plan").read_bytes() == b"plan"
    (repository / "net/1/labels.txt").write_text("old")
    package_triton(other, repository, name="net", overwrite=True)
    assert tree(repository) == ["net/1/model.plan", "net/1/model.plan.json", "net/config.pbtxt"]
    assert (repository / "net/1/model.plan").read_bytes() == b"other"


@pytest.mark.parametrize("change", [lambda text: text + "# mine\n", lambda text: text.split("\n", 1)[1]])
def test_a_configuration_changed_by_hand_is_kept(
    engine: Path, repository: Path, change: Callable[[str], str]
) -> None:
    package_triton(engine, repository, name="net")
    config = repository / "net/config.pbtxt"
    config.write_text(change(config.read_text()))
    kept = config.read_bytes()
    with pytest.raises(InvalidOption, match="was not written by qcompile, or was changed since"):
        package_triton(engine, repository, name="net", version=2)
    assert config.read_bytes() == kept
    package_triton(engine, repository, name="net", version=2, overwrite=True)
    assert config.read_bytes() != kept


def test_other_models_and_files_of_a_repository_stay(engine: Path, repository: Path) -> None:
    (repository / "other/1").mkdir(parents=True)
    (repository / "net").mkdir()
    (repository / "net/labels.txt").write_text("cat")
    package_triton(engine, repository, name="net")
    assert (repository / "other/1").is_dir()
    assert (repository / "net/labels.txt").read_text() == "cat"
    assert (repository / "net/1/model.plan").is_file()


def interrupted(monkeypatch: pytest.MonkeyPatch, at: int, *, before: bool) -> None:
    """Ctrl-C just before, or just after, the rename of that number; 0 while files are copied."""
    calls, rename = 0, os.rename

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def counted(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == at and before:
            raise KeyboardInterrupt
        rename(source, target)
        if calls == at:
            raise KeyboardInterrupt

    if at == 0:
        monkeypatch.setattr(triton, "digest_files", interrupt)
    else:
        monkeypatch.setattr(triton.os, "rename", counted)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("there", "at"), [(False, 0), (False, 1), *((True, at) for at in range(5))])
def test_an_interruption_changes_nothing(
    engine: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, there: bool, at: int, before: bool
) -> None:
    if there:
        package_triton(engine, repository, name="net")
    content = {name: (repository / name).read_bytes() for name in tree(repository)}
    options = TritonOptions(instances=3)
    with monkeypatch.context() as patch:
        interrupted(patch, at, before=before)
        with pytest.raises(KeyboardInterrupt):
            package_triton(engine, repository, name="net", options=options, overwrite=there)
    assert {name: (repository / name).read_bytes() for name in tree(repository)} == content
    assert repository.is_dir() == there
    assert not list(repository.parent.glob(".qcompile-tmp-*"))


def test_a_copy_that_differs_is_refused(
    engine: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(source: Path, target: Path) -> None:
        Path(target).write_bytes(Path(source).read_bytes()[:-1])

    monkeypatch.setattr(triton.shutil, "copyfile", cut_off)
    with pytest.raises(ArtifactError, match=r"its copy model\.plan differs"):
        package_triton(engine, repository, name="net")
    assert not repository.exists()


def test_an_artifact_that_was_changed_is_refused(engine: Path, repository: Path) -> None:
    engine.write_bytes(b"another plan")
    with pytest.raises(ArtifactError, match="differs from its manifest's"):
        package_triton(engine, repository, name="net")
    assert not repository.exists()


@pytest.mark.parametrize("name", ["", ".", "..", ".net", "a/b", "a\\b", "a b", "a\n", "a\0", "n" * 256])
def test_names_that_are_no_folder_are_refused(engine: Path, repository: Path, name: str) -> None:
    with pytest.raises(InvalidOption, match="`name`"):
        package_triton(engine, repository, name=name)
    assert not repository.exists()


def test_names_may_be_of_any_script(engine: Path, repository: Path) -> None:
    package_triton(engine, repository, name="größe-漢.v2")
    assert 'name: "größe-漢.v2"' in (repository / "größe-漢.v2/config.pbtxt").read_text(encoding="utf-8")


def test_wrong_requests_are_refused(tmp_path: Path, engine: Path, repository: Path) -> None:
    with pytest.raises(InvalidOption, match="`version` 0"):
        package_triton(engine, repository, name="net", version=0)
    with pytest.raises(InvalidOption, match="version 3 is not in"):
        package_triton(engine, repository, name="net", options=TritonOptions(version_policy="specific:1,3"))
    with pytest.raises(InvalidOption, match="is a file; a folder is required"):
        package_triton(engine, engine, name="net")
    with pytest.raises(InvalidOption, match="output"):
        package_triton(engine, engine / "below", name="net")
    with pytest.raises(MissingFile, match="does not exist"):
        package_triton(tmp_path / "none.engine", repository, name="net")
    assert not repository.exists()


def test_without_tritonclient_nothing_is_written(
    engine: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tritonclient.grpc.model_config_pb2", None)
    with pytest.raises(EngineUnavailable, match=r"Triton's definitions are missing") as raised:
        package_triton(engine, repository, name="net")
    assert raised.value.hint == "pip install 'qcompile[triton]'"
    assert not repository.exists()
