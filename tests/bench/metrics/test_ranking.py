"""nDCG against scikit-learn's `ndcg_score`, Spearman against scipy's `spearmanr`, with their own vectors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from scoring import expanded, scored, value
from sklearn.metrics import ndcg_score

from qcompile.bench.metrics.accuracy import read_metric
from qcompile.bench.metrics.metric import Truth, joined
from qcompile.errors import DataError


@pytest.mark.parametrize(
    ("scores", "metric", "expected", "digits"),
    [
        ([0.1, 0.2, 0.3, 4, 70], "ndcg", 0.69, 2),
        ([0.05, 1.1, 1.0, 0.5, 0.0], "ndcg", 0.49, 2),
        ([0.05, 1.1, 1.0, 0.5, 0.0], "ndcg:4", 0.35, 2),
        ([10, 0, 0, 1, 5], "ndcg:4", 1.0, 12),
        ([1, 0, 0, 0, 1], "ndcg:1", 0.75, 12),
    ],
)
def test_the_examples_of_scikit_learn(scores: list[float], metric: str, expected: float, digits: int) -> None:
    """Source: the docstring of `sklearn.metrics.ndcg_score`, 1.9.1; it shows two digits, cut off."""
    relevance = np.array([[10, 0, 0, 1, 5]])
    found = value(metric, np.array([scores], np.float64), relevance)
    assert found == pytest.approx(expected, abs=10.0**-digits)
    k = int(metric[5:]) if ":" in metric else None
    assert found == pytest.approx(ndcg_score(relevance, np.array([scores]), k=k), abs=1e-12)


def test_the_toy_examples_of_scikit_learns_tests() -> None:
    """Source: `sklearn/metrics/tests/test_ranking.py`, test_ndcg_toy_examples and test_ndcg_invariant."""
    relevance = 3 * np.eye(7)[:5]
    scores = np.tile(np.arange(6.0, -1, -1), (5, 1))
    assert value("ndcg", scores, relevance) == pytest.approx((1 / np.log2(np.arange(2, 7))).mean())
    relevance = np.arange(70).reshape(7, 10)
    noise = np.random.default_rng(0).uniform(-0.2, 0.2, size=relevance.shape)
    for shift in (0, 1000):
        assert value("ndcg", relevance + noise + shift, relevance) == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 8), items=st.integers(2, 9), k=st.integers(1, 10))
def test_ndcg_is_that_of_scikit_learn(seed: int, count: int, items: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    relevance = rng.integers(0, 4, (count, items)) * (rng.random((count, 1)) < 0.8)
    scores = rng.integers(-3, 4, (count, items)).astype(np.float32)  # many ties
    for metric, cut in (("ndcg", None), (f"ndcg:{k}", k)):
        expected = ndcg_score(relevance, scores, k=cut)
        assert value(metric, scores, relevance, [count // 2]) == pytest.approx(expected, abs=1e-12)


def test_relevance_below_zero_or_of_another_shape_is_refused() -> None:
    with pytest.raises(DataError, match="relevance -1; 0 or more is required"):
        value("ndcg", np.zeros((1, 3)), np.array([[0, -1, 2]]))
    with pytest.raises(DataError, match=r"output 'y' of shape \(2, 3\) with labels of shape \(2, 4\)"):
        value("ndcg", np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(DataError, match="has no labels; ndcg needs the relevance"):
        value("ndcg", np.zeros((2, 3)))


def test_spearman_of_a_published_example() -> None:
    """Source: the docstring of `scipy.stats.spearmanr`, 1.17.1."""
    found = value("spearman", np.array([1.0, 2, 3, 4, 5]), np.array([5.0, 6, 7, 8, 7]))
    assert found == pytest.approx(0.82078268166812329)


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
    values = metric.values(joined([metric.score({"y": found}, {}, Truth(targets, 40, "data"))]))
    for weights in rng.integers(0, 3, (20, 40)).astype(np.float64):
        expected = spearmanr(expanded(found, weights), expanded(targets, weights)).statistic
        assert values(weights[None])[0] == pytest.approx(float(expected), abs=1e-12)


def test_the_interval_of_a_rank_correlation_is_that_of_a_plain_loop() -> None:
    rng = np.random.default_rng(1)
    targets = rng.standard_normal(80)
    base, worse = targets + 0.3 * rng.standard_normal(80), targets + 0.9 * rng.standard_normal(80)
    found = scored("spearman", base, worse, targets).drop
    assert found is not None
    other, drops = np.random.default_rng(5), []
    for _ in range(1500):
        drawn = other.integers(0, 80, 80)
        drops.append(
            100
            * (
                spearmanr(base[drawn], targets[drawn]).statistic
                - spearmanr(worse[drawn], targets[drawn]).statistic
            )
        )
    low, high = np.percentile(drops, [2.5, 97.5])
    assert [found.low, found.high] == pytest.approx([low, high], abs=0.12 * (high - low))


def test_equal_values_have_no_rank_correlation() -> None:
    with pytest.raises(DataError, match="spearman: outputs or targets are all equal"):
        value("spearman", np.zeros(12), np.arange(12.0))
    with pytest.raises(DataError, match=r"one number of each for a sample is required"):
        value("spearman", np.zeros((12, 2)), np.arange(12.0))
