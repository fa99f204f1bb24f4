"""A worker of Dask that carries out stages: with a real scheduler, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from clusters import Cluster, running_cluster
from stage_requests import Asked

from qcompile.cluster.facts import versions_here
from qcompile.cluster.files.transfer import push
from qcompile.cluster.messages import Facts, Request, Result, encode


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), workers=1) as started:
        yield started


@pytest.fixture(autouse=True)
def behaving(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "asked" in request.fixturenames:
        request.getfixturevalue("asked").behave("good")


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Any]:
    with cluster.client() as made:
        yield made


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, client: Any) -> Asked:
    made = Asked(tmp_path_factory.mktemp("client") / "recipe")
    bring(client, address_of(client), made)
    return made


def address_of(client: Any, name: str = "w1") -> str:
    """Where a worker listens."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return next(address for address, about in workers.items() if about["name"] == name)


def bring(client: Any, address: str, asked: Asked) -> None:
    """Push a recipe's files to a worker."""

    async def pushed() -> object:
        return await push(client.rpc(address), asked.packed.paths)

    client.sync(pushed)


def ask_worker(client: Any, address: str, handler: str, **message: Any) -> Any:
    """What a handler of a worker answers."""

    async def answered() -> Any:
        return await getattr(client.rpc(address), handler)(**message)

    return client.sync(answered)


def submit(client: Any, request: Request, worker: str = "w1") -> Any:
    """The future of a request."""

    def carry_out(words: bytes) -> bytes:
        from qcompile.cluster.worker.task import carry_out_request

        return carry_out_request(words)

    return client.submit(
        carry_out, encode(request), workers=[worker], resources={"slots": 1}, pure=False
    )  # fmt: skip


def result_of(future: Any) -> Result:
    """What a worker answers."""
    return msgspec.json.decode(future.result(timeout=40), type=Result)


def until(true: Callable[[], Any]) -> Any:
    """Wait for something, and return it."""
    end = time.monotonic() + 60
    while not (found := true()):
        assert time.monotonic() < end, "took too long"
        time.sleep(0.02)
    return found


