"""Cosine and mean squared error: what they are compared with, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qcompile.bench.metrics.accuracy import read_metric
from qcompile.bench.metrics.metric import Truth
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


def test_whole_numbers_of_the_outputs_shape_are_targets() -> None:
    outputs = {"y": np.array([[1.0], [2.0], [3.0], [4.0]])}
    assert values("mse", np.array([1, 2, 3, 6]), outputs) == [0.0, 0.0, 0.0, 4.0]


def test_nothing_is_like_nothing_and_unlike_anything_else() -> None:
    rows = np.array([[0.0, 0.0], [1.0, 0.0]])
    assert cosine(rows, np.zeros((2, 2))).tolist() == [1.0, 0.0]
    huge = np.array([[3e300, 4e300]])
    assert cosine(huge, huge / 2) == pytest.approx(1.0)
    assert cosine(huge, 1 / huge) == pytest.approx(24 / 25)


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
        (np.zeros((1, 4, 5)), "a first axis of samples is required"),
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
