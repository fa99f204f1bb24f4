"""What a worker keeps in its folder, and what it removes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from qcompile.cluster.messages import FileRef, Request, StepText
from qcompile.cluster.worker.service import Cancelled, StageService
from qcompile.files import digest_files
from qcompile.pipeline.store import Store

OLD_S = 15 * 86400


@pytest.fixture
def service(tmp_path: Path) -> Iterator[StageService]:
    """Of a worker that has not started: no child is needed here."""
    task = SimpleNamespace(state="executing")
    state, status = SimpleNamespace(tasks={"key": task}), SimpleNamespace(name="running")
    worker = SimpleNamespace(name="w", nanny=None, status=status, state=state)
    made = StageService(worker, tmp_path / "store", slots=1, cores=1, memory_bytes=0, resources={})
    yield made
    made.close()


def stage(service: StageService, name: str, output: str) -> Path:
    """The folder of a finished stage."""
    published = service.store / "published" / output
    published.mkdir(parents=True, exist_ok=True)
    store = Store(published, folder=service.store / "stages")
    store.folder.mkdir(exist_ok=True)
    return store.run(name, {"of": output}, lambda folder: (folder / "a.onnx").write_text(name)).folder


def age(*paths: Path) -> None:
    then = time.time() - OLD_S
    for path in paths:
        os.utime(path, (then, then))


def test_what_was_not_used_for_two_weeks_goes(service: StageService) -> None:
    old, new = stage(service, "build-a", "0a"), stage(service, "build-b", "0b")
    given = service.store / "given/0c"
    given.mkdir(parents=True)
    lock = service.store / "stages/.build-a-0.lock"
    lock.touch()
    age(old / "stage.json", service.store / "published/0a", given)
    assert service.finished(10) == [new.name, old.name]
    service.tidy()
    assert service.finished(10) == [new.name]
    assert not old.exists()
    assert not given.exists()
    assert not lock.exists()
    assert [path.name for path in (service.store / "published").iterdir()] == ["0b"]
    assert (new / "a.onnx").read_text() == "build-b"


def test_the_latest_finished_stages_come_first(service: StageService) -> None:
    names = [stage(service, f"build-{number}", str(number)).name for number in range(5)]
    for number, name in enumerate(names):
        os.utime(service.store / "stages" / name / "stage.json", (number, number))
    assert service.finished(3) == names[:1:-1]


def test_a_file_in_use_is_kept(service: StageService, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("content")
    digest = digest_files([path])
    service.content.adopt(path, digest)
    path.unlink()
    kept = service.content.path(digest)
    assert kept is not None
    os.utime(kept, (time.time() - OLD_S, kept.stat().st_mtime))
    with service.content.using([digest]):
        service.tidy()
        assert kept.exists()
    os.utime(kept, (time.time() - OLD_S, kept.stat().st_mtime))
    service.tidy()
    assert not kept.exists()


@pytest.mark.parametrize(
    ("state", "status", "is_wanted"),
    [
        ("executing", "running", True), ("resumed", "running", True),
        ("executing", "closing_gracefully", True), ("executing", "paused", True),
        ("cancelled", "running", False), ("released", "running", False), ("executing", "closing", False),
    ],
)  # fmt: skip
def test_a_request_is_wanted_while_its_task_is(
    service: StageService, state: str, status: str, is_wanted: bool
) -> None:
    request = Request("run", StepText("export"), FileRef("parcel.json", "sha256:" + "0" * 64, 1))
    service.worker.state.tasks["key"].state, service.worker.status.name = state, status
    if is_wanted:
        service.check(request, "key")
        return
    with pytest.raises(Cancelled):
        service.check(request, "key")


def test_a_run_that_ended_is_not_wanted(service: StageService) -> None:
    request = Request("run", StepText("export"), FileRef("parcel.json", "sha256:" + "0" * 64, 1))
    service.end_run("another")
    service.check(request, "key")
    service.end_run("run")
    assert service.is_over("run")
    with pytest.raises(Cancelled):
        service.check(request, "key")
