"""What a child makes of a request, and what it tells of this worker."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stage_requests import Asked, small_model

from qcompile.cluster.files.content import ContentStore
from qcompile.cluster.files.parcel import pack
from qcompile.cluster.messages import OUTPUT, RECIPE, FileRef, Given, Request, StepText
from qcompile.cluster.worker.places import Place, name_as_client, naming
from qcompile.cluster.worker.stage_work import PUBLISHED, Job, as_step, carry_out_job, failed, step_name
from qcompile.errors import InvalidOption, ModelError, OutOfMemory, StorageError
from qcompile.files import digest_files
from qcompile.pipeline.recipe import read_recipe
from qcompile.pipeline.steps import Step, stage_of
from qcompile.progress import silent

DIGEST = "sha256:" + "0" * 64
REQUEST = Request("run", StepText("export"), FileRef("parcel.json", DIGEST, 1))


def job(request: Request = REQUEST) -> Job:
    return Job(request, Path("/store"), "w", "tcp://127.0.0.1:1")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_the_workers_own_trouble(number: int) -> None:
    error = ModelError("model.onnx: cannot be written")
    error.__cause__ = StorageError("model.onnx: cannot be written")
    error.__cause__.__cause__ = OSError(number, os.strerror(number))
    assert failed(job(), error).outcome == "full"
    said = failed(job(), StorageError(f"model.onnx: {os.strerror(number)}"))
    assert (said.outcome, said.reason) == ("full", f"worker w: model.onnx: {os.strerror(number)}")


def test_another_error_is_the_steps() -> None:
    result = failed(job(), StorageError(f"data.npz: {os.strerror(errno.EACCES)}", hint="h", file="data.npz"))
    assert result.outcome == "failed"
    assert result.error == {
        "error": "StorageError", "message": "data.npz: Permission denied", "hint": "h",
        "data": {"file": "data.npz"},
    }  # fmt: skip
    assert failed(job(), OutOfMemory("export: no memory is left")).error["error"] == "OutOfMemory"


def test_memory_that_runs_out_is_told_as_that() -> None:
    error = ModelError("model.onnx: ONNX Runtime refuses it")
    error.__cause__ = MemoryError()
    assert failed(job(), error).error["error"] == "OutOfMemory"


def test_a_step_has_its_files_under_their_names(tmp_path: Path) -> None:
    content = ContentStore(tmp_path / "store")
    refs = []
    for name in ("m.onnx", "m.onnx.data", "m.onnx.json"):
        path = tmp_path / name
        path.write_text(name)
        digest = digest_files([path])
        content.adopt(path, digest)
        refs.append(FileRef(name, digest, path.stat().st_size))
    text = StepText("build", "a", files={"model": refs[0].digest}, built={"b": refs[0].digest})
    request = Request("run", text, REQUEST.parcel, given={refs[0].digest: Given(tuple(refs))})
    step = as_step(request, content, tmp_path / "store")
    assert (step.kind, step.artifact, step.name) == ("build", "a", "build-a")
    for made in (step.files["model"], step.built["b"]):
        assert made.digest == refs[0].digest
        assert sorted(path.name for path in made.path.parent.iterdir()) == [ref.name for ref in refs]
        assert made.path.read_text() == "m.onnx"
    assert as_step(request, content, tmp_path / "store") == step
    content.close()


@pytest.mark.parametrize("name", ["../m.onnx", "a/b", "", "..", "/etc/passwd", "a\\b", "a\0b"])
def test_a_file_with_a_way_out_of_its_folder_is_refused(name: str, tmp_path: Path) -> None:
    content = ContentStore(tmp_path)
    given = Given((FileRef(name, DIGEST, 1),))
    request = Request(
        "run", StepText("build", files={"model": DIGEST}), REQUEST.parcel, given={DIGEST: given}
    )
    with pytest.raises(InvalidOption, match="plain name"):
        as_step(request, content, tmp_path)
    content.close()


def test_a_file_of_which_the_request_says_nothing_is_refused(tmp_path: Path) -> None:
    content = ContentStore(tmp_path)
    request = Request("run", StepText("build", files={"model": DIGEST}), REQUEST.parcel)
    with pytest.raises(InvalidOption, match="says nothing of its file"):
        as_step(request, content, tmp_path)
    content.close()


@given(
    st.sampled_from(["export", "build", "calibrate", "bench"]), st.sampled_from(["", "a"]),
    st.sampled_from(["", "2/8"]), st.sampled_from(["", "sm90"]),
)  # fmt: skip
def test_a_steps_name_is_that_of_the_step(kind: str, artifact: str, shard: str, machine: str) -> None:
    step = Step(kind=kind, artifact=artifact, shard=shard, machine=machine)  # type: ignore[arg-type]
    assert step_name(StepText(kind, artifact, shard, machine=machine)) == step.name


def test_errors_name_no_folder_of_the_worker() -> None:
    place = Place(Path("/s/recipes/1/home/ann/recipe.toml"), Path("/s/recipes/1"), Path("/s/published/1"))

    def fail() -> None:
        with naming(place):
            raise ModelError(
                "/s/recipes/1/home/ann/m.onnx: no; see /s/published/1/m.onnx",
                hint="look into /s/recipes/1/data/x.npz", file=Path("/s/recipes/1/home/ann/m.onnx"), node=3,
            )  # fmt: skip

    with pytest.raises(ModelError) as raised:
        fail()
    assert raised.value.message == f"{RECIPE}/m.onnx: no; see {OUTPUT}/m.onnx"
    assert raised.value.hint == f"look into {RECIPE}/../../data/x.npz"
    assert raised.value.data == {"file": f"{RECIPE}/m.onnx", "node": 3}


def test_results_name_files_as_seen_from_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / 'a "store" é/recipes/1/home'
    folder.mkdir(parents=True)
    output = folder.parents[2] / "published/1"
    output.mkdir(parents=True)
    monkeypatch.chdir(folder)
    place = Place(folder / "recipe.toml", folder.parent, output)
    said = {
        "command": ["qcompile", "run", str(place.recipe)],
        "built": [str(output / "a.onnx"), os.path.relpath(output / "b.onnx")],
        "model": str(folder.parent / "d/m.onnx"),
        "text": "../out/1 and /usr/lib stay",
    }  # fmt: skip
    path = tmp_path / "results.json"
    path.write_text(json.dumps(said, ensure_ascii=False), encoding="utf-8")
    name_as_client(path, place, "out")
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "command": ["qcompile", "run", "recipe.toml"],
        "built": ["out/a.onnx", "out/b.onnx"],
        "model": "../d/m.onnx",
        "text": "../out/1 and /usr/lib stay",
    }


def test_files_that_were_lost_are_told_by_name(tmp_path: Path) -> None:
    asked = Asked(tmp_path / "recipe")
    content = ContentStore(tmp_path / "store")
    with pytest.raises(Exception, match="is not on this worker"):
        as_step(asked.request(), content, tmp_path / "store")
    content.close()


def test_a_bench_of_a_tensorflow_model_has_the_file_that_another_worker_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = tmp_path / "recipe", tmp_path / "store"
    monkeypatch.chdir(tmp_path)  # the job goes to its recipe's folder
    folder.mkdir()
    (folder / "net.keras").write_bytes(b"is not opened for a bench")
    (folder / "recipe.toml").write_text(
        'version = 1\nname = "net"\n[model]\nsource = "net.keras"\n[[artifact]]\nname = "cpu"\n'
        'target = "onnxruntime"\n[bench]\n'
    )
    onnx.save(small_model(), tmp_path / "net.onnx")
    onnx.save(small_model(), tmp_path / "cpu.onnx")
    with (tmp_path / "cpu.onnx").open("ab") as file:
        file.write(b"\0")  # another digest
    packed = pack(read_recipe(folder / "recipe.toml"), folder=tmp_path / "packed")
    content = ContentStore(store)
    refs = {
        path.name: FileRef(path.name, digest_files([path]), path.stat().st_size)
        for path in (tmp_path / "net.onnx", tmp_path / "cpu.onnx")
    }
    for digest, path in [
        *packed.paths.items(),
        *((one.digest, tmp_path / one.name) for one in refs.values()),
    ]:
        content.adopt(path, digest)
    content.close()
    step = StepText("bench", files={"model": refs["net.onnx"].digest}, built={"cpu": refs["cpu.onnx"].digest})
    request = Request("run", step, packed.ref, given={one.digest: Given((one,)) for one in refs.values()})
    looked = Job(request, store, "w", "tcp://127.0.0.1:1", find_only=True)
    assert carry_out_job(looked, silent) is None  # it is not done
    assert [path.read_bytes() for path in store.glob(f"{PUBLISHED}/*/net.onnx")] == [
        (tmp_path / "net.onnx").read_bytes()
    ]
    stage = stage_of(read_recipe(folder / "recipe.toml"), as_step(request, content, store), tmp_path)
    content.close()
    assert stage is not None
    assert stage.key["artifacts"] == {"cpu": refs["cpu.onnx"].digest}  # it puts no results together
