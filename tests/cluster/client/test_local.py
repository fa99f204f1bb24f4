"""`local`: a scheduler and a worker in this process, which nobody else can reach."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

pytest.importorskip("distributed", reason="the extra cluster is not installed")

from qcompile.cluster.client.local import local
from qcompile.pipeline.run import run
from qcompile.pipeline.store import Store

RECIPE = """
version = 1
name = "tiny"
[model]
source = "residual.onnx"
simplify = false
[data]
calibration = "data.py:calibration"
[[artifact]]
name = "int8"
target = "onnxruntime"
precision = "int8"
"""
DATA = """
import json
import time
from pathlib import Path

import numpy as np

def calibration():
    began = time.monotonic()
    for number in range(4):
        time.sleep(0.1)
        yield {{"x": np.full((1, 4, 8, 8), number - 1.5, np.float32)}}
    with Path({times!r}).open("a") as file:
        file.write(json.dumps([began, time.monotonic(), {name!r}]) + "\\n")
"""


def test_stages_that_need_all_memory_do_not_run_together(
    tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    times = tmp_path / "times"
    recipes = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        tiny_file("residual").rename(folder / "residual.onnx")
        (folder / "data.py").write_text(DATA.format(times=str(times), name=name))
        recipes.append(folder / "recipe.toml")
        recipes[-1].write_text(RECIPE)
        store = Store(folder / "out")
        with store.locked():  # the last time it took 10 GB
            took = {"seconds": 1.0, "peak_bytes": 10_000_000_000}
            for stage in ("calibrate", "quantize-int8", "build-int8"):  # they read the data
                store.run(stage, {}, lambda at: (at / "old").write_text(""), publish=False, took=took)

    failed: list[Exception] = []

    def go(recipe: Path) -> None:
        try:
            report = run(recipe, executor=executor)
            assert report.where["calibrate"] == "local"
        except Exception as error:
            failed.append(error)

    before = set(psutil.Process().children(recursive=True))  # of other tests
    listened = {one.laddr for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN}
    with local(slots=2, memory_bytes=16_000_000_000) as executor:
        assert executor.parallel == 2
        listening = [one for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN]
        assert {one.laddr for one in listening} <= listened, "nobody else can reach it"
        threads = [threading.Thread(target=go, args=(recipe,)) for recipe in recipes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
    assert not failed
    spans = [json.loads(line) for line in times.read_text().splitlines()]
    first, second = ([span for span in spans if span[2] == name] for name in ("a", "b"))
    assert first
    assert second
    for one in first:
        assert all(one[1] <= other[0] or other[1] <= one[0] for other in second), "20 GB of 16"
    assert set(psutil.Process().children(recursive=True)) <= before

    again = run(recipes[0])
    assert set(again.stages.values()) == {"skipped"}, "this process finds what a worker did"


def test_a_lost_connection_is_silent_and_any_other_error_of_the_loop_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(error: Exception) -> None:
        raise error

    with local() as executor:
        loop = executor.client.loop.asyncio_loop
        for error in (OSError("closed"), TimeoutError(), ValueError("a defect")):
            loop.call_soon_threadsafe(fail, error)
        executor.client.ncores()  # its loop has done them
        until = time.monotonic() + 60
        while "a defect" not in caplog.text and time.monotonic() < until:
            time.sleep(0.05)
    said = [str(record.exc_info) for record in caplog.records if record.name == "asyncio"]
    assert len(said) == 1
    assert "a defect" in said[0]
