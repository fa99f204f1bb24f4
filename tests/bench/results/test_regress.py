"""Two runs compared: verdicts on known rounds, limits, refusals."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from qcompile.bench.results.regress import compare_results, parse_limit, unpaired_speedup
from qcompile.bench.results.results import Results
from qcompile.bench.results.row import Accuracy, Latency, Row
from qcompile.bench.statistics import CONFIDENCE, half_width, level_of
from qcompile.errors import InvalidOption

HERE = {"processor": "some", "architecture": "x86_64", "features": ["avx2"], "cores_usable": 2, "gpu": None}


def launches(medians: list[float]) -> list[list[float]]:
    """Of five rounds each."""
    return [medians[start : start + 5] for start in range(0, len(medians), 5)]


def row(name: str, medians: list[float], **fields: Any) -> Row:
    return Row(
        name, f"{name}.onnx", "onnxruntime", latency=Latency(median_ms=float(np.median(medians))),
        round_medians_ms=tuple(medians), launch_rounds=tuple(map(len, launches(medians))), **fields,
    )  # fmt: skip


def run(*rows: Row, **environment: Any) -> Results:
    settings = {"threads": 2, "inputs": {"x": "1x16"}}
    return Results(baseline=rows[0].name, rows=rows, environment=HERE | environment, settings=settings)


def noisy(level: float, seed: int, rounds: int = 30) -> list[float]:
    noise = random.Random(seed)
    return [level * (1.0 + 0.03 * noise.random()) for _ in range(rounds)]


SLOW = row("a", noisy(9.0, 2))


def test_the_estimate_is_the_ratio_of_levels_and_the_interval_that_of_their_difference() -> None:
    old, new = launches(noisy(10.0, 1)), launches(noisy(11.0, 2))
    levels = [level_of([[math.log(value) for value in launch] for launch in one]) for one in (old, new)]
    means = [np.mean([np.log(launch).mean() for launch in one]) for one in (old, new)]
    found = unpaired_speedup(old, new)
    assert found.value == pytest.approx(math.exp(levels[0].mean - levels[1].mean))
    assert found.value == pytest.approx(math.exp(means[0] - means[1]), rel=0.005)  # by another estimator
    reach = math.exp(half_width(levels, CONFIDENCE))
    assert (found.low, found.high) == pytest.approx((found.value / reach, found.value * reach))
    assert found.launches == 6


def test_single_launches_are_compared_with_all_the_doubt_they_have() -> None:
    """Results of one launch each: two processes of one file may differ by as much."""
    found = unpaired_speedup([noisy(10.0, 1)], [noisy(10.2, 2)])
    assert found.verdict == "no difference"
    assert found.width > 0.06


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ({}, {"device": "cuda:0"}, "ran on cpu, and now on cuda:0"),
        # Results of 0.2.0 are without a graph: its gain is none of the engine's.
        ({"device": "cuda:0"}, {"device": "cuda:0", "mode": "cuda-graph"},
         "ran on cuda:0, and now on cuda:0 with CUDA graphs"),
    ],
)  # fmt: skip
def test_rows_of_another_device_or_mode_are_not_compared(
    before: dict[str, str], after: dict[str, str], reason: str
) -> None:
    old, new = run(row("a", noisy(5.0, 0), **before)), run(row("a", noisy(1.0, 1), **after))
    [change] = compare_results(old, new, limits=["slower:5%"]).changes
    assert change.speedup is None
    assert change.broken == (change.reason,) == (reason,)
    assert compare_results(new, new).changes[0].speedup is not None


def test_equal_levels_are_rarely_called_different() -> None:
    found = [
        unpaired_speedup(launches(noisy(5.0, seed)), launches(noisy(5.0, seed + 1000))).verdict
        for seed in range(100)
    ]
    assert found.count("no difference") == 100


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.05, "slower"), (0.95, "faster"), (1.002, "no difference")]
)
def test_a_change_of_level_is_called_what_it_is(factor: float, verdict: str) -> None:
    found = compare_results(run(row("a", noisy(5.0, 1))), run(row("a", noisy(5.0 * factor, 2))))
    assert found.changes[0].speedup.verdict == verdict
    assert found


def test_a_limit_is_broken_only_by_what_is_surely_beyond_it() -> None:
    old = run(row("a", noisy(5.0, 1)))
    for percent, passes in ((5.0, False), (7.0, True), (20.0, True)):
        found = compare_results(old, run(row("a", noisy(5.35, 2))), limits=[f"slower:{percent}%"])
        assert bool(found) is passes


def test_size_and_accuracy_have_limits_too() -> None:
    old = run(row("a", noisy(5.0, 1), size_bytes=100, accuracy=Accuracy("top1", 0.9)))
    new = run(row("a", noisy(5.0, 2), size_bytes=112, accuracy=Accuracy("top1", 0.894)))
    [change] = compare_results(old, new, limits=["larger:10%", "accuracy:0.5"]).changes
    assert change.broken == ("larger:10%", "accuracy:0.5")
    assert (change.gain, change.unit) == (pytest.approx(-0.6), "points")
    assert not compare_results(old, new, limits=["larger:15%"]).changes[0].broken
    assert not compare_results(old, new, limits=["accuracy:1"]).changes[0].broken


def test_a_larger_error_is_worse_and_counted_in_its_own_unit() -> None:
    """A mean squared error that rose from 0.001 to 0.003 was called 0.2 points better."""
    old = run(row("a", noisy(5.0, 1), accuracy=Accuracy("mse", 0.001, higher_is_better=False)))
    new = run(row("a", noisy(5.0, 2), accuracy=Accuracy("mse", 0.003, higher_is_better=False)))
    [change] = compare_results(old, new, limits=["accuracy:0.001"]).changes
    assert (change.gain, change.unit) == (pytest.approx(-0.002), "units")
    assert change.broken == ("accuracy:0.001",)
    assert change.as_json()["accuracy_points"] is None
    [back] = compare_results(new, old, limits=["accuracy:0.001"]).changes
    assert back.gain == pytest.approx(0.002)
    assert not back.broken


def test_what_was_measured_and_is_not_any_more_fails() -> None:
    old, gone = run(row("a", noisy(5.0, 1))), row("a", noisy(5.0, 2), status="failed")
    found = compare_results(old, run(gone), limits=["slower:5%"])
    assert not found
    assert compare_results(run(gone), old, limits=["slower:5%"])  # a new artifact does not


def test_relative_to_the_baseline_a_slower_machine_is_left_out() -> None:
    old = run(row("base", noisy(10.0, 1)), row("a", noisy(5.0, 2)))
    new = run(row("base", noisy(11.0, 3)), row("a", noisy(5.5, 4)))
    absolute, relative = compare_results(old, new), compare_results(old, new, relative=True)
    assert absolute.changes[1].speedup.verdict == "slower"
    assert relative.changes[1].speedup.verdict == "no difference"


@pytest.mark.parametrize(
    ("new", "options", "words"),
    [
        (run(SLOW, processor="another"), {}, "different machines: some, 2 cores; another, 2 cores"),
        (run(SLOW, features=["avx2", "avx512f"]), {}, r"some, 2 cores \(features: avx512f in one alone\)"),
        (run(SLOW, architecture="aarch64"), {}, r"\(architecture: x86_64 and aarch64\)"),
        (run(SLOW, processor="another"), {"across_machines": True, "limits": ["slower:5%"]},
         "`limits`: results of different machines have no verdict"),
        (structs.replace(run(SLOW), settings={"threads": 1, "inputs": {"x": "1x16"}}), {},
         "different threads: 2; 1"),
        (run(row("b", noisy(5.0, 1))), {"relative": True}, "different baselines: a; b"),
    ],
)  # fmt: skip
def test_results_that_do_not_compare_are_refused(new: Results, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        compare_results(run(row("a", noisy(5.0, 1))), new, **options)


def test_different_machines_are_shown_side_by_side_without_a_verdict() -> None:
    found = compare_results(
        run(row("a", noisy(5.0, 1))), run(SLOW, processor="another"), across_machines=True
    )
    assert not found.same_machine
    assert found.changes[0].speedup is None
    assert found.changes[0].new_ms == pytest.approx(9.1, rel=0.02)


def test_too_few_rounds_are_no_comparison() -> None:
    [change] = compare_results(run(row("a", [5.0] * 3)), run(row("a", [5.0] * 30))).changes
    assert (change.speedup, change.reason) == (None, change.reason)
    assert change.reason.startswith("the old results have 3 rounds, the new ones 30; at least 8 of each")


@pytest.mark.parametrize("text", ["slower", "slower:5", "slower:x%", "faster:5%", "accuracy:1%", "slower:-1%",
                                  "larger:nan%", "accuracy:inf"])  # fmt: skip
def test_a_limit_that_is_spelled_wrong_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="is required"):
        parse_limit(text)


@given(
    st.lists(st.floats(0.5, 2.0), min_size=8, max_size=20),
    st.lists(st.floats(0.5, 2.0), min_size=8, max_size=20),
)
def test_old_against_new_is_the_inverse_of_new_against_old(old: list[float], new: list[float]) -> None:
    there, back = unpaired_speedup([old], [new]), unpaired_speedup([new], [old])
    assert there.low == pytest.approx(1.0 / back.high)
    assert there.high == pytest.approx(1.0 / back.low)
    assert there.low <= there.value <= there.high
