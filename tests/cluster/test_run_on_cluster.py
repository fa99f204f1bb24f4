"""A recipe on a real scheduler with workers, each in a process of its own: the promises."""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

pytest.importorskip("distributed", reason="the extra cluster is not installed")

from cluster_trials import Client, await_stage, contents, differing, run_once, run_words, write_recipe
from clusters import HAS_OPENSSL, Cluster, another_version, make_certificates, running_cluster
from recipes import artifact

from qcompile.cluster.connection import connect
from qcompile.errors import ClusterError, DataError, EngineUnavailable
from qcompile.pipeline.run import run

WEIGHTS = 3 << 20
INT8 = (
    'version = 1\nname = "tiny"\n[model]\nsource = "residual.onnx"\n[data]\ncalibration = "{}"\n'
    + artifact("int8", precision="int8")
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers that lack OpenVINO, and one of another version of ONNX Runtime."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "lacking").mkdir()
    (folder / "lacking" / "openvino.py").write_text("raise ImportError('not on this machine')\n")
    paths = [str(folder / "lacking"), *filter(None, [os.environ.get("PYTHONPATH")])]
    with running_cluster(folder, workers=2, environment={"PYTHONPATH": os.pathsep.join(paths)}) as started:
        started.start_worker("older", environment=another_version(folder / "other", "onnxruntime", "0.0.9"))
        started.wait("older")
        yield started


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe whose calibration takes a second, and whose model is large enough to be seen on its way."""
    return write_recipe(tmp_path_factory.mktemp("recipe"), samples=40, pause_s=0.03, weights=WEIGHTS)


@pytest.fixture(scope="module")
def expected(recipe: Path) -> dict[str, str]:
    """What one process makes of it."""
    words = run_words(recipe, recipe.parent / "one")
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return contents(recipe.parent / "one")


def sent_by_scheduler(cluster: Cluster) -> int:
    """Bytes that the scheduler's process has written, to sockets, pipes and files (Linux)."""
    assert cluster.scheduler is not None
    return int(psutil.Process(cluster.scheduler.process.pid).io_counters().write_chars)


def test_workers_make_the_files_of_one_process_and_the_scheduler_carries_none(
    recipe: Path, expected: dict[str, str], cluster: Cluster, tmp_path: Path
) -> None:
    text = recipe.read_text() + '[[artifact]]\nname = "vino"\ntarget = "openvino"\n'
    (recipe.parent / "more.toml").write_text(text)
    told: list[str] = []
    with connect(cluster.address, told=told.append) as executor:
        before = sent_by_scheduler(cluster)
        report = run(recipe.parent / "more.toml", output=tmp_path / "out", executor=executor)
        carried = sent_by_scheduler(cluster) - before
        assert differing(tmp_path / "out", expected) == []
        files = [path for path in (tmp_path / "out").iterdir() if path.is_file()]
        assert sum(path.stat().st_size for path in files) > 2 * WEIGHTS
        assert carried < WEIGHTS / 4, "the bytes of files go from worker to worker"
        assert {"calibrate-1-of-2", "calibrate-2-of-2", "calibrate"} <= report.stages.keys()
        assert set(report.where.values()) == {"w1", "w2"}
        assert any("worker older" in said and "onnxruntime 0.0.9; " in said for said in told)

        # No worker has the engine: its row says so, and the others go on.
        error = report.failures["vino"]
        assert isinstance(error, EngineUnavailable)
        assert "build-vino: no worker has openvino" in error.message

        again = run(recipe.parent / "more.toml", output=tmp_path / "out", executor=executor)
        assert {state for stage, state in again.stages.items() if stage != "build-vino"} == {"skipped"}
        asked = run(recipe, output=tmp_path / "out", again=("build-cpu-int8",), executor=executor)
        assert [stage for stage, state in asked.stages.items() if state == "done"] == ["build-cpu-int8"]


def test_a_shared_store_carries_the_files(
    recipe: Path, expected: dict[str, str], cluster: Cluster, tmp_path: Path
) -> None:
    said = run_once(cluster, recipe, tmp_path / "out", "--store", tmp_path / "store")
    assert said.code == 0, said.text
    assert differing(tmp_path / "out", expected) == []
    assert len(list((tmp_path / "store").glob("qcompile-*"))) > 4


@pytest.mark.skipif(not HAS_OPENSSL, reason="openssl is not installed")
def test_a_run_over_tls_makes_the_files_of_one_process_and_needs_a_certificate(
    recipe: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    files = make_certificates(tmp_path / "tls")
    with running_cluster(tmp_path / "cluster", workers=1, security=files) as cluster:
        assert cluster.address.startswith("tls://")
        words = [word for name, path in files.items() for word in (f"--tls-{name}", path)]
        said = run_once(cluster, recipe, tmp_path / "out", *words)
        assert said.code == 0, said.text
        assert differing(tmp_path / "out", expected) == []
        refused = run_once(cluster, recipe, tmp_path / "refused")
        assert refused.code != 0
        assert not any((tmp_path / "refused").glob("*.onnx"))


def test_local_processes_make_the_files_of_one_process(
    recipe: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    words = run_words(recipe, tmp_path / "out", "--scheduler", "local")
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert differing(tmp_path / "out", expected) == []


def test_a_step_that_fails_says_what_one_process_says(
    tiny_file: Callable[..., Path], cluster: Cluster, tmp_path: Path
) -> None:
    tiny_file("residual")
    np.savez(tmp_path / "calibration.npz", x=np.full((4, 4, 8, 8), np.nan, np.float32))
    path = tmp_path / "recipe.toml"
    path.write_text(INT8.format("calibration.npz"))
    found = []
    with connect(cluster.address, told=lambda _: None) as executor:
        for executed in (None, executor):
            with pytest.raises(DataError) as raised:
                run(path, output=tmp_path / "out", executor=executed)
            found.append(raised.value)
    assert found[0].message == found[1].message
    assert found[0].hint == found[1].hint
    assert found[1].data["worker"] in ("w1", "w2")


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
        recipe = write_recipe(folder, samples=2, bench=True)
        (folder / "metric.py").write_text(
            "import time\n"
            "def slow(outputs, inputs):\n"
            f"    with open({str(spans)!r}, 'a') as file:\n"
            "        file.write(f'{time.time()} ')\n"
            "    time.sleep(1.0)\n"
            f"    with open({str(spans)!r}, 'a') as file:\n"
            "        file.write(f'{time.time()}\\n')\n"
            "    return 1.0\n"
        )
        np.savez(folder / "test.npz", x=np.zeros((4, 4, 16, 16), np.float32), labels=np.zeros(4, np.int64))
        text = recipe.read_text().replace("[data]\n", '[data]\nevaluation = "npz:test.npz"\n')
        recipe.write_text(text.replace("[bench]\n", '[bench]\nmetric = "metric.py:slow"\n'))
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
    fresh = write_recipe(tmp_path / "recipe", samples=40, pause_s=0.05, weights=WEIGHTS)
    subprocess.run(run_words(fresh, tmp_path / "one"), check=True, capture_output=True, timeout=300)
    client = Client(cluster, fresh, tmp_path / "out")
    name = await_stage(cluster, "calibrate-", client)
    cluster.workers.pop(name).kill()
    said = client.wait()
    assert said.code == 0, said.text
    assert "Traceback" not in said.text
    assert differing(tmp_path / "out", contents(tmp_path / "one")) == []


def test_a_lost_scheduler_is_told_and_the_next_run_goes_on(
    cluster: Cluster, recipe: Path, tmp_path: Path
) -> None:
    with connect(cluster.address, told=lambda _: None) as executor:
        first = run(recipe, output=tmp_path / "out", executor=executor)
        assert cluster.scheduler is not None
        cluster.scheduler.kill()
        with pytest.raises(ClusterError) as raised:
            run(recipe, output=tmp_path / "out", executor=executor)
    assert first.artifacts
    assert "run again to go on" in raised.value.hint
    cluster.start_scheduler()
    cluster.wait()
    with connect(cluster.address, told=lambda _: None) as connected:
        second = run(recipe, output=tmp_path / "out", executor=connected)
    assert "done" not in {second.stages[name] for name in ("export", "build-cpu", "build-cpu-int8")}


@pytest.mark.slow
def test_fifteen_kills_of_workers_and_stage_processes_lose_nothing(
    recipe: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    import random
    import time

    rng, kills, runs = random.Random(0), 0, 0
    with running_cluster(tmp_path / "cluster", workers=4) as cluster:
        while kills < 15:
            runs += 1
            client = Client(cluster, recipe, tmp_path / f"out-{runs}")
            while client.process.poll() is None and kills < 15:
                time.sleep(rng.uniform(1.0, 5.0))
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
            said = client.wait()
            assert said.code == 0, said.text
            assert differing(tmp_path / f"out-{runs}", expected) == []
            for name in cluster.workers:  # or the next run finds its stages done
                cluster.workers[name].kill()
                subprocess.run(["rm", "-rf", str(cluster.store(name))], check=True)
                cluster.start_worker(name)
            cluster.wait()
        print(f"{kills} kills in {runs} runs")
