"""What `qcompile worker` is told, and what it refuses before it starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qcompile.cluster.worker.plugin import own_folder
from qcompile.cluster.worker.serve import parse_memory, parse_resources, require_distributed, serve
from qcompile.cluster.worker.service import _held
from qcompile.errors import ClusterError, EngineUnavailable, InvalidOption
from qcompile.spec.cluster import WorkerCommand


def silent(told: object) -> None:
    """Hear nothing."""


@pytest.mark.parametrize(
    ("text", "size"),
    [("", 0), ("16GB", 16_000_000_000), ("8 GiB", 8 << 30), ("500MB", 500_000_000), ("1024", 1024)],
)
def test_sizes_of_memory(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["much", "-1GB", "0", "nan"])
def test_no_size_of_memory(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"`memory` .*a size such as 16GB is required"):
        parse_memory(text)


def test_resources_are_names_and_numbers() -> None:
    assert parse_resources(("rack-7=1", "license=2.5")) == {"rack-7": 1.0, "license": 2.5}


@pytest.mark.parametrize("text", ["rack", "=1", "rack=", "rack=many", "rack=-1", "rack=inf", "rack=nan"])
def test_no_resource(text: str) -> None:
    with pytest.raises(InvalidOption, match="NAME=NUMBER is required"):
        parse_resources((text,))


def test_a_folder_serves_one_worker(tmp_path: Path) -> None:
    with _held(tmp_path / "store"), pytest.raises(InvalidOption, match="another worker is using it"):
        _held(tmp_path / "store")
    _held(tmp_path / "store").close()
    (tmp_path / "file").touch()
    with pytest.raises(InvalidOption, match="`store`"):
        _held(tmp_path / "file")


def test_a_scheduler_that_never_answers_is_told(tmp_path: Path) -> None:
    given = WorkerCommand(scheduler="tcp://127.0.0.1:1", store=tmp_path / "store")
    with pytest.raises(ClusterError, match=r"scheduler tcp://127\.0\.0\.1:1: has not answered for 0 s"):
        serve(given, announced=silent, told=silent, connect_s=0.2)


def test_another_host_without_tls_is_refused(tmp_path: Path) -> None:
    given = WorkerCommand(scheduler="tcp://192.0.2.1:8786", store=tmp_path / "store", insecure=("192.0.2.1",))
    with pytest.raises(ClusterError, match="another host without TLS") as raised:
        serve(given, announced=silent, told=silent)
    assert "once more" in raised.value.hint
    assert not (tmp_path / "store").exists()


def test_without_dask_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(EngineUnavailable) as raised:
        require_distributed()
    assert raised.value.hint == "pip install 'qcompile[cluster]'"


def test_folders_of_workers_in_one_place_are_plain_names() -> None:
    assert own_folder("/data/{name}", "tcp://10.0.0.1:40001") == Path("/data/tcp-10.0.0.1-40001")
    assert own_folder("/data/{name}/q", "../..") == Path("/data/worker/q")
    assert own_folder("/data", "w") == Path("/data")
