"""Stages in processes of their own, which crash, print, hang, and take too much, and the next one works."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from stage_requests import Asked, as_job, result_of

from qcompile.cluster.messages import Result
from qcompile.cluster.worker.children import Children
from qcompile.errors import ClusterError, OutOfMemory


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    pool = Children("w", slots=1, cores=1)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker")


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Asked:
    made = Asked(tmp_path_factory.mktemp("client") / "recipe")
    made.put(store)
    return made


def carry_out(
    children: Children,
    asked: Asked,
    store: Path,
    *,
    check: Callable[[], None] = lambda: None,
    memory_bytes: int = 0,
    told: list[str] | None = None,
    **request: Any,
) -> Result:
    """The result of a request in a child."""

    def progress(text: str, *_: object) -> None:
        if told is not None:
            told.append(text)

    parcel = asked.packed.ref.digest
    with children.taken(run="run", parcel=parcel) as child:
        job: Mapping[str, Any] = as_job(asked.request(**request), store)
        answer = child.carry_out(
            "carry_out", check=check, progress=progress, memory_bytes=memory_bytes, **job
        )
        children.done(child, parcel, answer)
    return result_of(answer)


class Stop(Exception):
    """The request is cancelled."""


def gone(pid: int) -> bool:
    """Whether a process has ended, waited for a while; who asks how may be nobody."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_a_stage_is_done_once_and_its_child_is_kept(children: Children, store: Path, asked: Asked) -> None:
    first = carry_out(children, asked, store)
    pids, times = children.pids(), asked.times()
    again = carry_out(children, asked, store)
    assert (first.outcome, again.outcome) == ("done", "done")
    assert (first.was_done, again.was_done) == (False, True)
    assert first.files == again.files
    assert [one.name for one in first.files] == ["tiny.ranges", "tiny.ranges.json"]
    assert first.seconds > 0
    assert first.peak_bytes
    known = carry_out(children, asked, store, known=(first.name,))
    assert (known.outcome, known.name, known.files) == ("known", first.name, ())
    assert asked.times() == times
    assert carry_out(children, asked, store, known=(first.name,), again=True).outcome == "done"
    assert asked.times() == times + 1
    assert children.pids() == pids


def test_what_another_worker_holds_is_not_done_again(
    children: Children, tmp_path: Path, asked: Asked
) -> None:
    asked.put(tmp_path)
    first = carry_out(children, asked, tmp_path)
    other = tmp_path / "other"
    asked.put(other)
    times = asked.times()
    there = carry_out(children, asked, other, elsewhere=(first.name,))
    assert (there.outcome, there.name, there.key) == ("elsewhere", first.name, first.key)
    assert carry_out(children, asked, tmp_path, elsewhere=(first.name,)).outcome == "done"
    assert asked.times() == times


def test_what_a_stage_prints_and_reads_disturbs_nothing(
    children: Children, store: Path, asked: Asked
) -> None:
    asked.behave("prints")
    assert carry_out(children, asked, store, again=True).outcome == "done"


def test_a_crash_is_told_with_its_last_words_and_the_next_stage_works(
    children: Children, store: Path, asked: Asked
) -> None:
    asked.behave("aborts")
    with pytest.raises(ClusterError, match=r"ended \(SIGABRT\); it said:\s+about to end") as raised:
        carry_out(children, asked, store, again=True)
    assert raised.value.data["worker"] == "w"
    asked.behave("good")
    assert carry_out(children, asked, store).outcome == "done"


def test_an_error_is_the_clients_to_read(children: Children, store: Path, asked: Asked) -> None:
    """Folders of the worker mean nothing to it."""
    asked.behave("raises")
    result = carry_out(children, asked, store, again=True)
    assert result.outcome == "failed"
    assert result.error["error"] == "ModelError"
    assert "ValueError: no samples in <recipe>" in str(result.error["message"])
    assert str(store) not in str(result.error)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
def test_a_full_disk_is_told_as_that(children: Children, store: Path, asked: Asked) -> None:
    asked.behave("fills")
    result = carry_out(children, asked, store, again=True)
    assert result.outcome == "full"
    assert result.reason.startswith("worker w: ")


def test_a_cancelled_stage_is_killed_with_all_that_it_started(
    children: Children, store: Path, asked: Asked
) -> None:
    asked.behave("hangs")

    def check() -> None:
        if asked.pids():
            raise Stop

    with pytest.raises(Stop):
        carry_out(children, asked, store, check=check, again=True)
    assert all(gone(pid) for pid in asked.pids())
    assert len(asked.pids()) == 2


