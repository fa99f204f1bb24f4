"""What each check of a gate requires, and its reports: JUnit XML of Jenkins' schema, and Markdown."""

from __future__ import annotations

import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from qcompile.bench.gate.checks import (
    Check,
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
from qcompile.bench.gate.result import GateResult, PairResult, junit, markdown
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
        (Interval(0.0, 0.0, 0.0), None, "passed"),
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


CHECKS = (
    Check("latency", "failed", "1.00 ms", "1.10 ms", "+10.0%", "latency changes by +10.0%", "make it faster"),
    Check("size", "passed", "1 kB", "1 kB", "+0.0%", "size changes by +0.0%"),
    Check("accuracy", "undecided", text="too few samples", hint="give more"),
    Check("outputs", "skipped", change="SNR 40 dB", text="outputs do not decide: accuracy decides"),
)

# junit-10.xsd of Jenkins' xUnit plugin: attributes, those that are required, children.
SCHEMA = {
    "testsuites": (set("name time tests failures errors".split()), set(), {"testsuite"}),
    "testsuite": (
        set(
            "name tests failures errors group time skipped timestamp hostname id package file log url".split()
        ),
        {"name", "tests", "failures", "errors"},
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
    ),
    "testcase": (
        {"name", "time", "classname", "group"},
        {"name"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, {"name", "value"}, set()),
    "failure": ({"type", "message"}, set(), set()),
    "skipped": ({"type", "message"}, set(), set()),
    "system-out": (set(), set(), set()),
}


def result(*, name: str = "a.onnx", checks: tuple[Check, ...] = CHECKS, strict: bool = False) -> GateResult:
    limits = Limits(0.02, 0.01, None, "auto", strict)
    pair = PairResult(name, "old/a.onnx", "new/a.onnx", None, checks, seconds=1.5)
    return GateResult([pair], limits, ["b.onnx"], "a processor", 1, "2026-01-01T00:00:00+00:00", 12.25)


def check_element(element: ElementTree.Element) -> None:
    permitted, required, children = SCHEMA[element.tag]
    assert required <= set(element.attrib) <= permitted, element.tag
    assert {child.tag for child in element} <= children, element.tag
    for child in element:
        check_element(child)


@given(st.text(), st.text(), st.booleans())
def test_any_name_and_sentence_give_junit_of_the_schema(name: str, text: str, strict: bool) -> None:
    checks = tuple(Check(one.kind, one.state, text=text) for one in CHECKS)
    root = ElementTree.fromstring(junit(result(name=name, checks=checks, strict=strict)))
    check_element(root)


def test_junit_counts_what_it_holds_and_names_check_and_artifact() -> None:
    [suite] = ElementTree.fromstring(junit(result()))
    cases = list(suite.iter("testcase"))
    assert [(case.get("classname"), case.get("name")) for case in cases] == [
        ("a.onnx", "latency"), ("a.onnx", "size"), ("a.onnx", "accuracy"), ("a.onnx", "outputs"),
    ]  # fmt: skip
    assert suite.get("tests") == "4"
    assert suite.get("failures") == str(len(list(suite.iter("failure")))) == "1"
    assert suite.get("skipped") == str(len(list(suite.iter("skipped")))) == "2"
    assert suite.get("time") == "12.250"
    assert [case.get("time") for case in cases] == ["1.500", "0.000", "0.000", "0.000"]
    failure = cases[0].find("failure")
    assert failure.get("message") == "latency changes by +10.0%"
    assert "make it faster" in (failure.text or "")


def test_strict_fails_what_is_undecided_but_not_what_was_not_asked() -> None:
    checks = CHECKS[1:]
    assert result(checks=checks)
    strict = result(checks=checks, strict=True)
    assert not strict
    [suite] = ElementTree.fromstring(junit(strict))
    assert suite.get("failures") == "1"
    assert suite.get("skipped") == "1"
    assert not result(checks=(Check("run", "skipped", text="no GPU"),), strict=True)
    assert result(checks=(Check("run", "skipped", text="no GPU"),))


def test_markdown_has_a_row_for_each_check_and_a_sentence_for_what_is_open() -> None:
    lines = markdown(result()).splitlines()
    assert lines[0] == "### qcompile gate: failed: 1 check, 1 artifact, 1 undecided, 12 s"
    rows = [line for line in lines if line.startswith("|")]
    assert rows[2] == "| a.onnx | latency | 1.00 ms | 1.10 ms | +10.0% | FAILED |"
    assert len(rows) == 2 + len(CHECKS)
    assert "- a.onnx: too few samples" in lines
    assert "- b.onnx: only the new folder has it; not judged" in lines


@given(st.text(alphabet="a|<[`\n\\ "))
def test_no_name_breaks_the_table(name: str) -> None:
    rows = [line for line in markdown(result(name=name)).splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(CHECKS)
    plain = [row.replace("\\\\", "").replace("\\|", "") for row in rows]
    assert {row.count("|") for row in plain} == {7}
