from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_results import recommendable as artifact
from report_results import results_json, results_of, write

from qcompile.reporting.source import read_source
from qcompile.reporting.summary import Summary, faster, summarize
from qcompile.spec.measure import Budget

ROUNDS = 25


def accuracy(drop: float, low: float | None, high: float | None, metric: str = "top1") -> dict[str, Any]:
    return {"metric": metric, "value": 0.9, "drop_points": drop, "low": low, "high": high, "samples": 500}


def summary(tmp_path: Path, *artifacts: dict[str, Any], **top: Any) -> Summary:
    """The summary of these, the first being the baseline."""
    return summarize(read_source(write(tmp_path / "r.json", results_of(*artifacts, **top))))


def test_the_fastest_that_kept_its_accuracy_is_recommended(tmp_path: Path) -> None:
    found = summary(
        tmp_path,
        artifact("base", 10, accuracy=accuracy(0, None, None)),
        artifact("good", 4, accuracy=accuracy(0.2, -0.3, 0.7)),
        artifact("slow", 6, accuracy=accuracy(0.0, -0.3, 0.3)),
        artifact("lossy", 2, accuracy=accuracy(3.0, 2.1, 3.8)),
    )
    assert found.chosen is not None
    assert found.chosen.name == "good"
    assert any(
        "lossy is the fastest" in text and "loses 3.00 points [2.10, 3.80]" in text for text in found.reasons
    )
    speed, size, kept = found.facts
    assert speed.label == "speed-up against base"
    assert 2.4 < float(speed.value.rstrip("×")) < 2.6
    assert (size.value, kept.value) == ("1.00 kB", "90.00%")
    assert "[−0.30, 0.70]" in kept.detail


def test_of_equally_fast_artifacts_the_smallest_is_recommended(tmp_path: Path) -> None:
    found = summary(
        tmp_path,
        artifact("base", 10),
        artifact("large", 3.99, size_bytes=9000),
        artifact("small", 4.0, size_bytes=3000),
        artifact("tiny", 7.0, size_bytes=10),
    )
    assert found.chosen is not None
    assert found.chosen.name == "small"
    assert any(
        "does not differ significantly from that of large (9.00 kB); it is smaller (3.00 kB)" in text
        for text in found.reasons
    )
    assert any("tiny is the smallest (10 B)" in text for text in found.reasons)


def test_the_baseline_stays_where_nothing_is_surely_faster(tmp_path: Path) -> None:
    found = summary(tmp_path, artifact("base", 10), artifact("same", 10.01), artifact("slow", 14))
    assert found.chosen is not None
    assert found.chosen.is_baseline
    assert found.headline.startswith("No other artifact is surely faster")


def test_int8_slower_than_the_float_of_its_engine_is_said(tmp_path: Path) -> None:
    found = summary(
        tmp_path,
        artifact("torch", 20, engine="pytorch"),
        artifact("fp32", 5),
        artifact("int8", 8, precision="int8"),
        artifact("other-int8", 8, precision="int8", engine="openvino"),
    )
    assert found.chosen is not None
    assert found.chosen.name == "fp32"
    slower = [text for text in found.caveats if "is slower than" in text]
    assert len(slower) == 1
    assert slower[0].startswith("int8 is slower than fp32 (0.6")


def test_outputs_that_differ_are_not_recommended_where_accuracy_is_unknown(tmp_path: Path) -> None:
    wrong = {"passed": False, "snr_db": 3.0}
    found = summary(
        tmp_path, artifact("base", 10), artifact("wrong", 2, difference=wrong),
        artifact("right", 5, difference={"passed": True, "snr_db": 40.0}),
    )  # fmt: skip
    assert found.chosen is not None
    assert found.chosen.name == "right"
    assert found.headline == "The fastest artifact whose outputs agree with the baseline's."
    assert any(text.startswith("Accuracy was not measured") for text in found.caveats)


def test_a_drop_without_an_interval_counts_as_it_is(tmp_path: Path) -> None:
    found = summary(
        tmp_path, artifact("base", 10, accuracy=accuracy(0, None, None)),
        artifact("worse", 2, accuracy=accuracy(0.2, None, None)),
        artifact("equal", 5, accuracy=accuracy(0.0, None, None)),
    )  # fmt: skip
    assert found.chosen is not None
    assert found.chosen.name == "equal"
    assert any("has no interval" in text for text in found.caveats)


