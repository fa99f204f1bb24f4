"""The table of the scoreboard, and its metrics by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import scoreboard  # noqa: E402
from scoreboard_networks import NETWORKS, base, boxes  # noqa: E402


def test_the_table_marks_where_a_peer_is_better_and_what_was_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {
        "ort/FP32": {"db": None, "metric": 100.0},
        "ort/qcompile": {"db": 30.0, "metric": 97.0},
        "ort/static": {"db": 20.0, "metric": 98.0},
        "ort/NNCF": {"failed": "ValueError: no"},
        "openvino/qcompile": {"db": 31.0, "metric": 99.0, "refused": "5 dB"},
        "openvino/NNCF": {"db": 20.0, "metric": 98.0},
    }
    (tmp_path / "voice").mkdir()
    (tmp_path / "voice/rows.json").write_text(json.dumps(rows))
    scoreboard.table(tmp_path)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| voice")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:6] == [
        "100.0% (- dB)", "97.0% (30.0 dB) **!**", "98.0% (20.0 dB, static)", "99.0%* (31.0 dB)",
        "98.0% (20.0 dB, NNCF)",
    ]  # fmt: skip


def test_metrics_are_what_they_say() -> None:
    a, b = np.eye(4)[:3], np.eye(4)[[0, 1, 3]]
    assert base.same_class([a], [b]) == pytest.approx(100 * 2 / 3)
    assert base.same_side([np.array([0.4, 0.6, 0.9])], [np.array([0.6, 0.7, 0.2])]) == pytest.approx(100 / 3)
    rows = np.array([[1.0, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]])
    assert base.neighbours_kept([rows], [rows * 3]) == 100
    assert base.neighbours_kept([rows], [rows[[0, 2, 1, 3]]]) == 0
    assert base.rank_kept([np.array([[1.0], [2], [3]])], [np.array([[1.0], [2], [9]])]) == pytest.approx(100)


def test_average_precision_of_the_same_boxes_is_whole_and_of_shifted_ones_less() -> None:
    pytest.importorskip("pycocotools")
    found = (np.array([[0.0, 0, 10, 10], [20, 20, 30, 40]]), np.array([0.9, 0.8]), np.array([0, 1]))
    metric = boxes.precision(lambda output: output)
    assert metric([found], [found]) == pytest.approx(100)
    shifted = (found[0] + np.array([2.0, 0, 2, 0]), *found[1:])  # they overlap by 8/12 and 8/12
    # COCO's ten thresholds from 0.5 to 0.95: 0.5, 0.55, 0.6 and 0.65 are met.
    assert metric([found], [shifted]) == pytest.approx(40)


def test_every_network_names_its_file_or_is_exported() -> None:
    for name, network in NETWORKS.items():
        assert network.exported or name in base.FILES, name
        assert network.what
