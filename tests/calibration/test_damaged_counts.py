"""Counts that no calibration makes are refused: in a checkpoint, in ranges, and when they are merged."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from qcompile.calibration.histogram import BINS, Histogram
from qcompile.calibration.ranges_file import Checkpoint, checksum, load_checkpoint, save_checkpoint
from qcompile.errors import CalibrationError

KEY = {"model": "m"}


def histogram(*values: float) -> Histogram:
    made = Histogram()
    made.add(np.array(values, np.float32))
    return made


def written(path: Path, **changes: Any) -> Path:
    """A checkpoint with other values in its header, and a checksum that holds."""
    save_checkpoint(Checkpoint(KEY, 1, 2, {"a": histogram(1.0, -3.0)}), path)
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["qcompile"]) | changes
    counts = load(content)
    header["checksum"] = checksum(header, counts)
    path.write_bytes(save(counts, metadata={"qcompile": json.dumps(header)}))
    return path


def test_a_whole_checkpoint_is_read(tmp_path: Path) -> None:
    found = load_checkpoint(written(tmp_path / "c"), KEY)
    assert found is not None
    assert (found.units, found.samples, found.histograms["a"].total) == (1, 2, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"units": -1}, {"units": "3"}, {"samples": 1.5}, {"samples": float("inf")}, {"tensors": []},
        {"tensors": {"a": [0, "low", 1.0]}}, {"tensors": {"a": [-(2**40), -3.0, 1.0]}},
        {"tensors": {"a": [5000, -3.0, 1.0]}}, {"tensors": {"a": [0.5, -3.0, 1.0]}},
        {"tensors": {"a": [-9, float("nan"), 1.0]}}, {"tensors": {"a": [-9, -1e30, 1.0]}},
        {"tensors": {"a": [-9, 10**400, 1.0]}}, {"tensors": {"b": [-9, -3.0, 1.0]}},
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_none(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert load_checkpoint(written(tmp_path / "c", **changes), KEY) is None


def test_a_checkpoint_nested_deeply_is_none(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_bytes(save({"a": np.zeros(1)}, metadata={"qcompile": "[" * 100_000}))
    assert load_checkpoint(path, KEY) is None


@pytest.mark.parametrize(("place", "count"), [(BINS, -1), (0, 2**51), (2 * BINS - 1, 2**63 - 1)])
def test_counts_that_overflow_are_implausible(place: int, count: int) -> None:
    one = histogram(0.5)
    assert one.is_plausible
    one.counts[place] = count
    assert not one.is_plausible


def test_an_empty_histogram_is_plausible_with_no_counts_alone() -> None:
    assert Histogram().is_plausible
    one = Histogram()
    one.counts[3] = 1
    assert not one.is_plausible


def test_merging_loses_no_count_to_an_overflow() -> None:
    one, other = histogram(0.5), histogram(0.5)
    one.counts[BINS + 5] = other.counts[BINS + 5] = 2**62 - 1
    with pytest.raises(CalibrationError, match=r"a histogram of \d+ values; at most"):
        one.merge(other)
    assert one.total < 2**63
