"""Examples with small settings: copied, cut to a few artifacts, built without a benchmark, and evaluated."""

from __future__ import annotations

import contextlib
import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np

import qcompile
from qcompile.bench.metrics.accuracy import ScoreSums, read_metric
from qcompile.bench.metrics.metric import Truth
from qcompile.core.artifact import read_manifest
from qcompile.data.batches import Data
from qcompile.pipeline.run import RunReport
from qcompile.pipeline.run import run as run_recipe

EXAMPLES = Path(__file__).parents[2] / "examples"


def copied(name: str, folder: Path, *others: str) -> Path:
    """Copy an example, and the folders of others that it reads, without what was built there."""
    for one in (name, *others):
        shutil.copytree(EXAMPLES / one, folder / one, ignore=shutil.ignore_patterns("out", "__*"))
    return folder / name


def built(folder: Path, *artifacts: str, samples: int) -> RunReport:
    """Run an example's recipe for some of its artifacts, on fewer samples and without measuring."""
    path = folder / "recipe.toml"
    text = path.read_text(encoding="utf-8").partition("\n[bench]")[0] + "\n"
    head, *tables = re.split(r"^(?=\[\[artifact\]\])", text, flags=re.M)
    kept = [one for one in tables if re.search(r'^name = "(.+)"', one, re.M)[1] in artifacts]  # type: ignore[index]
    assert len(kept) == len(artifacts)
    # One way to quantize in place of the best of several, which takes most of the time.
    kept = [
        one.rstrip() + "\nsearch = false\n\n" if "mode = " not in one and '"int8"' in one else one
        for one in kept
    ]
    given, section = f"[calibrate]\nsamples = {samples}\n", "[calibrate]\n"
    head = head.replace(section, given) if section in head else f"{head}{given}\n"
    path.write_text(head + "".join(kept), encoding="utf-8")
    report = run_recipe(path)
    assert not report.failures
    return report


def value(folder: Path, artifact: Path, metric: str, *, most: int = 10_000) -> float:
    """The metric of an artifact over the first samples of the example's evaluation, run in this process."""
    io = read_manifest(artifact).io  # unlike the runner's, it says how samples become inputs
    assert io is not None
    with qcompile.load(artifact, threads=1) as runner:
        judged = read_metric(metric, inputs=io.inputs)
        sums = ScoreSums(judged)
        for batch in Data(f"{folder}/data.py:evaluation", runner.io.inputs, limit=most):
            outputs = runner.infer(batch.feeds)
            scored = judged.score(outputs, outputs, Truth(batch.labels, batch.samples, batch.where))
            sums.add(scored, scored, batch.samples)
    return sums.value()


@contextlib.contextmanager
def modules(folder: Path, *names: str) -> Iterator[list[ModuleType]]:
    """Import modules of an example as its train.py does, and forget them afterwards."""
    own = {path.stem for path in folder.glob("*.py")}
    aside = {name: sys.modules.pop(name) for name in own & set(sys.modules)}  # another example's data.py
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(folder))
        for name in own & set(sys.modules):
            del sys.modules[name]
        sys.modules.update(aside)


def trains(folder: Path, weights: Path) -> None:
    """Check that a few steps of the example's train.py write weights as its model.py reads them."""
    from safetensors.numpy import load_file

    with modules(folder, "train", "model") as (train, model):
        train.train(weights, steps=2)
        committed = load_file(model.WEIGHTS)
    made = load_file(weights)
    assert {name: array.shape for name, array in made.items()} == {
        name: array.shape for name, array in committed.items()
    }
    assert all(np.isfinite(array.astype(np.float64)).all() for array in made.values())
    assert (EXAMPLES / folder.name / model.WEIGHTS.name).stat().st_size <= 300_000
