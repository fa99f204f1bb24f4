"""The page of the scoreboard is what its results say, and its figures are as done by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
# Only while it is imported: the scripts beside it have the names of modules of tests/support.
sys.path.insert(0, str(ROOT / "benchmarks"))
try:
    from scoreboard_networks import NETWORKS, base, boxes, page
finally:
    sys.path.remove(str(ROOT / "benchmarks"))


def test_the_page_is_what_the_results_say() -> None:
    assert page.text() == (ROOT / "docs/reference/scoreboard.md").read_text(encoding="utf-8")


def test_the_interval_of_a_mean_is_students() -> None:
    values = np.random.default_rng(0).standard_normal(page.GROUPS)
    left_out = [float(np.delete(values, i).mean()) for i in range(page.GROUPS)]
    low, high = stats.t.interval(0.95, page.GROUPS - 1, values.mean(), stats.sem(values))
    found = page.half_width({"left_out": left_out}, {"left_out": [0.0] * page.GROUPS})
    assert found == pytest.approx((high - low) / 2, rel=1e-3)


def test_what_is_behind_is_marked() -> None:
    """Nothing for what rounds to the same, and the interval of the difference, not of the metric."""

    def row(metric: float, noise: float) -> dict[str, Any]:
        signs = np.where(np.arange(page.GROUPS) % 2, 1.0, -1.0)
        return {"metric": metric, "left_out": list(metric + noise * signs)}

    base = row(95.0, 0.0)
    assert page.mark(row(90.0, 0.0), row(90.04, 0.0), base) == ""
    assert page.mark(row(90.0, 0.1), row(91.0, 0.1), base) == " **!**"
    assert page.mark(row(90.0, 0.1), row(91.0, -0.1), base) == " (!)"
    assert page.mark(row(95.0, 0.1), row(96.0, 0.1), base) == ""
    assert page.mark({"failed": "why"}, row(90.0, 0.0), base) == " **!**"
    assert page.mark(row(90.0, 0.0), None, base) == ""


def test_what_is_float_is_no_peer() -> None:
    rows = {
        "ort/FP32": {"metric": 95.0, "db": None, "left_out": [95.0, 94.0]},
        "ort/qcompile": {"metric": 93.0, "db": 20.0, "left_out": [93.0, 92.0]},
        "ort/static": {"metric": 95.0, "db": None, "left_out": [95.0, 94.0]},
    }
    assert page.best_peer(rows, "ort") is None
    rows["ort/dynamic"] = {"metric": 94.0, "db": 25.0, "left_out": [94.0, 93.0]}
    assert page.best_peer(rows, "ort") == ("dynamic", rows["ort/dynamic"])


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
    # The box of 0.8 is no object of FP32's then, and what finds it all the same comes behind the other.
    assert boxes.precision(0.85)([found], [found], np.arange(1)) == pytest.approx(100)


def test_of_boxes_that_overlap_the_best_of_a_class_is_kept() -> None:
    corners = np.array([[0.0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 9], [50, 50, 60, 60]])
    scores = np.array([[0.9, 0], [0.8, 0], [0, 0.7], [0.01, 0]])
    kept, best, kinds = boxes._kept(corners, scores)
    assert best.tolist() == [0.9, 0.7]
    assert kinds.tolist() == [0, 1]
    assert kept.tolist() == corners[[0, 2]].tolist()


def test_every_network_names_its_file_or_is_exported() -> None:
    for name, network in NETWORKS.items():
        assert network.exported or name in base.FILES, name
        assert network.what
