"""A sweep of three models and three precisions on four workers makes the files of one process."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

pytest.importorskip("distributed", reason="the extra cluster is not installed")

from cluster_trials import model, wrong_files
from clusters import running_cluster

SWEEP = """
version = 1
name = "small"
[model]
simplify = false
[data]
calibration = "calibration.npz"
[sweep]
models = ["first=first.onnx", "second=second.onnx", "third=third.onnx"]
targets = ["onnxruntime"]
precisions = ["fp32", "fp16", "int8"]
"""


def write_sweep(folder: Path) -> Path:
    """Write a sweep of 3 x 3, and what it reads; the models differ in their weights."""
    folder.mkdir()
    for number, name in enumerate(("first", "second", "third"), start=1):
        made = model()
        for one in made.graph.initializer:
            values = numpy_helper.to_array(one) * np.float32(number)
            one.CopyFrom(numpy_helper.from_array(values, one.name))
        onnx.save(made, str(folder / f"{name}.onnx"))
    x = np.random.default_rng(0).standard_normal((16, 4, 16, 16)).astype(np.float32)
    np.savez(folder / "calibration.npz", x=x)
    path = folder / "recipe.toml"
    path.write_text(SWEEP)
    return path


def built(output: Path) -> dict[str, str]:
    """Return path to digest of the artifacts; ONNX Runtime 1.31 names nodes it adds anew each time."""
    found = {}
    for path in sorted(output.rglob("*.onnx")):
        if ".qcompile" in path.parts:
            continue
        graph = onnx.load(str(path))
        for node in graph.graph.node:
            node.name = ""
        content = graph.SerializeToString(deterministic=True)
        found[str(path.relative_to(output))] = hashlib.sha256(content).hexdigest()
    return found


def test_four_workers_make_the_sweep_of_one_process(tmp_path: Path) -> None:
    recipe = write_sweep(tmp_path / "recipe")

    def swept(output: Path, scheduler: str, environment: dict[str, str]) -> dict[str, str]:
        words = [sys.executable, "-m", "qcompile", "sweep", str(recipe), "--json", "-o", str(output)]
        done = subprocess.run(
            [*words, "--scheduler", scheduler], capture_output=True, text=True, timeout=300, cwd=tmp_path,
            env=environment,
        )  # fmt: skip
        assert done.returncode == 1, done.stdout + done.stderr  # no processor computes these layers in fp16
        value = json.loads(done.stdout)
        models = ("first", "second", "third")
        assert sorted(value["artifacts"]) == [
            f"{m}-onnxruntime-{p}" for m in models for p in ("fp32", "int8")
        ]
        assert sorted(value["failures"]) == [f"{model}-onnxruntime-fp16" for model in models]
        return built(output)

    one = swept(tmp_path / "one", "none", {**os.environ})
    with running_cluster(tmp_path / "cluster", workers=4) as cluster:
        four = swept(tmp_path / "four", cluster.address, cluster.environment())
        assert wrong_files(cluster, tmp_path / "four") == []
    assert len(one) >= 6
    assert four == one