def gone(pids: list[int]) -> bool:
    """Whether processes have ended, whether or not somebody has asked how."""

    def lives(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return not any(map(lives, pids))


def test_it_announces_what_it_found(client: Any) -> None:
    address = address_of(client)
    facts = msgspec.json.decode(ask_worker(client, address, "qcompile_facts"), type=Facts)
    announced = client.scheduler_info(n_workers=-1)["workers"][address]["resources"]
    assert announced == facts.resources
    assert {"slots", "memory", "onnxruntime"} <= set(announced)
    assert (facts.name, facts.address) == ("w1", address)


def test_a_stage_is_done_once_and_its_files_are_to_be_had(client: Any, asked: Asked) -> None:
    first = result_of(submit(client, asked.request(versions=versions_here())))
    again = result_of(submit(client, asked.request()))
    assert (first.outcome, first.was_done, again.was_done) == ("done", False, True)
    assert asked.times() == 1
    assert (first.worker, first.address) == ("w1", address_of(client))
    absent = ask_worker(
        client, first.address, "qcompile_missing", digests=[one.digest for one in first.files]
    )
    assert not absent["missing"]


def test_a_look_does_nothing(client: Any, tmp_path: Path) -> None:
    other = Asked(tmp_path / "recipe", "def samples():\n    raise AssertionError\n")
    bring(client, address_of(client), other)
    assert result_of(submit(client, other.request(look=True))).outcome == "none"


def test_files_that_nobody_has_are_named(client: Any, tmp_path: Path) -> None:
    result = result_of(submit(client, Asked(tmp_path / "recipe").request()))
    assert result.outcome == "missing"
    assert len(result.missing) == 1


def test_another_version_is_refused_and_nothing_is_tried(client: Any, asked: Asked) -> None:
    times = asked.times()
    result = result_of(submit(client, asked.request(versions={"onnxruntime": "0.1"}, again=True)))
    assert result.outcome == "refused"
    assert "worker w1" in result.reason
    assert f"{versions_here()['onnxruntime']}; 0.1 is required" in result.reason
    assert asked.times() == times


def test_a_crash_ends_no_worker(client: Any, asked: Asked) -> None:
    address = address_of(client)
    asked.behave("aborts")
    result = result_of(submit(client, asked.request(again=True)))
    assert result.outcome == "failed"
    assert result.error["error"] == "ClusterError"
    assert "SIGABRT" in str(result.error["message"])
    asked.behave("good")
    assert result_of(submit(client, asked.request())).outcome == "done"
    assert address_of(client) == address


def test_a_cancelled_task_is_killed(client: Any, asked: Asked) -> None:
    asked.behave("hangs")
    future = submit(client, asked.request(again=True))
    pids = until(asked.pids)
    future.cancel()
    until(lambda: gone(pids))
    asked.behave("good")
    assert result_of(submit(client, asked.request())).outcome == "done"


def test_the_end_of_a_run_kills_its_stages(client: Any, asked: Asked) -> None:
    asked.behave("hangs")
    future = submit(client, asked.request("ended", again=True))
    pids = until(asked.pids)
    ask_worker(client, address_of(client), "qcompile_end_run", run="ended")
    result = result_of(future)
    assert (result.outcome, result.error["message"]) == ("failed", "worker w1: calibrate was cancelled")
    until(lambda: gone(pids))
    asked.behave("good")
    assert result_of(submit(client, asked.request("ended"))).outcome == "failed"
    assert result_of(submit(client, asked.request("another"))).outcome == "done"


def test_progress_reaches_the_client(client: Any, asked: Asked) -> None:
    said: list[Any] = []
    client.subscribe_topic("qcompile-told", said.append)
    result_of(submit(client, asked.request("told", again=True)))
    until(lambda: said)
    assert said[0][1]["step"] == "calibrate"
    assert said[0][1]["name"] == "w1"


def test_it_ends_at_sigterm_with_its_children(cluster: Cluster, client: Any, tmp_path: Path) -> None:
    member = cluster.start_worker("ending", arguments=["--resource", "rack=2", "--cores", "1"])
    cluster.wait("ending")
    address = address_of(client, "ending")
    assert client.scheduler_info(n_workers=-1)["workers"][address]["resources"]["rack"] == 2
    asked = Asked(tmp_path / "recipe")
    asked.behave("hangs")
    bring(client, address, asked)
    future = submit(client, asked.request(), "ending")
    pids = until(asked.pids) + [one.pid for one in member.children()]
    assert member.stop() == 128 + signal.SIGTERM
    future.cancel()
    until(lambda: gone(pids))
    assert "ended by SIGTERM" in member.said()
    assert "Traceback" not in member.said()


def test_an_address_without_tls_is_refused() -> None:
    words = [sys.executable, "-m", "qcompile", "worker", "tcp://192.0.2.1:8786", "--json"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert said.returncode == 1
    assert json.loads(said.stdout)["error"] == "ClusterError"


def test_dasks_own_worker_takes_stages_by_the_plugin(cluster: Cluster, client: Any, asked: Asked) -> None:
    """As those of dask-cuda, dask-jobqueue and dask-kubernetes."""
    from qcompile.cluster.worker.plugin import StagePlugin

    cluster.plain = True
    try:
        cluster.start_worker("plain", slots=2)
        cluster.wait("plain")
    finally:
        cluster.plain = False
    client.register_plugin(StagePlugin())
    client.register_plugin(StagePlugin())
    address = address_of(client, "plain")
    facts = msgspec.json.decode(ask_worker(client, address, "qcompile_facts"), type=Facts)
    assert (facts.name, facts.resources["slots"]) == ("plain", 1)
    assert facts.cores == min(2, len(os.sched_getaffinity(0)))
    until(lambda: client.scheduler_info(n_workers=-1)["workers"][address]["resources"] == facts.resources)
    first = address_of(client)
    request = msgspec.structs.replace(asked.request(), parcel_holders=(first,))
    given = {name: msgspec.structs.replace(one, holders=(first,)) for name, one in request.given.items()}
    times = asked.times()
    result = result_of(submit(client, msgspec.structs.replace(request, given=given), "plain"))
    assert (result.outcome, result.worker) == ("done", "plain")
    assert asked.times() == times + 1
