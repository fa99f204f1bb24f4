"""Neighbours kept, against a plain search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scoring import scored, value

from qcompile.bench.metrics import ranking as neighbours
from qcompile.errors import DataError

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
    assert result.drop is not None
    assert result.drop.value == pytest.approx(100 * (1 - np.mean(kept)))


def test_blocks_of_samples_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    base, found = rng.standard_normal((2, 60, 5)).astype(np.float32)
    whole = scored("neighbours", base, found)
    monkeypatch.setattr(neighbours, "_BLOCK", 200)
    assert scored("neighbours", base, found) == whole
    assert whole.drop is not None
    assert whole.drop.low is not None
    assert whole.drop.low < whole.drop.value


def test_scale_and_outputs_that_are_no_embeddings_do_not_matter() -> None:
    rows = np.random.default_rng(1).standard_normal((30, 8)).astype(np.float32)
    outputs = {"tokens": np.zeros((30, 4, 8), np.float32), "embedding": rows}
    assert scored("neighbours:5", outputs, {**outputs, "embedding": 7 * rows}).value == 1.0


def test_embeddings_that_collapse_keep_few_neighbours() -> None:
    rows = np.random.default_rng(1).standard_normal((200, 8)).astype(np.float32)
    assert scored("neighbours:5", rows, np.ones_like(rows)).value < 0.1
    assert scored("neighbours:5", rows, np.zeros_like(rows)).value < 0.1


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(DataError, match=r"neighbours: 10 samples; more than 10 are required") as caught:
        value("neighbours", np.ones((10, 3), np.float32))
    assert "neighbours:5" in caught.value.hint
    with pytest.raises(DataError, match=r"embeddings \[batch, size\]"):
        value("neighbours", np.ones((10, 3, 3), np.float32))
