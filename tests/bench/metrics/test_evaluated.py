"""Parts of an evaluation, written, read and put together, are the whole: bit for bit, for every metric."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from qcompile.bench.metrics.accuracy import METRICS, ScoreSums, accuracy, read_metric
from qcompile.bench.metrics.classes import EntityF1
from qcompile.bench.metrics.evaluated import (
    Answers,
    Evaluated,
    load_scores,
    merge,
    read_subject,
    save_scores,
)  # fmt: skip
from qcompile.bench.metrics.metric import Metric, Truth
from qcompile.bench.metrics.running_difference import RunningDifference
from qcompile.bench.results.row_json import accuracy_json, difference_json
from qcompile.errors import ArtifactError, DataError, MissingFile

Arrays = dict[str, NDArray[Any]]
Batch = tuple[Arrays, Arrays, NDArray[Any] | None, int]
"""Outputs of the baseline and of the artifact, labels, and the number of samples."""

WORDS = np.array(["a", "a b", "b c d", "e f"])
SPELLINGS = (
    *METRICS, "f1:micro", "f1:weighted", "f1:entities", "map:50", "ndcg:2", "neighbours:3", "miou:map",
)  # fmt: skip


def batch_of(name: str, rng: np.random.Generator, n: int) -> tuple[Arrays, NDArray[Any] | None]:
    """Outputs and labels that a metric takes; with ties, empty images and positions that do not count."""
    scores = rng.integers(0, 8, (n, 6)).astype(np.float32)
    kind = name.partition(":")[0]
    if name == "miou:map":  # whole numbers: a batch may hold classes that no other holds
        most = int(rng.integers(2, 9))
        return {"y": rng.integers(0, most, (n, 5, 4))}, rng.integers(0, most, (n, 5, 4))
    if kind == "miou":
        labels = rng.integers(0, 6, (n, 5, 4))
        return {"y": rng.standard_normal((n, 6, 5, 4))}, np.where(labels == 5, 255, labels)
    if kind in ("wer", "cer"):
        return {"y": rng.choice(WORDS, n).astype(object)}, rng.choice(WORDS, n)
    if kind == "map":
        corners = rng.uniform(0, 50, (n, 4, 2, 2)).cumsum(axis=2).reshape(n, 4, 4)
        found = {
            "boxes": corners + rng.standard_normal((n, 4, 4)),
            "labels": rng.integers(0, 3, (n, 4)),
            "scores": rng.integers(1, 5, (n, 4)) / 5,
        }
        return found, np.concatenate([rng.integers(-1, 3, (n, 4, 1)), corners], axis=2)
    if kind == "spearman":
        return {"y": rng.integers(0, 9, n).astype(np.float32)}, rng.integers(0, 9, n)
    if kind == "ndcg":
        return {"y": scores}, rng.integers(0, 3, (n, 6))
    if kind == "perplexity" or name == "f1:entities":
        labels = rng.integers(0, 5, (n, 4))
        return {"y": rng.standard_normal((n, 4, 5))}, np.where(labels == 4, -100, labels)
    if kind in ("neighbours", "kl", "cosine", "mse"):
        return {"y": rng.standard_normal((n, 6)).astype(np.float32)}, None
    return {"y": scores}, rng.integers(0, 6, n)


def metric_of(name: str) -> Metric:
    if name == "f1:entities":
        return EntityF1(name, ("O", "B-X", "I-X", "B-Y", "I-Y"))
    return read_metric("miou" if name == "miou:map" else name)


def batches_of(name: str, seed: int, count: int) -> list[Batch]:
    """Batches of 4, the last smaller; the artifact is wrong now and then."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        n = 3 if number == count - 1 else 4
        (base, labels), (other, _) = batch_of(name, rng, n), batch_of(name, rng, n)
        if name == "miou:map":
            other = {"y": np.minimum(other["y"], base["y"].max())}
        mixed = {key: np.where(_wide(rng.random(n) < 0.7, one), one, other[key]) for key, one in base.items()}
        found.append((base, mixed, labels, n))
    return found


def _wide(chosen: NDArray[np.bool_], like: NDArray[Any]) -> NDArray[np.bool_]:
    return chosen.reshape(-1, *[1] * (like.ndim - 1))


def evaluated(metric: Metric, batches: list[Batch], part: int = 1, parts: int = 1) -> Evaluated:
    """What is kept of the batches of a part."""
    found = Evaluated("base", part, parts)
    base, own = ScoreSums(metric), ScoreSums(metric)
    difference = RunningDifference("int8", keep=True)
    found.answers = {"base": Answers("fp32", base), "own": Answers("int8", own, difference)}
    for number, (reference, outputs, labels, samples) in enumerate(batches):
        if not found.holds(number):
            continue
        truth = Truth(labels, samples, f"batch {number}")
        scored = metric.score(reference, reference, truth)
        base.add(scored, scored, samples)
        own.add(metric.score(outputs, reference, truth), scored, samples)
        difference.add(reference, outputs)
        found.batches.append(number)
    return found


def figures(found: Evaluated) -> str:
    """All that a row tells, each float by all of its digits."""
    base, own = found.answers["base"].sums, found.answers["own"]
    assert base is not None
    assert own.sums is not None
    assert own.difference is not None
    told = [accuracy_json(accuracy(own.sums, base)), accuracy_json(accuracy(base, base))]
    return json.dumps([*told, difference_json(own.difference.result())])


