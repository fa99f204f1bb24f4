"""Engines for every kind of GPU in a cluster from one command, and `tune` on its workers.

No GPU is here: the workers announce two kinds by hand, and TensorRT-RTX builds for both ahead of time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("distributed", reason="the extra cluster is not installed")
pytest.importorskip("tensorrt_rtx")

from clusters import Cluster, running_cluster

import qcompile
from qcompile.bench.results.results import Results
from qcompile.bench.results.row import Latency, Row
from qcompile.core.artifact import read_manifest
from qcompile.core.files import digest_files
from qcompile.pipeline.cluster.connection import connect
from qcompile.pipeline.cluster.executor import ClusterExecutor
from qcompile.pipeline.recipe.recipe import Recipe
from qcompile.pipeline.stages.stage import FinishedStage, Stage
from qcompile.pipeline.tune import trials
from qcompile.pipeline.tune.elsewhere import on_executor
from qcompile.pipeline.tune.tune import tune

RECIPE = """
version = 1
name = "tiny"
[model]
source = "residual.onnx"
simplify = false
[[artifact]]
name = "engine"
target = "tensorrt-rtx"
gpus = ["cluster"]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("kinds"), workers=0) as started:
        for kind in ("sm86", "sm89"):
            started.start_worker(kind, arguments=["--resource", f"gpu-{kind}=1"])
        started.wait("sm86", "sm89")
        yield started


def test_one_command_builds_and_measures_an_engine_for_each_kind(
    cluster: Cluster, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    """No GPU is here: the engines' rows say so, and the baseline is measured on both."""
    tiny_file("residual", batch=1)
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE + "[bench]\nthreads = 1\nmax_time_s = 0.2\n")
    with connect(cluster.address) as executor:
        assert list(executor.kinds) == ["sm86", "sm89"]
        report = qcompile.run(path, output=tmp_path / "out", executor=executor)
        again = qcompile.run(path, output=tmp_path / "out", executor=executor)
    assert not report.failures
    assert sorted(report.artifacts) == ["engine-sm86", "engine-sm89"]
    for name, engine in report.artifacts.items():
        manifest = read_manifest(engine)
        assert manifest is not None
        assert manifest.device["gpus"] == [name.removeprefix("engine-")]
        assert report.where[f"build-{name}"] in ("sm86", "sm89")
    assert report.results is not None
    assert [(row.name, row.machine, row.status) for row in report.results.rows] == [
        ("original", "sm86", "measured"), ("engine-sm86", "sm86", "not run"),
        ("original (sm89)", "sm89", "measured"), ("engine-sm89", "sm89", "not run"),
    ]  # fmt: skip
    assert {kind: report.where[f"bench-{kind}"] for kind in ("sm86", "sm89")} == {
        "sm86": "sm86", "sm89": "sm89",
    }  # fmt: skip
    assert set(again.stages.values()) == {"skipped"}
    path.write_text(RECIPE.replace('"cluster"', '"sm86"'))
    alone = qcompile.run(path, output=tmp_path / "alone").artifacts["engine"]
    assert digest_files([alone]) == digest_files([report.artifacts["engine-sm86"]])


def given_latencies(artifacts: Mapping[str, str], *, baseline: str, **_: Any) -> Results:
    """In place of `benchmark`: INT8 is faster, whatever this machine does meanwhile."""
    rows = [Row(name, path, "onnxruntime", latency=Latency(median_ms=1.0 + ("fp32" in name)))
            for name, path in artifacts.items()]  # fmt: skip
    return Results(baseline=baseline, rows=rows, environment={}, settings={})


def test_tune_on_workers_finds_what_one_process_finds(
    cluster: Cluster, tiny_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "benchmark", given_latencies)
    model = tiny_file("residual")
    x = np.random.default_rng(0).standard_normal((24, 4, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    data = str(tmp_path / "data.npz")
    options: dict[str, Any] = {
        "max_drop": 4e-3, "metric": "cosine", "targets": ["onnxruntime"], "method": "minmax", "threads": 1,
    }  # fmt: skip
    alone = tune(str(model), data, tmp_path / "alone", **options)
    folder = tmp_path / "spread"
    did = list[str]()
    do = ClusterExecutor.do

    def noted(
        executor: ClusterExecutor, recipe: Recipe, stage: Stage, *more: Any, **named: Any
    ) -> FinishedStage | None:
        done = do(executor, recipe, stage, *more, **named)
        did.extend([stage.name] if done and done.where in ("sm86", "sm89") else [])
        return done

    monkeypatch.setattr(ClusterExecutor, "do", noted)
    with connect(cluster.address) as executor:
        spread = tune(str(model), data, folder, **options, elsewhere=on_executor(executor, folder))
    told = json.dumps(spread.as_json()).replace(str(folder), str(tmp_path / "alone"))
    assert json.loads(told) == json.loads(json.dumps(alone.as_json()))
    assert len([name for name in did if name.startswith("rank-")]) == 2
    assert len([name for name in did if name.startswith("trial-")]) >= len(spread.trials) > 2
