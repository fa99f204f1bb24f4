"""One rule recommends, within a budget or without; one sentence says what, at what cost, and why no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_results import recommendable as artifact
from report_results import results_of, write

from qcompile.reporting.recommendation import Recommendation, recommend
from qcompile.spec.measure import Budget


def accuracy(drop: float, low: float | None, high: float | None, samples: int = 500) -> dict[str, Any]:
    return {
        "accuracy": {
            "metric": "top1", "value": 0.9, "drop_points": drop, "low": low, "high": high, "samples": samples,
        }
    }  # fmt: skip


def recommended(tmp_path: Path, *artifacts: dict[str, Any], max_drop: float | None) -> Recommendation:
    torch = artifact("pytorch", 10, engine="pytorch", size_bytes=None, **accuracy(0, None, None))
    results = write(tmp_path / "r.json", results_of(torch, *artifacts))
    return recommend(results, budget=Budget(max_drop=max_drop))


def test_the_sentence_names_speed_over_both_accuracy_size_and_the_others(tmp_path: Path) -> None:
    said = recommended(
        tmp_path,
        artifact("onnx-fp32", 5, size_bytes=4000, **accuracy(0, 0, 0)),
        artifact("onnx-int8", 2, precision="int8", size_ratio=4.0, **accuracy(0.2, -0.1, 0.4)),
        artifact("small-int8", 3, precision="int8", size_bytes=900, **accuracy(0.2, 0.0, 0.4)),
        artifact("lossy", 1, engine="openvino", precision="int8", **accuracy(3.0, 2.1, 3.8)),
        {"name": "rtx", "artifact": "rtx", "engine": "tensorrt-rtx", "status": "not run", "reason": "no GPU"},
        max_drop=0.5,
    )
    assert said.artifact == "onnx-int8"
    assert said.over_baseline is not None
    assert said.over_onnx is not None
    assert said.over_baseline["value"] == pytest.approx(5, rel=0.02)
    assert said.over_onnx["low"] < 2.5 < said.over_onnx["high"]
    assert said.sentence.startswith("Use onnx-int8 (int8 on ONNX Runtime): 5.")
    assert "as fast as pytorch and 2.5" in said.sentence
    assert "as fast as onnx-fp32, top1 90.00%, 0.20 points [−0.10, 0.40] lost" in said.sentence
    assert "1.00 kB (4.00× smaller)" in said.sentence
    assert "not onnx-fp32 and small-int8 (slower)" in said.sentence
    assert "not lossy (it loses 3.00 points [2.10, 3.80])" in said.sentence
    assert "not rtx (could not run here)." in said.sentence
    assert said.sentence.count(". ") == 0, "one sentence"


def test_the_upper_end_of_the_interval_must_keep_the_budget(tmp_path: Path) -> None:
    int8 = artifact("int8", 2, precision="int8", **accuracy(0.2, -0.4, 0.8, samples=100))
    assert recommended(tmp_path, int8, max_drop=0.8).artifact == "int8"
    said = recommended(tmp_path, int8, max_drop=0.5)
    assert said.artifact == ""
    assert said.nearest == "int8"
    # (0.8 - 0.2) / (0.5 - 0.2) = 2: an interval of half the width needs four times the samples
    assert "100 samples do not show that it keeps 0.50 points; about 400 would" in said.sentence


def test_an_upper_end_that_rounds_to_the_budget_is_shown_with_more_digits(tmp_path: Path) -> None:
    int8 = artifact("int8", 2, precision="int8", **accuracy(0.17, 0.0, 0.5025, samples=597))
    said = recommended(tmp_path, int8, max_drop=0.5)
    assert "[0.00, 0.50]: 597 samples do not show" in said.sentence
    assert "keeps 0.50 points (the upper end is 0.5025); about 606 would" in said.sentence


def test_a_drop_without_an_interval_counts_as_it_is_and_the_sentence_says_so(tmp_path: Path) -> None:
    few = artifact("int8", 2, precision="int8", **accuracy(0.2, None, None, samples=9))
    said = recommended(tmp_path, few, max_drop=0.5)
    assert said.artifact == "int8"
    assert "(9 samples: too few for an interval)" in said.sentence
    assert any("The drop has no interval" in text for text in said.caveats)


def test_what_keeps_the_budget_without_being_faster_is_not_recommended(tmp_path: Path) -> None:
    said = recommended(
        tmp_path,
        artifact("slow", 20, **accuracy(0.0, 0.0, 0.0)),
        artifact("lossy", 5, precision="int8", **accuracy(2.0, 1.0, 3.0)),
        max_drop=0.5,
    )
    assert (said.artifact, said.nearest) == ("", "lossy")
    assert said.sentence.startswith("No other artifact is surely faster within the budget of 0.50 points; ")
    assert "it loses 2.00 points [1.00, 3.00]" in said.sentence


def test_without_a_budget_nothing_that_the_interval_shows_may_be_lost(tmp_path: Path) -> None:
    int8 = artifact("int8", 2, precision="int8", **accuracy(0.2, -0.4, 0.8))
    assert recommended(tmp_path, int8, max_drop=None).artifact == "int8"
    int8 = artifact("int8", 2, precision="int8", **accuracy(0.6, 0.1, 0.8))
    assert recommended(tmp_path, int8, max_drop=None).artifact == ""
    assert recommended(tmp_path, int8, max_drop=0.8).artifact == "int8"
