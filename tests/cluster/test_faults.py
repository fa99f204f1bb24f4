"""Things go wrong on a real cluster: a worker dies, another has no room, a third has other versions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("distributed", reason="the extra cluster is not installed")

from cluster_trials import (
    Client,
    Watch,
    await_stage,
    contents,
    differing,
    finished,
    run_once,
    run_words,
    write_recipe,
    wrong_files,
)
from clusters import Cluster, Member, running_cluster
from odd_workers import another_version, with_small_files

WEIGHTS = 1 << 20


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe whose calibration takes a second."""
    return write_recipe(tmp_path_factory.mktemp("recipe"), samples=40, pause_s=0.03, weights=WEIGHTS)


@pytest.fixture(scope="module")
def expected(recipe: Path) -> dict[str, str]:
    """What one process makes of it."""
    output = recipe.parent / "one"
    done = subprocess.run(run_words(recipe, output), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return contents(output)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler and two workers; the first test kills one of them."""
    with running_cluster(tmp_path_factory.mktemp("cluster"), workers=2) as running:
        yield running


def test_a_worker_killed_in_a_calibration_loses_nothing(
    cluster: Cluster, recipe: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    watch = Watch(cluster)
    with watch.looking():
        client = Client(cluster, recipe, tmp_path / "out")
        name = await_stage(cluster, "qcompile-calibrate-", client)
        before = finished(tmp_path / "out")
        cluster.workers.pop(name).kill()
        said = client.wait()
    assert said.code == 0, said.text
    assert "Traceback" not in said.text
    assert differing(tmp_path / "out", expected) == []
    assert wrong_files(cluster, tmp_path / "out") == []
    times = watch.times()
    assert before
    assert {times[stage] for stage in before} == {1}, "what the client held is not done again"


def test_what_a_worker_finished_just_before_it_was_killed_is_counted(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)  # of no processes
    cluster.workers["w1"] = cast(Member, None)
    watch = Watch(cluster)
    with watch.looking():
        record = cluster.store("w1") / "export-1/stage.json"
        record.parent.mkdir(parents=True)
        record.touch()
        del cluster.workers["w1"]  # before the next look
    assert watch.times() == {"export-1": 1}


def test_workers_without_room_or_of_another_version_are_named_and_others_go_on(
    cluster: Cluster, expected: dict[str, str], tmp_path: Path
) -> None:
    cluster.start_worker("limited", prefix=with_small_files(WEIGHTS // 2))
    other = another_version(tmp_path / "other", "onnxruntime", "0.0.9")
    cluster.start_worker("older", environment=other)
    cluster.wait("limited", "older")
    # Other samples: nothing of it is done.
    fresh = write_recipe(tmp_path / "recipe", samples=41, weights=WEIGHTS)
    said = run_once(cluster, fresh, tmp_path / "out")
    assert said.code == 0, said.text
    assert "Traceback" not in said.text
    assert "worker limited: " in said.text
    assert "File too large" in said.text
    assert "worker older " in said.text
    assert "onnxruntime 0.0.9; " in said.text
    for name in ("cpu.onnx", "small.onnx"):  # which no sample touches
        assert contents(tmp_path / "out")[name] == expected[name]
    assert wrong_files(cluster, tmp_path / "out") == []
    assert finished(cluster.store("older")) == set()
