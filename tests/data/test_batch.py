"""A batch: its samples, its head, and where it can be split."""

from __future__ import annotations

import numpy as np
import pytest
from batches_to_read import labels_of, rows, samples_of

from qcompile.data.readers import Batch


def batch_of(samples: int) -> Batch:
    feeds = {"x": rows(samples), "mask": np.arange(samples) % 2 == 0}
    return Batch(feeds, np.arange(samples) * 10, "data.npz[0:8]")


def test_a_batch_is_split_into_its_samples() -> None:
    parts = list(batch_of(3).split())
    assert [part.samples for part in parts] == [1, 1, 1]
    assert samples_of(parts) == [0, 1, 2]
    assert [part.feeds["mask"].tolist() for part in parts] == [[True], [False], [True]]
    assert labels_of(parts) == [0, 10, 20]
    assert [part.where for part in parts] == [f"data.npz[0:8] sample {index}" for index in range(3)]
    assert all(part.feeds["x"].dtype == np.float32 and not part.can_be_split() for part in parts)


def test_the_head_of_a_batch_is_its_first_samples() -> None:
    head = batch_of(5).head(2)
    assert (head.samples, samples_of([head]), labels_of([head])) == (2, [0, 1], [0, 10])
    assert head.where == "data.npz[0:8]"
    assert batch_of(3).head(3).samples == 3


def test_a_batch_without_labels_has_parts_without_labels() -> None:
    plain = Batch({"x": rows(2)}, None, "here")
    assert [part.labels for part in (plain.head(1), *plain.split())] == [None, None, None]


@pytest.mark.parametrize(
    ("feeds", "samples", "expected"),
    [
        ({"x": np.zeros((2, 3))}, 2, True),
        ({"x": np.zeros((2, 3)), "z": np.zeros(2)}, 2, True),
        ({"x": np.zeros((1, 3))}, 1, False),
        ({"x": np.zeros((0, 3))}, 0, False),
        ({"x": np.zeros((2, 3)), "table": np.zeros((5, 3))}, 2, False),
        ({"x": np.zeros((2, 3)), "scale": np.zeros(())}, 2, False),
        ({"scale": np.zeros(()), "x": np.zeros((2, 3))}, 1, False),
        ({"scale": np.zeros(())}, 1, False),
    ],
)
def test_a_batch_can_be_split_where_all_inputs_hold_the_same_samples(
    feeds: dict[str, np.ndarray], samples: int, expected: bool
) -> None:
    made = Batch(feeds, None, "here")
    assert (made.samples, made.can_be_split()) == (samples, expected)
