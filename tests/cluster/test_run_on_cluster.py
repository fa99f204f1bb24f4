"""A recipe on a real scheduler with two workers, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("distributed", reason="the extra cluster is not installed")

from clusters import Cluster, running_cluster

from qcompile.cluster.client.connection import connect
from qcompile.cluster.client.executor import ClusterExecutor
from qcompile.errors import ClusterError, DataError, EngineUnavailable, OutOfMemory
from qcompile.files import digest_files
from qcompile.pipeline.run import run

RECIPE = """
version = 1
name = "tiny"
[model]
source = "residual.onnx"
[data]
calibration = "calibration.npz"
[[artifact]]
name = "float"
target = "onnxruntime"
[[artifact]]
name = "int8"
target = "onnxruntime"
precision = "int8"
[[artifact]]
name = "vino"
target = "openvino"
"""
SAME = (
    "tiny.onnx", "tiny.simplified.onnx", "tiny.ranges", "tiny.ranges.json", "int8.graph.onnx",
    "int8.graph.onnx.json", "int8.onnx", "int8.onnx.json",
)  # fmt: skip
"""Files that are the same everywhere; ONNX Runtime names nodes of float.onnx in another order at times."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "lacking").mkdir()
    (folder / "lacking" / "openvino.py").write_text("raise ImportError('not on this machine')\n")
    import os

    paths = [str(folder / "lacking"), *filter(None, [os.environ.get("PYTHONPATH")])]
    with running_cluster(folder, workers=2, environment={"PYTHONPATH": os.pathsep.join(paths)}) as started:
        yield started


@pytest.fixture
def executor(cluster: Cluster) -> Iterator[ClusterExecutor]:
    with connect(cluster.address) as connected:
        yield connected


@pytest.fixture
def recipe(tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path) -> Path:
    tiny_file("residual")
    samples("residual", 7).rename(tmp_path / "calibration.npz")
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def test_workers_make_the_files_of_one_process(
    recipe: Path, executor: ClusterExecutor, tmp_path: Path
) -> None:
    one = run(recipe, output=tmp_path / "one")
    report = run(recipe, output=tmp_path / "out", executor=executor)
    for name in SAME:
        assert digest_files([tmp_path / "out" / name]) == digest_files([tmp_path / "one" / name]), name
    assert {"calibrate-1-of-2", "calibrate-2-of-2", "calibrate"} <= report.stages.keys()
    assert set(report.where.values()) == {"w1", "w2"}
    assert not list((tmp_path / "out").glob("*-of-*"))

    # No worker has the engine: its row says so, and the others go on.
    assert report.artifacts.keys() == one.artifacts.keys() - {"vino"}
    error = report.failures["vino"]
    assert isinstance(error, EngineUnavailable)
    assert "build-vino: no worker has openvino" in error.message
    assert "not on this machine" in error.hint

    again = run(recipe, output=tmp_path / "out", executor=executor)
    assert {stage: state for stage, state in again.stages.items() if state != "skipped"} == {
        "build-vino": "failed"
    }
    assert not again.where

    elsewhere = run(recipe, output=tmp_path / "elsewhere", executor=executor)
    assert {state for stage, state in elsewhere.stages.items() if stage != "build-vino"} == {"skipped"}
    for name in (*SAME, "float.onnx"):
        assert digest_files([tmp_path / "elsewhere" / name]) == digest_files([tmp_path / "out" / name])

    asked = run(recipe, output=tmp_path / "out", again=("build-int8",), executor=executor)
    assert [stage for stage, state in asked.stages.items() if state == "done"] == ["build-int8"]


def test_a_step_that_fails_says_what_one_process_says(
    recipe: Path, executor: ClusterExecutor, tmp_path: Path
) -> None:
    recipe.write_text(RECIPE.replace('[[artifact]]\nname = "float"\ntarget = "onnxruntime"\n', "", 1))
    recipe.write_text(recipe.read_text().replace('[[artifact]]\nname = "vino"\ntarget = "openvino"\n', ""))
    x = np.full((4, 4, 8, 8), np.nan, np.float32)
    np.savez(tmp_path / "calibration.npz", x=x)
    found = []
    for executed in (None, executor):
        with pytest.raises(DataError) as raised:
            run(recipe, output=tmp_path / "out", executor=executed)
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


@pytest.mark.parametrize("kills", [1, pytest.param(9, marks=pytest.mark.slow)])
def test_a_stage_that_is_killed_is_tried_once_more_on_another_worker(
    kills: int, recipe: Path, cluster: Cluster, tmp_path: Path
) -> None:
    artifacts = RECIPE.replace('[[artifact]]\nname = "float"\ntarget = "onnxruntime"\n', "", 1)
    text = artifacts.replace('[[artifact]]\nname = "vino"\ntarget = "openvino"\n', "")
    recipe.write_text(text.replace("calibration.npz", "data.py:samples"))
    (tmp_path / "data.py").write_text(KILLED.format(kills=kills, folder=str(tmp_path)))
    told: list[str] = []
    with connect(cluster.address, told=told.append) as connected:
        if kills == 1:
            assert not run(recipe, output=tmp_path / "out", executor=connected).failures
        else:
            with pytest.raises(OutOfMemory, match="SIGKILL"):
                run(recipe, output=tmp_path / "out", executor=connected)
    again = [said for said in told if "calibrate" in said and "tried once more on another worker" in said]
    killed = len(list(tmp_path.glob("killed-*")))
    assert len(again) == killed / min(kills, 2), "each part has one more try"
    assert 0 < killed < 9


def test_workers_are_lost_and_come_back(
    recipe: Path, cluster: Cluster, executor: ClusterExecutor, tmp_path: Path
) -> None:
    """What is done stays done, also where the scheduler is another one."""
    recipe.write_text(recipe.read_text().replace("int8", "other"))
    recipe.write_text(recipe.read_text().replace('precision = "other"', 'precision = "int8"'))
    first = run(recipe, output=tmp_path / "out", executor=executor)
    assert first.stages["build-other"] in ("done", "skipped")
    cluster.scheduler.kill()
    with pytest.raises(ClusterError) as raised:
        run(recipe, output=tmp_path / "out", executor=executor)
    assert "run again to go on" in raised.value.hint
    cluster.start_scheduler()
    cluster.wait()
    with connect(cluster.address) as connected:
        second = run(recipe, output=tmp_path / "out", executor=connected)
    assert {stage for stage, state in second.stages.items() if state != "skipped"} == {"build-vino"}