@pytest.mark.slow
def test_a_killed_calibration_is_gone_on_with(children: Children, tmp_path: Path) -> None:
    """Its checkpoint, of every ten seconds, lies in the worker's folder."""
    asked = Asked(tmp_path / "recipe")
    store = tmp_path / "store"
    asked.put(store)
    asked.behave("stops")

    def check() -> None:
        if asked.pids():
            raise Stop

    with pytest.raises(Stop):
        carry_out(children, asked, store, check=check)
    left = list(store.glob("published/*/.qcompile/calibrate.checkpoint"))
    assert len(left) == 1
    asked.behave("good")
    told: list[str] = []
    result = carry_out(children, asked, store, told=told)
    assert result.outcome == "done"
    assert not left[0].exists()
    elsewhere = tmp_path / "elsewhere"
    asked.put(elsewhere)
    assert carry_out(children, asked, elsewhere).files == result.files


def test_a_stage_that_takes_too_much_memory_is_ended(children: Children, store: Path, asked: Asked) -> None:
    asked.behave("takes_much")
    with pytest.raises(OutOfMemory, match=r"holds .* of memory; at most 500 MB are allowed"):
        carry_out(children, asked, store, memory_bytes=500_000_000, again=True)


def test_a_child_that_ran_code_serves_no_other_recipe(children: Children) -> None:
    with children.taken(parcel="a") as child:
        children.done(child, "a", {"ran_code": False})
    with children.taken(parcel="b") as same:
        assert same is child
        children.done(same, "b", {"ran_code": True})
    with children.taken(parcel="b") as same:
        assert same is child
    with children.taken(parcel="a") as other:
        assert other is not child
    assert gone(child.pid)


def test_a_child_that_holds_too_much_is_replaced(children: Children) -> None:
    with children.taken() as child:
        children.done(child, "", {"resident_bytes": 1 << 50})
        pid = child.pid
    assert gone(pid)
    with children.taken() as other:
        assert other.pid != pid
        assert other.lives


def test_the_end_of_a_run_ends_its_stages_alone() -> None:
    pool = Children("w", slots=2, cores=2)
    try:
        with pool.taken(run="other") as other:
            with pool.taken(run="one") as one:
                pool.end_run("one")
                with pytest.raises(ClusterError, match="SIGKILL"):
                    one.carry_out("look", check=lambda: None)
            assert other.lives
    finally:
        pool.close()
    with pytest.raises(ClusterError, match="is ending"), pool.taken():
        pytest.fail("it is closed")


def environment_of(pid: int) -> Mapping[str, str]:
    """The variables of a process. For a moment after it was started, Linux shows none."""
    until = time.monotonic() + 60
    while not (variables := psutil.Process(pid).environ()) and time.monotonic() < until:
        time.sleep(0.01)
    return variables


def test_cores_are_shared_by_the_slots_and_all_are_for_one_that_runs_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qcompile.cluster.worker.children.usable_cores", lambda: 4)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    pool = Children("w", slots=2, cores=4, below_nanny=True)
    try:
        with pool.taken() as one, pool.taken() as two:
            assert (one.cores, two.cores) == (2, 2)
            environment = environment_of(two.pid)
            assert environment["OMP_NUM_THREADS"] == environment["QCOMPILE_CORES"] == "2"
        with pool.taken(alone=True) as child:
            assert child.cores == 4
            environment = environment_of(child.pid)
            assert environment["QCOMPILE_CORES"] == "4"
            assert not {"OMP_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_"} & set(environment)
        assert len(pool.pids()) == 2, "one made room"
    finally:
        pool.close()


def test_a_stage_that_two_are_asked_for_at_a_time_is_done_once(tmp_path: Path) -> None:
    asked = Asked(tmp_path / "recipe")
    asked.put(tmp_path / "store")
    pool = Children("w", slots=2, cores=2)
    try:
        with ThreadPoolExecutor(2) as threads:
            asks = [threads.submit(carry_out, pool, asked, tmp_path / "store") for _ in range(2)]
            results = [one.result(120) for one in asks]
    finally:
        pool.close()
    assert sorted(one.was_done for one in results) == [False, True]
    assert results[0].files == results[1].files
    assert asked.times() == 1


def test_a_child_ends_with_the_process_that_started_it() -> None:
    code = (
        "import time; from qcompile.cluster.worker.children import Children\n"
        "pool = Children('w', slots=1, cores=1)\n"
        "with pool.taken() as child:\n    print(child.pid, flush=True)\n    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.2)
        assert psutil.pid_exists(pid)
    finally:
        parent.kill()
        parent.communicate(timeout=60)
    assert gone(pid)
