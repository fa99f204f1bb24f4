"""Top-k by hand."""

from __future__ import annotations

import numpy as np
import pytest

from qcompile.bench.accuracy import parse_metric, top_k
from qcompile.errors import DataError, InvalidOption

SCORES = np.array([[0.1, 0.9, 0.0], [0.5, 0.2, 0.3], [0.3, 0.3, 0.4]], np.float32)


def test_top_k_counts_what_a_hand_counts() -> None:
    labels = np.array([1, 2, 2])
    assert top_k([SCORES], [labels], 1) == pytest.approx(2 / 3)
    assert top_k([SCORES], [labels], 2) == 1.0
    assert top_k([SCORES[:1], SCORES[1:]], [labels[:1], labels[1:]], 1) == pytest.approx(2 / 3)


def test_of_equal_scores_the_first_wins() -> None:
    assert top_k([np.zeros((1, 3))], [np.array([0])], 1) == 1.0
    assert top_k([np.zeros((1, 3))], [np.array([1])], 1) == 0.0


def test_shapes_and_metrics_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DataError, match="one label per sample"):
        top_k([SCORES], [np.array([1])], 1)
    with pytest.raises(InvalidOption, match="top3"):
        parse_metric("top3")
    assert parse_metric("top5") == 5
