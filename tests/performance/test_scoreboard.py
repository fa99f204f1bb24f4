"""The page of the scoreboard is what its results say, and its figures are as done by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
# Only while it is imported: the scripts beside it have the names of modules of tests/support.
sys.path.insert(0, str(ROOT / "tests/performance"))
try:
    from scoreboard_networks import base, boxes, page, paired
finally:
    sys.path.remove(str(ROOT / "tests/performance"))


def test_the_page_is_what_the_results_say() -> None:
    assert page.text() == (ROOT / "docs/reference/scoreboard.md").read_text(encoding="utf-8")


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=300))
def test_the_difference_of_swapped_rows_is_its_negative(answers: list[tuple[bool, bool]]) -> None:
    ours, theirs = (row(right) for right in zip(*answers, strict=True))
    one, other = paired.difference(ours, theirs), paired.difference(theirs, ours)
    assert one
    assert other
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-6)
    assert one.low <= one.points <= one.high


def row(right: Sequence[bool], **more: Any) -> dict[str, Any]:
    answers = "".join(str(int(one)) for one in right)
    return {"metric": 100 * sum(right) / len(right), "right": answers, "db": 20.0, **more}


def test_counts_are_drawn_in_pairs() -> None:
    """What makes a sample hard for both is no doubt of their difference."""
    whole = np.random.default_rng(0).integers(5, 30, 160)
    lost = np.random.default_rng(1).binomial(whole, 0.4)
    ours = {"metric": 0.0, "counts": np.stack([whole - lost, whole], 1).tolist()}
    theirs = {"metric": 0.0, "counts": np.stack([whole - np.minimum(lost + 1, whole), whole], 1).tolist()}
    found = paired.difference(ours, theirs)
    assert found
    assert found.outcome == "win"
    assert found.high - found.low < 1


def test_a_jackknife_of_groups_of_a_mean_is_students() -> None:
    values = np.random.default_rng(0).standard_normal(16)
    left_out = [float(np.delete(values, i).mean()) for i in range(16)]
    found = paired.difference(
        {"metric": values.mean(), "left_out": left_out}, {"metric": 0.0, "left_out": [0.0] * 16}
    )
    expected = stats.t.interval(0.95, 15, values.mean(), stats.sem(values))
    assert found
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-3)


def test_the_page_of_recorded_rows_counts_them_and_guesses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = [[2.0] * 6] * 5
    made = {"timed": "a", "quantizing": {"wall_s": 3.0, "processor_s": 5.5}}
    rows = {
        "ort/FP32": {**row([True] * 500), "db": None, "timed": "a", "launches_ms": launches, "bytes": 4e6},
        "ort/qcompile": {
            **row([True] * 499 + [False]), **made, "bytes": 1e6, "launches_ms": [[1.0] * 6] * 5,
        },
        "ort/static": {**row([True] * 400 + [False] * 100), **made, "launches_ms": [[1.5] * 6] * 5},
        "ort/dynamic": row([True] * 450 + [False] * 50),
        "ort/NNCF": {"failed": "why"},
    }  # fmt: skip
    lines = [{"processor": "P", "date": "2027-01-01", "torch": "2"}]
    lines += [{"network": "digits", "who": who, **kept} for who, kept in rows.items()]
    monkeypatch.setattr(page, "RESULTS", tmp_path / "results.jsonl")
    page.RESULTS.write_text("\n".join(json.dumps(line) for line in lines))
    text = page.text()
    assert "| ONNX Runtime | static | 1, 0, 0 | 1, 0, 0 | qcompile 0, peer 0 |" in text
    assert "| ONNX Runtime | dynamic | 1, 0, 0 | not recorded | qcompile 0, peer 0 |" in text
    assert "| ONNX Runtime | NNCF | not recorded | not recorded | qcompile 1, peer 0 |" in text
    shown = next(line for line in text.splitlines() if line.startswith("| digits | 99.8%"))
    assert "90.0%, dynamic | +9.8 [" in shown
    assert "not recorded (2.00x; not recorded) | 1.0 of 4.0 | 3.0 (5.5); not recorded |" in shown


def test_metrics_are_what_they_say() -> None:
    a, b = np.eye(4)[:3], np.eye(4)[[0, 1, 3]]
    number = np.arange(1)
    assert base.same_class([a], [b], number) == pytest.approx(100 * 2 / 3)
    sides = np.array([0.4, 0.6, 0.9]), np.array([0.6, 0.7, 0.2])
    assert base.same_side([sides[0]], [sides[1]], number) == pytest.approx(100 / 3)
    rows = np.array([[1.0, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]])
    assert base.neighbours_kept([rows], [rows * 3], number) == 100
    assert base.neighbours_kept([rows], [rows[[0, 2, 1, 3]]], number) == 0
    ranks = [np.array([[1.0], [2], [last]]) for last in (3, 9)]
    assert base.rank_kept(ranks[:1], ranks[1:], number) == pytest.approx(100)


def test_average_precision_of_the_same_boxes_is_whole_and_of_shifted_ones_less() -> None:
    pytest.importorskip("pycocotools")
    found = (np.array([[0.0, 0, 10, 10], [20, 20, 30, 40]]), np.array([0.9, 0.8]), np.array([0, 1]))
    assert boxes.average_precision([found], [found]) == pytest.approx(100)
    shifted = (found[0] + np.array([2.0, 0, 2, 0]), *found[1:])  # they overlap by 8/12 and 8/12
    # COCO's ten thresholds from 0.5 to 0.95: 0.5, 0.55, 0.6 and 0.65 are met.
    assert boxes.average_precision([found], [shifted]) == pytest.approx(40)
    for metric in (boxes.precision(0.0), boxes.precision(0.85)):
        truth, others = [found, shifted, found], [shifted, found, found]
        direct = [
            metric([truth[i] for i in chosen], [others[i] for i in chosen], chosen)
            for chosen in base.draws(3)
        ]
        assert metric.record(truth, others)["resampled"] == pytest.approx(direct, abs=1e-3)
    # The box of 0.8 is no object of FP32's then, and what finds it all the same comes behind the other.
    assert boxes.precision(0.85)([found], [found], np.arange(1)) == pytest.approx(100)