def test_an_interval_that_reaches_far_is_a_caveat(tmp_path: Path) -> None:
    found = summary(
        tmp_path, artifact("base", 10, accuracy=accuracy(0, None, None)),
        artifact("few", 2, accuracy=accuracy(1.0, -2.0, 4.0)),
    )  # fmt: skip
    assert any("may be as large as 4.00 points: 500 samples" in text for text in found.caveats)


def test_noise_failures_and_interruption_are_caveats(tmp_path: Path) -> None:
    failed = {
        "name": "dead",
        "artifact": "d",
        "engine": "onnxruntime",
        "status": "failed",
        "reason": "killed",
    }
    found = summary(
        tmp_path, artifact("base", 10), artifact("fast", 2), failed,
        environment={"noise": {"noisy": True, "reasons": ["others took 12%"]}}, interrupted=True,
    )  # fmt: skip
    assert any(text.startswith("Measuring was interrupted") for text in found.caveats)
    assert "Noisy run: others took 12%." in found.caveats
    assert any(text.startswith("dead failed") for text in found.caveats)


def test_one_artifact_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    found = summary(tmp_path, artifact("only", 10))
    assert found.chosen is not None
    assert "nothing to compare it with" in found.headline
    assert found.facts[0].label == "median latency"


def test_nothing_measured_recommends_nothing(tmp_path: Path) -> None:
    only = {**artifact("a", 1), "status": "not run", "latency_ms": None}
    found = summary(tmp_path, only)
    assert found.chosen is None
    assert found.headline == "Nothing was measured."


def test_without_the_baseline_nothing_is_recommended(tmp_path: Path) -> None:
    lost = {**artifact("a", 1), "status": "failed", "latency_ms": None}
    found = summary(tmp_path, lost, artifact("b", 2))
    assert found.chosen is None
    assert found.headline.startswith("The baseline was not measured")


def test_too_few_rounds_are_no_comparison(tmp_path: Path) -> None:
    value = {**results_json(3), "interrupted": True}
    for entry in value["artifacts"]:
        entry["speedup"] = None
    found = summarize(read_source(write(tmp_path / "r.json", value)))
    assert found.chosen is not None
    assert found.chosen.is_baseline
    assert "no comparison came about" in found.headline


def test_a_comparison_needs_rounds_that_pair_up(tmp_path: Path) -> None:
    value = results_json(3)
    value["artifacts"][1]["round_medians_ms"] = [1.0] * 7
    value["artifacts"][2]["round_medians_ms"] = [2.0] * ROUNDS
    first, second, third = read_source(write(tmp_path / "r.json", value)).measured
    assert faster(second, first) is None
    ratio = faster(third, first)
    assert ratio is not None
    assert ratio.value == pytest.approx(np.median(first.row.round_medians_ms) / 2.0, rel=0.005)


def within(tmp_path: Path, budget: Budget, *artifacts: dict[str, Any]) -> Summary:
    return summarize(read_source(write(tmp_path / "r.json", results_of(*artifacts)), budget=budget))


def test_of_the_artifacts_within_the_budget_the_fastest_is_recommended(tmp_path: Path) -> None:
    """It allows a loss, and refuses what is large or loses more."""
    found = within(
        tmp_path,
        Budget(max_size_mb=1, max_drop=1.5),
        artifact("base", 10, accuracy=accuracy(0, None, None)),
        artifact("large", 2, accuracy=accuracy(0, -0.3, 0.3), size_bytes=9_000_000),
        artifact("lossy", 4, accuracy=accuracy(0.8, 0.2, 1.4)),
        artifact("broken", 3, accuracy=accuracy(9, 8, 10)),
    )
    assert found.chosen is not None
    assert found.chosen.name == "lossy"
    assert found.headline == "The fastest artifact within the budget."
    assert any(
        "large is the fastest" in text and "exceeds the budget: size 9.00 MB, at most 1.00" in text
        for text in found.reasons
    )


def test_without_the_baseline_in_the_budget_a_slower_artifact_is_recommended(tmp_path: Path) -> None:
    base, small = artifact("base", 10, size_bytes=9_000_000), artifact("small", 12)
    assert within(tmp_path, Budget(), base, small).chosen.name == "base"  # type: ignore[union-attr]
    assert within(tmp_path, Budget(max_size_mb=1), base, small).chosen.name == "small"  # type: ignore[union-attr]


def test_nothing_is_recommended_where_nothing_keeps_the_budget(tmp_path: Path) -> None:
    found = within(tmp_path, Budget(max_latency_ms=1), artifact("base", 10), artifact("fast", 4))
    assert found.chosen is None
    assert found.headline == "No artifact keeps the budget."
    assert found.reasons[1] == "fast: it exceeds the budget: latency 4.00 ms, at most 1.00."
