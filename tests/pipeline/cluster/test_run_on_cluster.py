"""A recipe on a real scheduler with workers, each in a process of its own: the files of one process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

pytest.importorskip("distributed", reason="the extra cluster is not installed")

from cluster_trials import INT8, contents, differing, run_words, write_recipe
from clusters import HAS_OPENSSL, Cluster, another_version, make_certificates, running_cluster

from qcompile.errors import ClusterError, DataError, EngineUnavailable
from qcompile.pipeline.cluster.connection import connect
from qcompile.pipeline.run import run

WEIGHTS = 3 << 20


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
    """A recipe whose model is large enough to be seen on its way."""
    return write_recipe(tmp_path_factory.mktemp("recipe"), samples=6, weights=WEIGHTS)


@pytest.fixture(scope="module")
def expected(recipe: Path) -> dict[str, str]:
    """What one process makes of it."""
    run(recipe, output=recipe.parent / "one")
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
        assert sum(path.stat().st_size for path in files) > WEIGHTS
        assert carried < WEIGHTS / 4, "the bytes of files go from worker to worker"
        assert {"calibrate-1-of-2", "calibrate-2-of-2", "calibrate"} <= report.stages.keys()
        assert set(report.where.values()) == {"w1", "w2"}
        assert any("worker older" in text and "onnxruntime 0.0.9; " in text for text in told)

        # No worker has the engine: its row says so, and the others go on.
        error = report.failures["vino"]
        assert isinstance(error, EngineUnavailable)
        assert "build-vino: no worker has openvino" in error.message

        second = run(recipe, output=tmp_path / "out", again=("build-int8",), executor=executor)
        assert [stage for stage, state in second.stages.items() if state != "skipped"] == ["build-int8"]

    # Another client, whose files a store carries.
    with connect(cluster.address, store=tmp_path / "store", told=lambda _: None) as executor:
        run(recipe, output=tmp_path / "other", executor=executor)
    assert differing(tmp_path / "other", expected) == []
    assert len(list((tmp_path / "store").glob("qcompile-*"))) > 4


@pytest.mark.skipif(not HAS_OPENSSL, reason="openssl is not installed")
def test_a_run_over_tls_makes_the_files_of_one_process_and_needs_a_certificate(
    recipe: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    files = make_certificates(tmp_path / "tls")
    with running_cluster(tmp_path / "cluster", workers=1, security=files) as cluster:
        assert cluster.address.startswith("tls://")
        options = {f"tls_{name}": path for name, path in files.items()}
        with connect(cluster.address, **options) as executor:
            run(recipe, output=tmp_path / "out", executor=executor)
        assert differing(tmp_path / "out", expected) == []
        with pytest.raises(ClusterError, match="certificates are required"), connect(cluster.address):
            pass
        plain = cluster.address.replace("tls://", "tcp://")
        with pytest.raises(ClusterError, match="cannot be reached"), connect(plain):
            pass


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
    errors = []
    with connect(cluster.address, told=lambda _: None) as executor:
        for executed in (None, executor):
            with pytest.raises(DataError) as raised:
                run(path, output=tmp_path / "out", executor=executed)
            errors.append(raised.value)
    assert errors[0].message == errors[1].message
    assert errors[0].hint == errors[1].hint
    assert errors[1].data["worker"] in ("w1", "w2")
