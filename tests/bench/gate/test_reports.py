"""JUnit XML and Markdown of a gate: what Jenkins' schema permits, and what a forge shows."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from qcompile.bench.gate.checks import Check, Limits
from qcompile.bench.gate.result import GateResult, PairResult, junit, markdown

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
    pair = PairResult(name, "old/a.onnx", "new/a.onnx", checks, seconds=1.5)
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
