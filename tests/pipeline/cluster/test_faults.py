"""Workers, stages and schedulers that are killed in a run lose nothing; measurements take turns."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("distributed", reason="the extra cluster is not installed")

from cluster_trials import INT8, Client, await_stage, contents, differing, write_recipe
from clusters import Cluster, running_cluster

from qcompile.errors import ClusterError
from qcompile.pipeline.cluster.connection import connect
from qcompile.pipeline.run import run

KILLED = """
import os, signal
import numpy as np

def samples():
    for number in range({kills}):
        try:
            os.close(os.open({folder!r} + f"/killed-{{number}}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)
    return [{{"x": np.full((1, 4, 8, 8), number, np.float32)}} for number in range(1, 4)]
"""
SLOW = """
import time

def slow(outputs, inputs):
    with open({spans!r}, "a") as file:
        file.write(f"{{time.time()}} ")
    time.sleep(0.5)
    with open({spans!r}, "a") as file:
        file.write(f"{{time.time()}}\\n")
    return 1.0
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), workers=2) as started:
        yield started


@pytest.mark.parametrize("kills", [2, pytest.param(9, marks=pytest.mark.slow)])
def test_dask_retries_a_stage_whose_process_is_killed(
    kills: int, tiny_file: Callable[..., Path], cluster: Cluster, tmp_path: Path
) -> None:
    tiny_file("residual")
    path = tmp_path / "recipe.toml"
    path.write_text(INT8.format("data.py:samples"))
    (tmp_path / "data.py").write_text(KILLED.format(kills=kills, folder=str(tmp_path)))
    with connect(cluster.address, told=lambda _: None) as executor:
        if kills == 2:
            assert not run(path, output=tmp_path / "out", executor=executor).failures
        else:
            with pytest.raises(ClusterError, match="SIGKILL"):
                run(path, output=tmp_path / "out", executor=executor)
    assert len(list(tmp_path.glob("killed-*"))) >= min(kills, 3)


def test_two_measurements_never_run_on_one_machine_at_a_time(cluster: Cluster, tmp_path: Path) -> None:
    """Two clients measure on the two workers of this machine; each notes when its process measures."""
    spans = tmp_path / "spans"
    reports: list[Any] = []

    def measure(name: str) -> None:
        folder = tmp_path / name
        recipe = write_recipe(folder, bench=True)
        (folder / "metric.py").write_text(SLOW.format(spans=str(spans)))
        np.savez(folder / "test.npz", x=np.zeros((4, 4, 16, 16), np.float32), labels=np.zeros(4, np.int64))
        with connect(cluster.address, told=lambda _: None) as executor:
            reports.append(run(recipe, output=folder / "out", executor=executor))

    threads = [threading.Thread(target=measure, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(reports) == 2
    assert all(report.results is not None for report in reports)
    times = sorted(tuple(map(float, line.split())) for line in spans.read_text().splitlines())
    assert len(times) >= 2
    assert all(len(span) == 2 for span in times), "no two wrote into one line"
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(times))


def test_a_worker_killed_in_a_calibration_loses_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """What only the killed worker held is uploaded again, and Dask gives its task to the other one."""
    recipe = write_recipe(tmp_path / "recipe", samples=20, pause_s=0.05, weights=1 << 20)
    run(recipe, output=tmp_path / "one")
    client = Client(cluster, recipe, tmp_path / "out")
    name = await_stage(cluster, "calibrate-", client)
    cluster.workers.pop(name).kill()
    code, said = client.wait()
    assert code == 0, said
    assert "Traceback" not in said
    assert differing(tmp_path / "out", contents(tmp_path / "one")) == []


def test_a_lost_scheduler_is_told_and_the_next_run_goes_on(
    cluster: Cluster, tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> None:
    tiny_file("residual")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(INT8.format(samples("residual", 4)))
    with connect(cluster.address, told=lambda _: None) as executor:
        first = run(recipe, output=tmp_path / "out", executor=executor)
        assert cluster.scheduler is not None
        cluster.scheduler.kill()
        with pytest.raises(ClusterError) as raised:
            run(recipe, output=tmp_path / "out", executor=executor)
    assert first.artifacts
    assert "run again to continue" in raised.value.hint
    cluster.start_scheduler()
    cluster.wait()
    with connect(cluster.address, told=lambda _: None) as connected:
        second = run(recipe, output=tmp_path / "out", executor=connected)
    assert "done" not in {second.stages[name] for name in ("export", "build-int8")}


@pytest.mark.slow
def test_fifteen_kills_of_workers_and_stage_processes_lose_nothing(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe", samples=40, pause_s=0.03, weights=3 << 20)
    run(recipe, output=tmp_path / "one")
    rng, kills, runs = random.Random(0), 0, 0
    with running_cluster(tmp_path / "cluster", workers=4) as cluster:
        while kills < 15:
            runs += 1
            client = Client(cluster, recipe, tmp_path / f"out-{runs}")
            while client.process.poll() is None and kills < 15:
                time.sleep(rng.uniform(1.0, 3.0))
                if client.process.poll() is not None:
                    break
                name = rng.choice(sorted(cluster.workers))
                stages = [child for child in cluster.workers[name].children() if child.is_running()]
                if stages and rng.random() < 0.5:
                    stages[0].kill()
                else:
                    cluster.workers[name].kill()
                    cluster.start_worker(name)
                kills += 1
            code, said = client.wait()
            assert code == 0, said
            assert differing(tmp_path / f"out-{runs}", contents(tmp_path / "one")) == []
            for name in cluster.workers:  # or the next run finds its stages done
                cluster.workers[name].kill()
                shutil.rmtree(cluster.store(name), ignore_errors=True)
                cluster.start_worker(name)
            cluster.wait()
        print(f"{kills} kills in {runs} runs")
