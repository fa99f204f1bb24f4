"""Cosine and squared error by hand; rankings against scikit-learn and scipy; neighbours by a plain search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import spearmanr
from scoring import expanded, scored, value
from sklearn.metrics import ndcg_score

from qcompile.bench.metrics import values as neighbours
from qcompile.bench.metrics.accuracy import read_metric
from qcompile.bench.metrics.metric import Truth, join_scores
from qcompile.bench.metrics.values import cosine
from qcompile.errors import DataError

RNG = np.random.default_rng(3)
BASELINE = {"y": RNG.standard_normal((4, 5)), "z": RNG.standard_normal((4, 2, 3))}
FOUND = {"y": RNG.standard_normal((4, 5)), "z": RNG.standard_normal((4, 2, 3))}


def values(metric: str, labels: NDArray[Any] | None, outputs: Any = None) -> list[float]:
    """The value of each sample."""
    scored = read_metric(metric).score(outputs or FOUND, BASELINE, Truth(labels, 4, "data[0:4]"))
    assert scored.predictions is None
    return [float(value) for value, weight in scored.table if weight == 1.0]


def by_hand(metric: str, a: NDArray[Any], b: NDArray[Any]) -> float:
    if metric == "mse":
        return sum((x - y) ** 2 for x, y in zip(a.ravel(), b.ravel(), strict=True)) / a.size
    return float(a.ravel() @ b.ravel() / np.sqrt((a.ravel() @ a.ravel()) * (b.ravel() @ b.ravel())))


@pytest.mark.parametrize("metric", ["cosine", "mse"])
def test_targets_are_compared_with_the_first_output_else_all_with_the_baselines(metric: str) -> None:
    targets = RNG.standard_normal((4, 5))
    expected = [by_hand(metric, FOUND["y"][i], targets[i]) for i in range(4)]
    assert values(metric, targets) == pytest.approx(expected)
    assert values(metric, targets.reshape(4, 1, 5, 1)) == pytest.approx(expected)
    against = [
        (by_hand(metric, FOUND["y"][i], BASELINE["y"][i]) + by_hand(metric, FOUND["z"][i], BASELINE["z"][i]))
        / 2
        for i in range(4)
    ]
    assert values(metric, None) == pytest.approx(against)
    assert values(metric, np.array([0, 1, 2, 0])) == pytest.approx(against)  # classes are no targets
    assert values(metric, None, BASELINE) == pytest.approx([float(metric == "cosine")] * 4)


@pytest.mark.parametrize("metric", ["cosine", "mse"])
def test_masks_do_not_count(metric: str) -> None:
    """But where one is masked no more."""
    is_masked = np.arange(20).reshape(4, 5) % 3 == 0
    sides = [
        {"y": np.where(is_masked, mask, side["y"])} for side, mask in ((FOUND, -np.inf), (BASELINE, -1e9))
    ]
    expected = [
        by_hand(metric, *(np.where(is_masked[i], 0, s["y"][i]) for s in (FOUND, BASELINE))) for i in range(4)
    ]
    scored = read_metric(metric).score(*sides, Truth(None, 4, "here"))
    np.testing.assert_allclose(scored.table[:, 0], expected)
    scored = read_metric(metric).score({"y": FOUND["y"]}, sides[1], Truth(None, 4, "here"))
    assert (np.abs(scored.table[:, 0] - expected) > 0.1).any()


@pytest.mark.parametrize("metric", ["cosine", "mse"])
def test_the_axis_of_samples_may_be_another_as_of_the_states_of_an_lstm(metric: str) -> None:
    """[directions, batch, hidden]; `init` chose a metric for an encoder with states, and `bench` refused."""
    sides = [{"y": side["y"], "h": np.moveaxis(side["z"], 0, 1)} for side in (FOUND, BASELINE)]
    found = read_metric(metric).score(*sides, Truth(None, 4, "here")).table[:, 0]
    np.testing.assert_allclose(found, values(metric, None))
    alone = [{"h": side["z"][:2, :1]} for side in (FOUND, BASELINE)]  # [2, 1, 3] of one sample
    found = read_metric(metric).score(*alone, Truth(None, 1, "here")).table[:, 0]
    assert found.tolist() == [pytest.approx(by_hand(metric, alone[0]["h"], alone[1]["h"]))]


def test_whole_numbers_of_the_outputs_shape_are_targets() -> None:
    outputs = {"y": np.array([[1.0], [2.0], [3.0], [4.0]])}
    assert values("mse", np.array([1, 2, 3, 6]), outputs) == [0.0, 0.0, 0.0, 4.0]


def test_nothing_is_like_nothing_and_unlike_anything_else() -> None:
    rows = np.array([[0.0, 0.0], [1.0, 0.0]])
    assert cosine(rows, np.zeros((2, 2))).tolist() == [1.0, 0.0]
    huge = np.array([[3e300, 4e300]])
    assert cosine(huge, huge / 2) == pytest.approx(1.0)
    assert cosine(huge, 1 / huge) == pytest.approx(24 / 25)


def test_one_number_a_sample_has_its_relative_error_and_no_cosine() -> None:
    """Scores of a trained PLCMOS that are all above 0 had a cosine of 1, whatever they were."""
    metric = read_metric("cosine")
    scores = np.array([1.0, 2.0, 2.0])
    for found, expected, kept in (
        (np.array([1.0, 2.0, 2.5]), scores, 0.9), (scores, scores, 1.0), (-scores, scores, 0.0),
        (scores * 0, scores * 0, 1.0),
    ):  # fmt: skip
        scored = metric.score({"y": found[:, None]}, {"y": expected[:, None]}, Truth(None, 3, "here"))
        assert metric.values(scored)(np.ones((1, 3)))[0] == pytest.approx(kept)


@pytest.mark.parametrize("metric", ["cosine", "mse"])
def test_what_has_no_such_value_is_refused(metric: str) -> None:
    for labels, outputs, said in (
        (np.zeros((4, 3)), FOUND, r"data\[0:4\]: targets of shape \(4, 3\); the shape of output 'y'"),
        (np.full((4, 5), np.nan), FOUND, "holds NaN"),
        (None, {**FOUND, "z": np.where(FOUND["z"] > 0, FOUND["z"], np.nan)}, "output 'z' holds NaN"),
        (None, {**FOUND, "z": np.where(FOUND["z"] > 0, FOUND["z"], np.inf)}, "output 'z' holds an infinity"),
        (None, {**FOUND, "z": np.zeros((4, 6))}, r"'z' is of shape \(4, 6\); the baseline's, \(4, 2, 3\)"),
    ):
        with pytest.raises(DataError, match=said):
            values(metric, labels, outputs)
    for array, said in (
        (np.zeros((1, 2, 5)), "an axis of samples is required"),
        (np.array(["a"] * 4), "numbers are required"),
    ):
        with pytest.raises(DataError, match=said):
            read_metric(metric).score({"y": array}, {"y": array}, Truth(None, 4, "data"))


def test_the_metric_of_the_page_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "measuring.md").read_text()
    marker = "<!-- metric: run by tests/bench/metrics/test_values.py -->\n```python\n"
    (tmp_path / "metric.py").write_text(page.split(marker)[1].split("```")[0])
    metric = read_metric(f"{tmp_path / 'metric.py'}:parity")
    truth = Truth(np.array([2, 0, 0, 1]), 4, "data[0:4]")  # against classes 0, 1, 2, 3
    scored = metric.score({"logits": np.eye(4)}, None, truth)
    assert scored.table.tolist() == [[1, 1], [0, 1], [1, 1], [1, 1]]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 8), items=st.integers(2, 9), k=st.integers(1, 10))
def test_ndcg_is_that_of_scikit_learn(seed: int, count: int, items: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    relevance = rng.integers(0, 4, (count, items)) * (rng.random((count, 1)) < 0.8)
    scores = rng.integers(-3, 4, (count, items)).astype(np.float32)  # many ties
    for metric, cut in (("ndcg", None), (f"ndcg:{k}", k)):
        expected = ndcg_score(relevance, scores, k=cut)
        assert value(metric, scores, relevance, [count // 2]) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(3, 40), levels=st.integers(2, 30))
def test_spearman_is_that_of_scipy(seed: int, count: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    found, targets = rng.integers(0, levels, (2, count)).astype(np.float64)
    found[:2], targets[:2] = [0, 1], [1, 0]  # not all equal
    expected = float(spearmanr(found, targets).statistic)
    assert value("spearman", found[:, None], targets, [count // 2]) == pytest.approx(expected, abs=1e-12)


def test_weights_are_repeated_samples() -> None:
    rng = np.random.default_rng(2)
    found, targets = rng.integers(0, 9, (2, 40)).astype(np.float64)
    metric = read_metric("spearman")
    values = metric.values(join_scores([metric.score({"y": found}, {}, Truth(targets, 40, "data"))]))
    for weights in rng.integers(0, 3, (20, 40)).astype(np.float64):
        expected = spearmanr(expanded(found, weights), expanded(targets, weights)).statistic
        assert values(weights[None])[0] == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize(
    ("metric", "outputs", "labels", "message"),
    [
        ("ndcg", np.zeros((1, 3)), np.array([[0, -1, 2]]), "relevance -1; 0 or more is required"),
        ("ndcg", np.zeros((2, 3)), np.zeros((2, 4)), r"output 'y' of shape \(2, 3\) with labels of shape"),
        ("ndcg", np.zeros((2, 3)), None, "has no labels; ndcg needs the relevance"),
        ("spearman", np.zeros(12), np.arange(12.0), "spearman: outputs or targets are all equal"),
        ("spearman", np.zeros((12, 2)), np.arange(12.0), "one number of each for a sample is required"),
        ("neighbours", np.ones((10, 3), np.float32), None, "10 samples; more than 10 are.*\n.*neighbours:5"),
        ("neighbours", np.ones((10, 3, 3), np.float32), None, r"embeddings \[batch, size\]"),
    ],
)
def test_what_has_no_rank_is_refused(metric: str, outputs: Any, labels: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        value(metric, outputs, labels)


Floats = NDArray[np.float64]


def nearest(rows: Floats, k: int) -> list[set[int]]:
    """By a plain search; of equal similarities the earlier is nearer."""
    found = []
    for i, one in enumerate(rows):
        near = sorted(
            (
                (-round(float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other))), 12), j)
                for j, other in enumerate(rows)
                if j != i
            )
        )
        found.append({j for _, j in near[:k]})
    return found


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(8, 25), k=st.integers(1, 7))
def test_the_share_of_kept_neighbours_is_that_of_a_plain_search(seed: int, count: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((count, 4))
    base[1] = 2 * base[0]  # as near as can be
    found = base + 0.5 * rng.standard_normal(base.shape)
    base, found = (one.astype(np.float32).astype(np.float64) for one in (base, found))
    kept = [len(a & b) / k for a, b in zip(nearest(base, k), nearest(found, k), strict=True)]
    result = scored(f"neighbours:{k}", base.astype(np.float32), found.astype(np.float32), cuts=[3, 5])
    assert result.value == pytest.approx(np.mean(kept))
    assert value(f"neighbours:{k}", base) == 1.0
    assert result.drop.value == pytest.approx(100 * (1 - np.mean(kept)))


def test_blocks_of_samples_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    base, found = rng.standard_normal((2, 60, 5)).astype(np.float32)
    whole = scored("neighbours", base, found)
    monkeypatch.setattr(neighbours, "_BLOCK", 200)
    assert scored("neighbours", base, found) == whole
    assert whole.drop.low < whole.drop.value


def test_scale_and_outputs_that_are_no_embeddings_do_not_matter() -> None:
    rows = np.random.default_rng(1).standard_normal((30, 8)).astype(np.float32)
    outputs = {"tokens": np.zeros((30, 4, 8), np.float32), "embedding": rows}
    assert scored("neighbours:5", outputs, {**outputs, "embedding": 7 * rows}).value == 1.0


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_embeddings_that_collapse_keep_few_neighbours(value: float) -> None:
    rows = np.random.default_rng(1).standard_normal((200, 8)).astype(np.float32)
    assert scored("neighbours:5", rows, np.full_like(rows, value)).value < 0.1


def test_a_function_may_change_the_labels_that_it_gets(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def own(outputs, labels):\n    labels += 1\n    return float(labels[0])\n"
    )
    metric, labels = read_metric(f"{tmp_path / 'own.py'}:own"), np.zeros(2, np.int64)
    outputs = {"y": np.zeros((2, 3), np.float32)}
    values = [metric.score(outputs, outputs, Truth(labels, 2, "here")).table[0, 0] for _ in range(2)]
    assert values == [2, 2]
    assert labels.tolist() == [0, 0]
