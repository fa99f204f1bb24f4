"""One rule recommends, within a budget or without; one sentence says what, at what cost, and why no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_results import recommendable as artifact
from report_results import results_json, results_of, write

from qcompile.bench.report.recommendation import Recommendation, recommend
from qcompile.bench.report.source import read_source
from qcompile.bench.report.summary import Summary, compare_speed, excesses, summarize
from qcompile.bench.results.row import Latency, Row
from qcompile.spec.measure import Budget

ROUNDS = 25


def scored(
    name: str, ms: float, drop: float, low: float | None = None, high: float | None = None, *,
    samples: int = 500, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """An artifact with a drop in accuracy."""
    figures = {"drop_points": drop, "low": low, "high": high, "samples": samples}
    return artifact(name, ms, accuracy={"metric": "top1", "value": 0.9, **figures}, **options)


def unmeasured(name: str, status: str, **options: Any) -> dict[str, Any]:
    return {**artifact(name, 1), "status": status, "latency_ms": None, **options}


def summary(
    tmp_path: Path, *artifacts: dict[str, Any], budget: Budget = Budget(), **top: Any  # noqa: B008
) -> Summary:  # fmt: skip
    """The summary of these, the first being the baseline."""
    return summarize(read_source(write(tmp_path / "r.json", results_of(*artifacts, **top)), budget=budget))


BASE, SCORED_BASE = artifact("base", 10), scored("base", 10, 0)
LARGE_BASE, SMALL = artifact("base", 10, size_bytes=9_000_000), artifact("small", 12)
WITHIN = "The fastest artifact within the budget."
TORCH = artifact("torch", 20, engine="pytorch")
INT8 = artifact("int8", 8, precision="int8")
VINO_INT8 = artifact("vino", 8, precision="int8", engine="openvino")


@pytest.mark.parametrize(
    ("artifacts", "budget", "chosen", "words"),
    [
        pytest.param(
            [SCORED_BASE, scored("good", 4, 0.2, -0.3, 0.7), scored("slow", 6, 0.0, -0.3, 0.3),
             scored("lossy", 2, 3.0, 2.1, 3.8)],
            {}, "good", ["The fastest artifact that lost no accuracy", "lossy is the fastest",
                         "loses 3.00 points [2.10, 3.80]"], id="kept its accuracy",
        ),
        pytest.param(
            [BASE, artifact("large", 3.99, size_bytes=9000), artifact("small", 4.0, size_bytes=3000),
             artifact("tiny", 7.0, size_bytes=10)],
            {}, "small", ["It is as fast as large (9.00 kB) within 10%; it is smaller (3.00 kB)",
                          "tiny is the smallest (10 B)"], id="smallest of the equally fast",
        ),
        pytest.param(
            [BASE, artifact("same", 10.01), artifact("slow", 14)],
            {}, "base", ["No other artifact is significantly faster"], id="nothing is significantly faster",
        ),
        pytest.param(
            [TORCH, artifact("fp32", 5), INT8, VINO_INT8],
            {}, "fp32", ["int8 is slower than fp32 (0.6", "!vino is slower"], id="INT8 slower than its float",
        ),
        pytest.param(
            [BASE, artifact("wrong", 2, difference={"passed": False, "snr_db": 3.0}),
             artifact("right", 5, difference={"passed": True, "snr_db": 40.0})],
            {}, "right", ["The fastest artifact whose outputs agree with the baseline's.",
                          "Accuracy was not measured"], id="outputs differ",
        ),
        pytest.param(
            [SCORED_BASE, scored("worse", 2, 0.2), scored("equal", 5, 0.0)],
            {}, "equal", ["has no interval"], id="a drop without an interval counts as it is",
        ),
        pytest.param(
            [SCORED_BASE, scored("few", 2, 1.0, -2.0, 4.0)],
            {}, "few", ["may be as large as 4.00 points: 500 samples"],
            id="an interval that reaches far",
        ),
        pytest.param([artifact("only", 10)], {}, "only", ["so there is no comparison"], id="only one"),
        pytest.param([unmeasured("a", "not run")], {}, None, ["No artifact was measured."], id="nothing"),
        pytest.param(
            [unmeasured("a", "failed"), artifact("b", 2)],
            {}, None, ["The baseline was not measured"], id="no baseline",
        ),
        pytest.param(
            [SCORED_BASE, scored("large", 2, 0, -0.3, 0.3, size_bytes=9_000_000),
             scored("lossy", 4, 0.8, 0.2, 1.4), scored("broken", 3, 9, 8, 10)],
            {"max_size_mb": 1, "max_drop": 1.5}, "lossy",
            [WITHIN, "large is the fastest", "exceeds the budget: size 9.00 MB, at most 1.00"],
            id="a budget allows a loss and refuses what is large",
        ),
        pytest.param([LARGE_BASE, SMALL], {}, "base", [], id="slower without a budget"),
        pytest.param([LARGE_BASE, SMALL], {"max_size_mb": 1}, "small", [WITHIN], id="the base exceeds it"),
        pytest.param(
            [BASE, artifact("fast", 4)], {"max_latency_ms": 1}, None,
            ["No artifact meets the budget.",
             "fast: it exceeds the budget: latency 4.00 ms, at most 1.00."], id="nothing keeps the budget",
        ),
    ],
)  # fmt: skip
def test_the_fastest_that_may_be_used_is_recommended_with_reasons(
    tmp_path: Path, artifacts: list[dict[str, Any]], budget: dict[str, float], chosen: str | None,
    words: list[str],
) -> None:  # fmt: skip
    found = summary(tmp_path, *artifacts, budget=Budget(**budget))
    assert (found.recommended and found.recommended.name) == chosen
    text = "\n".join([found.headline, *found.reasons, *found.caveats])
    for said in words:
        assert (said.lstrip("!") in text) != said.startswith("!"), said


def test_a_smaller_artifact_needs_proof_that_it_is_as_fast(tmp_path: Path) -> None:
    # Its median is 1.5 times that of the fastest, but with noise of 40% the interval contains 1.
    noise = np.random.default_rng(0).normal(0, 0.4, (2, ROUNDS))
    fast, small = artifact("fast", 171, size_bytes=9000), artifact("small", 252, size_bytes=3000)
    for entry, deviations in zip((fast, small), noise, strict=True):
        entry["round_medians_ms"] = (entry["latency_ms"]["median"] * np.exp(deviations)).tolist()
    found = summary(tmp_path, artifact("base", 2000), fast, small)
    assert found.recommended
    assert found.recommended.name == "fast"
    ratio = compare_speed(*(s for s in read_source(tmp_path / "r.json").subjects if s.name != "base"))
    assert ratio
    assert ratio.verdict == "no difference"
    assert "does not separate its speed from that of small: measure longer." in "\n".join(found.reasons)


def test_a_comparison_with_onnx_runtime_as_the_baseline_is_given_once(tmp_path: Path) -> None:
    base = artifact("onnx-fp32", 10, precision="fp32")
    results = write(tmp_path / "r.json", results_of(base, artifact("onnx-int8", 5, precision="int8")))
    found = recommend(results)
    assert found.sentence.count("as fast as onnx-fp32") == 1
    assert found.over_onnx == found.over_baseline


def test_the_facts_are_speed_size_and_accuracy(tmp_path: Path) -> None:
    speed, size, kept = summary(tmp_path, SCORED_BASE, scored("good", 4, 0.2, -0.3, 0.7)).facts
    assert speed.label == "speed-up against base"
    assert 2.4 < float(speed.value.rstrip("×")) < 2.6
    assert (size.value, kept.value) == ("1.00 kB", "90.00%")
    assert "[−0.30, 0.70]" in kept.detail
    assert summary(tmp_path, BASE).facts[0].label == "median latency"


def test_noise_failures_and_interruption_are_caveats(tmp_path: Path) -> None:
    environment = {"noise": {"noisy": True, "reasons": ["others took 12%"]}}
    dead = unmeasured("dead", "failed")
    found = summary(tmp_path, BASE, artifact("fast", 2), dead, environment=environment, interrupted=True)
    assert any(text.startswith("Measuring was interrupted") for text in found.caveats)
    assert "Noisy run: others took 12%." in found.caveats
    assert any(text.startswith("dead failed") for text in found.caveats)


def test_a_baseline_at_chance_level_is_the_first_caveat(tmp_path: Path) -> None:
    base = scored("base", 10, 0)
    base["accuracy"]["suspicion"] = "top1 of the baseline is 10.0%: the labels look wrong"
    found = summary(tmp_path, base, scored("int8", 2, 0.0, -0.1, 0.1))
    assert found.caveats[0] == "top1 of the baseline is 10.0%: the labels look wrong."


def test_too_few_rounds_are_no_comparison(tmp_path: Path) -> None:
    value = {**results_json(3), "interrupted": True}
    for entry in value["artifacts"]:
        entry["speedup"] = None
    found = summarize(read_source(write(tmp_path / "r.json", value)))
    assert found.recommended.is_baseline
    assert "Too few rounds were measured" in found.headline


def test_a_comparison_needs_rounds_that_pair_up(tmp_path: Path) -> None:
    value = results_json(3)
    value["artifacts"][1]["round_medians_ms"] = [1.0] * 7
    value["artifacts"][2]["round_medians_ms"] = [2.0] * ROUNDS
    first, second, third = read_source(write(tmp_path / "r.json", value)).measured
    assert compare_speed(second, first) is None
    assert compare_speed(third, first).value == pytest.approx(
        np.median(first.row.round_medians_ms) / 2.0, rel=0.005
    )


ROW = Row("int8", "int8.onnx", "onnxruntime", size_bytes=500_000, latency=Latency(median_ms=2.0))
FLOAT = Row("float", "model.py:build", "pytorch", latency=Latency(median_ms=9.0))
TOO_LARGE, TOO_SLOW = "size 0.500 MB, at most 0.100", "latency 2.00 ms, at most 1.00"


@pytest.mark.parametrize(
    ("row", "limits", "words"),
    [
        (ROW, {"max_size_mb": 0.5}, ()),  # the limit itself is kept
        (ROW, {"max_size_mb": 0.499}, ("size 0.500 MB, at most 0.499",)),
        (ROW, {"max_latency_ms": 2.0}, ()),
        (ROW, {"max_latency_ms": 1.9}, ("latency 2.00 ms, at most 1.90",)),
        (ROW, {"max_size_mb": 0.1, "max_latency_ms": 1}, (TOO_LARGE, TOO_SLOW)),
        (ROW, {"max_drop": 0.0}, ()),  # another rule's
        (FLOAT, {"max_size_mb": 1}, ("its size is unknown",)),
        (Row("a", "a.onnx", "onnxruntime"), {"max_latency_ms": 1}, ("its latency was not measured",)),
    ],
)
def test_each_limit_is_compared_with_its_figure(
    row: Row, limits: dict[str, float], words: tuple[str, ...]
) -> None:
    assert excesses(Budget(**limits), row) == words


def test_limits_are_those_that_are_set() -> None:
    assert Budget().limits == {}
    assert Budget(max_drop=0, max_size_mb=2).limits == {"max_drop": 0, "max_size_mb": 2}


def recommended(tmp_path: Path, *artifacts: dict[str, Any], max_drop: float | None) -> Recommendation:
    torch = scored("pytorch", 10, 0, engine="pytorch", size_bytes=None)
    results = write(tmp_path / "r.json", results_of(torch, *artifacts))
    return recommend(results, budget=Budget(max_drop=max_drop))


def test_the_sentence_names_speed_over_both_accuracy_size_and_the_others(tmp_path: Path) -> None:
    said = recommended(
        tmp_path,
        scored("onnx-fp32", 5, 0, 0, 0, size_bytes=4000),
        scored("onnx-int8", 2, 0.2, -0.1, 0.4, precision="int8", size_ratio=4.0),
        scored("small-int8", 3, 0.2, 0.0, 0.4, precision="int8", size_bytes=900),
        scored("lossy", 1, 3.0, 2.1, 3.8, engine="openvino", precision="int8"),
        {"name": "rtx", "artifact": "rtx", "engine": "tensorrt-rtx", "status": "not run", "reason": "no GPU"},
        max_drop=0.5,
    )
    assert said.artifact == "onnx-int8"
    assert said.over_baseline["value"] == pytest.approx(5, rel=0.02)
    assert said.over_onnx["low"] < 2.5 < said.over_onnx["high"]
    assert said.sentence.startswith("Use onnx-int8 (int8 on ONNX Runtime): 5.")
    for words in (
        "as fast as pytorch and 2.5", "as fast as onnx-fp32, top1 90.00%, 0.20 points [−0.10, 0.40] lost",
        "1.00 kB (4.00× smaller)", "not onnx-fp32 and small-int8 (slower)",
        "not lossy (it loses 3.00 points [2.10, 3.80])", "not rtx (could not run here).",
    ):  # fmt: skip
        assert words in said.sentence
    assert said.sentence.count(". ") == 0, "one sentence"


@pytest.mark.parametrize(
    ("interval", "samples", "max_drop", "is_used", "words"),
    [
        ((0.2, -0.4, 0.8), 100, 0.8, True, ""),
        # (0.8 - 0.2) / (0.5 - 0.2) = 2: an interval of half the width needs four times the samples
        ((0.2, -0.4, 0.8), 300, 0.5, False,
         "300 samples cannot show that it keeps 0.50 points; about 1,200 would"),
        # fewer would not do even if no answer changed
        ((0.2, -0.4, 0.8), 100, 0.5, False,
         "100 samples cannot show that it keeps 0.50 points; about 765 would"),
        ((0.17, 0.0, 0.5025), 597, 0.5, False, "[0.00, 0.50]: 597 samples cannot show that it keeps "
         "0.50 points (the upper end is 0.5025); about 765 would"),
        ((0.2, None, None), 9, 0.5, True, "(9 samples: too few for an interval)"),
        ((0.2, -0.4, 0.8), 500, None, True, ""),
        ((0.6, 0.1, 0.8), 500, None, False, ""),
        ((0.6, 0.1, 0.8), 500, 0.8, True, ""),
    ],
)  # fmt: skip
def test_the_upper_end_of_the_interval_must_keep_the_budget_and_the_lower_one_zero_without(
    tmp_path: Path, interval: tuple[Any, ...], samples: int, max_drop: float | None, is_used: bool, words: str
) -> None:  # fmt: skip
    int8 = scored("int8", 2, *interval, samples=samples, precision="int8")
    said = recommended(tmp_path, int8, max_drop=max_drop)
    assert (said.artifact, said.nearest) == (("int8", "") if is_used else ("", "int8"))
    assert words in said.sentence
    assert any("The drop has no interval" in text for text in said.caveats) == (interval[1] is None)


def test_what_keeps_the_budget_without_being_faster_is_not_recommended(tmp_path: Path) -> None:
    lossy = scored("lossy", 5, 2.0, 1.0, 3.0, precision="int8")
    said = recommended(tmp_path, scored("slow", 20, 0.0, 0.0, 0.0), lossy, max_drop=0.5)
    assert (said.artifact, said.nearest) == ("", "lossy")
    assert said.sentence.startswith(
        "No other artifact is significantly faster within the budget of 0.50 points; "
    )
    assert "it loses 2.00 points [1.00, 3.00]" in said.sentence