def written(found: Evaluated, folder: Path) -> Path:
    path = folder / f"{found.part}.scores"
    save_scores(found, {"metric": "any"}, path)
    return path


@pytest.mark.parametrize("name", SPELLINGS)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(4, 9), parts=st.integers(1, 5), random=st.randoms())
def test_parts_are_the_whole(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int, count: int, parts: int, random: Any
) -> None:
    if name.startswith("neighbours"):
        count += 3  # more samples than neighbours
    folder, batches = tmp_path_factory.mktemp("parts"), batches_of(name, seed, count)
    metric = metric_of(name)
    found = [written(evaluated(metric, batches, part, parts), folder) for part in range(1, parts + 1)]
    random.shuffle(found)
    again = metric_of(name)
    merged = merge([load_scores(path, again) for path in found], again)
    assert merged.batches == list(range(count))
    assert figures(merged) == figures(evaluated(metric_of(name), batches))


def test_the_macro_f1_of_parts_is_that_of_scikit_learn(tmp_path: Path) -> None:
    from sklearn.metrics import f1_score

    batches, metric = batches_of("f1", 3, 12), metric_of("f1")
    files = [written(evaluated(metric, batches, part, 3), tmp_path) for part in (2, 3, 1)]
    sums = merge([load_scores(path, metric) for path in files], metric).answers["own"].sums
    assert sums is not None
    true = np.concatenate([labels for *_, labels, _ in batches if labels is not None])
    predicted = np.concatenate([outputs["y"].argmax(axis=1) for _, outputs, *_ in batches])
    assert sums.value() == pytest.approx(f1_score(true, predicted, average="macro"), rel=1e-12)


def test_a_function_of_the_users_that_scores_batches_is_merged(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def mean(outputs, labels):\n    return float(outputs['y'].mean())\n")
    metric, batches = read_metric(f"{tmp_path}/own.py:mean"), batches_of("top1", 1, 11)
    files = [written(evaluated(metric, batches, part, 4), tmp_path) for part in (1, 2, 3, 4)]
    merged = merge([load_scores(path, metric) for path in files], metric)
    assert figures(merged) == figures(evaluated(metric, batches))


def test_shapes_that_differ_and_infinite_errors_are_kept(tmp_path: Path) -> None:
    batches = batches_of("top1", 5, 6)
    batches[2][1]["y"][0, 0] = math.inf
    for wrong in (False, True):
        outputs = [{"y": np.zeros((n, 7), np.float32)} if wrong else found for _, found, _, n in batches]
        differences = [RunningDifference("int8", keep=True) for _ in range(3)]
        for number, found in enumerate(outputs):
            for difference in (differences[0], differences[1 + number % 2]):
                difference.add(batches[number][0], found)
        parts = [
            Evaluated(
                "base", at, 2, list(range(at - 1, 6, 2)), {"own": Answers("int8", None, differences[at])}
            )
            for at in (1, 2)
        ]
        merged = merge([load_scores(written(part, tmp_path), None) for part in parts], None)
        result = merged.answers["own"].difference
        assert result is not None
        assert difference_json(result.result()) == difference_json(differences[0].result())
        assert result.result().max_abs_error == math.inf
    assert result.result().criterion == "shape (3, 6) is required, (3, 7) found"


def test_an_artifact_that_failed_on_a_part_is_left_out(tmp_path: Path) -> None:
    metric, batches = metric_of("top1"), batches_of("top1", 0, 6)
    parts = [evaluated(metric, batches, part, 2) for part in (1, 2)]
    del parts[1].answers["own"]
    files = [written(part, tmp_path) for part in parts]
    assert list(merge([load_scores(path, metric) for path in files], metric).answers) == ["base"]


def test_what_is_no_whole_is_refused() -> None:
    metric, batches = metric_of("top1"), batches_of("top1", 0, 6)
    one, two, three = (evaluated(metric, batches, part, 3) for part in (1, 2, 3))
    with pytest.raises(DataError, match="parts 1, 3 of an evaluation in 3; each of them once is required"):
        merge([three, one], metric)
    with pytest.raises(DataError, match="parts 1, 1, 2 of"):
        merge([one, one, two], metric)
    two.batches.pop()
    with pytest.raises(DataError, match="lack batches"):
        merge([one, two, three], metric)
    three.base = "other"
    with pytest.raises(DataError, match="parts of different evaluations"):
        merge([one, two, three], metric)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    metric = metric_of("f1")
    path = written(evaluated(metric, batches_of("f1", 0, 5)), tmp_path)
    assert read_subject(path) == {"metric": "any"}
    whole = path.read_bytes()
    for content in (b"", whole[:100], whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match="not an evaluation, or cut off"):
            load_scores(path, metric)
    path.write_bytes(whole)
    with pytest.raises(ArtifactError, match="not an evaluation"):
        load_scores(path, metric_of("top1"))  # scored by another
    with safe_open(path, framework="np") as file:
        header, arrays = file.metadata()["qcompile"], {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(arrays, path, metadata={"qcompile": header.replace('"version": 2', '"version": 9')})
    with pytest.raises(ArtifactError, match="evaluation of version 9; this qcompile reads 2"):
        load_scores(path, metric)
    with pytest.raises(MissingFile):
        load_scores(tmp_path / "none", metric)
