"""Perplexity and divergence against PyTorch's cross entropy and `kl_div`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from hypothesis import given, settings
from hypothesis import strategies as st
from scoring import inputs_of, scored, value

from qcompile.bench.metrics.accuracy import read_metric
from qcompile.errors import DataError
from qcompile.model.preprocessing import TextPreprocessing

LANGUAGE = inputs_of(TextPreprocessing(tokenizer="t", inputs=("x",), task="language-model"))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 6), length=st.integers(2, 7))
def test_perplexity_is_the_exponential_of_pytorchs_cross_entropy(seed: int, count: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    logits = (5 * rng.standard_normal((count, length, 11))).astype(np.float32)
    labels = rng.integers(0, 11, (count, length))
    labels[rng.random((count, length)) < 0.3] = -100
    labels[0, -1] = 3
    wide, target = torch.from_numpy(logits).double(), torch.from_numpy(labels)
    for metric, scores, truth in (
        ("perplexity", wide[:, :-1], target[:, 1:]),
        ("perplexity:causal", wide[:, :-1], target[:, 1:]),
        ("perplexity:masked", wide, target),
    ):
        expected = math.exp(functional.cross_entropy(scores.reshape(-1, 11), truth.reshape(-1)))
        assert value(metric, logits, labels, [1]) == pytest.approx(expected, rel=1e-10)


def test_a_model_that_knows_nothing_has_the_vocabulary_as_its_perplexity() -> None:
    found = scored("perplexity", np.zeros((12, 5, 32)), np.zeros((12, 5, 32)), np.zeros((12, 5), int))
    assert found.value == pytest.approx(32.0)
    assert (found.unit, found.higher_is_better) == ("units", False)


def test_probabilities_are_taken_as_they_are() -> None:
    logits = np.random.default_rng(1).standard_normal((4, 6, 9))
    labels = np.random.default_rng(2).integers(0, 9, (4, 6))
    shares = torch.from_numpy(logits).softmax(-1).numpy()
    assert value("perplexity", shares, labels) == pytest.approx(value("perplexity", logits, labels))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(10, 14))
def test_divergence_is_that_of_pytorch(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    for shape in ((7,), (5, 7), (7, 3, 2)):
        base, found = (3 * rng.standard_normal((2, count, *shape))).astype(np.float32)
        rows = [torch.from_numpy(one).double() for one in (base, found)]
        axis = 1 if len(shape) == 3 else -1
        theirs, mine = (one.movedim(axis, -1).reshape(-1, 7).log_softmax(-1) for one in rows)
        expected = functional.kl_div(mine, theirs, log_target=True, reduction="batchmean").item()
        result = scored("kl", base, found)
        assert result.value == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert result.drop is not None
        assert result.drop.value == result.value
        assert value("kl", base) == 0.0


def test_divergence_leaves_out_positions_that_labels_ignore() -> None:
    rng = np.random.default_rng(3)
    base, found = rng.standard_normal((2, 12, 4, 6))
    labels = np.zeros((12, 4), int)
    labels[:, 2:] = -100
    metric = read_metric("kl", inputs=LANGUAGE)
    assert scored(metric, base, found, labels).value == pytest.approx(
        scored(metric, base[:, :2], found[:, :2]).value
    )


def test_classes_that_the_baseline_rules_out_do_not_diverge() -> None:
    base = np.tile([[0.0, 1.0, -np.inf]], (10, 1))
    found = np.tile([[0.0, 1.0, -50.0]], (10, 1))
    assert scored("kl", base, found).value == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(DataError, match="kl: is infinite"):
        scored("kl", found, base)
    shares = np.tile([[0.5, 0.5, 0.0]], (10, 1))
    assert scored("kl", shares, np.tile([[0.5, 0.0, 0.5]], (10, 1))).value == pytest.approx(
        0.5 * math.log(0.5 / 1e-12), rel=1e-3
    )


def test_outputs_that_are_no_language_models_are_refused() -> None:
    with pytest.raises(DataError, match=r"logits \[batch, length, vocabulary\] and labels"):
        value("perplexity", np.zeros((2, 5)), np.zeros((2, 5), int))
    with pytest.raises(DataError, match="label 9; 0 to 3 is required"):
        value("perplexity", np.zeros((2, 3, 4)), np.full((2, 3), 9))
    with pytest.raises(DataError, match="no label counts"):
        value("perplexity", np.zeros((2, 3, 4)), np.full((2, 3), -100))
    with pytest.raises(DataError, match="equal shapes with an axis of samples"):
        scored("kl", np.zeros((10, 3)), np.zeros((10, 4)))
