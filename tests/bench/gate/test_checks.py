"""What each check of a gate requires."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from msgspec import structs

from qcompile.bench.gate.checks import (
    Limits,
    Slowdown,
    State,
    accuracy_check,
    change_text,
    checks_of,
    interval_text,
    outputs_check,
    size_check,
)
from qcompile.bench.results.row import Accuracy, Difference, Interval, Latency, Row

LIMITS = Limits(0.02, 0.01, None, "auto", False)
OLD = Row("old", "a.onnx", "onnxruntime", size_bytes=1000)
NEW = Row("new", "b.onnx", "onnxruntime", size_bytes=1000)


def timed(row: Row, ms: float) -> Row:
    return structs.replace(row, latency=Latency(ms), round_medians_ms=(ms,) * 16, launch_rounds=(4,) * 4)


@pytest.mark.parametrize(
    ("ms", "state"), [(10.0, "passed"), (10.19, "undecided"), (10.5, "failed"), (5.0, "passed")]
)
def test_latency_is_judged_by_the_rule(ms: float, state: State) -> None:
    check = checks_of(timed(OLD, 10.0), timed(NEW, ms), LIMITS, has_data=True)[0]
    assert (check.kind, check.state) == ("latency", state)
    assert bool(check.hint) == (state == "undecided")


@pytest.mark.parametrize(("size", "state"), [(900, "passed"), (1010, "passed"), (1011, "failed")])
def test_size_may_grow_by_the_limit(size: int, state: State) -> None:
    check = size_check(OLD, structs.replace(NEW, size_bytes=size), LIMITS)
    assert check.state == state


def test_the_sizes_of_models_are_those_of_their_weights() -> None:
    old, new = (structs.replace(row, size_bytes=None, weights_bytes=100) for row in (OLD, NEW))
    check = size_check(old, structs.replace(new, weights_bytes=200), LIMITS)
    assert check.state == "failed"
    assert size_check(OLD, new, LIMITS) is None, "a file and a MODEL have no size in common"


@pytest.mark.parametrize(
    ("drop", "max_drop", "state"),
    [
        (Interval(0.3, 0.1, 0.5), None, "failed"),
        (Interval(0.3, -0.1, 0.7), None, "passed"),
        (Interval(0.3, -0.1, 0.7), 0.2, "failed"),
        (Interval(0.3, 0.1, 0.5), 0.5, "passed"),
        (Interval(-1.0, -2.0, -0.5), 0.0, "passed"),
        (Interval(0.0, 0.0, 0.0), 0.0, "passed"),
        (Interval(5.0), None, "undecided"),
        (Interval(0.0), None, "passed"),
        (Interval(math.nan), 0.5, "failed"),
        (Interval(math.nan), None, "undecided"),
        (None, 0.5, "failed"),
    ],
)
def test_accuracy_may_drop_by_the_limit_or_within_its_interval(
    drop: Interval | None, max_drop: float | None, state: State
) -> None:
    old, new = (
        structs.replace(OLD, accuracy=Accuracy("top1", 0.9)),
        structs.replace(NEW, accuracy=Accuracy("top1", 0.897, drop)),
    )
    check = accuracy_check(old, new, replace(LIMITS, max_drop=max_drop))
    assert check.state == state


@pytest.mark.parametrize(
    ("precisions", "rule", "has_data", "state"),
    [
        (("fp32", "fp32"), "auto", False, "failed"),
        (("int8", "int8"), "auto", False, "skipped"),
        (("int8", "int8"), "auto", True, "failed"),
        (("fp32", "int8"), "auto", True, "skipped"),
        (("fp32", "int8"), "same", True, "failed"),
        (("fp32", "fp32"), "any", True, "skipped"),
    ],
)
def test_outputs_decide_where_they_say_something(
    precisions: tuple[str, str], rule: str, has_data: bool, state: State
) -> None:
    differs = Difference(False, "y", 3.0, 1.0, criterion="SNR of 15 dB")
    old = structs.replace(OLD, precision=precisions[0])
    new = structs.replace(NEW, precision=precisions[1], difference=differs)
    limits = Limits(0.02, 0.01, None, rule, False)  # type: ignore[arg-type]
    check = outputs_check(old, new, limits, has_data=has_data)
    assert check.state == state
    agrees = outputs_check(
        old, structs.replace(new, difference=structs.replace(differs, passed=True)), limits, has_data=has_data
    )
    assert agrees.state == "passed"


def test_a_change_is_shown_in_percent_and_a_large_one_as_a_factor() -> None:
    shown = [change_text(ratio) for ratio in (1.0, 1.051, 0.98, 3.1, 0.25)]
    assert shown == ["+0.0%", "+5.1%", "\N{MINUS SIGN}2.0%", "3.1x", "0.25x"]


def test_a_slowdown_and_its_ends_are_shown_alike() -> None:
    minus = "\N{MINUS SIGN}"
    assert interval_text(Slowdown(1.01, 0.98, 1.04, 3, 9)) == f"+1.0% [{minus}2.0%, +4.0%]"
    assert interval_text(Slowdown(3.65, 1.29, 10.3, 3, 9)) == "3.65x [1.29x, 10.3x]"
