"""JUnit XML of a gate: a suite, one case for each check, as Jenkins, GitLab and GitHub actions read it.

The elements and attributes are those of Jenkins' schema (`junit-10.xsd` of the xUnit plugin). GitLab shows
`classname` as the suite and drops a second case of one name (docs.gitlab.com, "Unit test reports"), so the
class is the artifact and the name is the check.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from ...files import write_text
from ...plain_text import plain
from .checks import Check
from .result import GateResult, PairResult

_SUITE = "qcompile gate"


def save_junit(result: GateResult, path: Path) -> None:
    """Write the XML."""
    write_text(path, junit(result))


def junit(result: GateResult) -> str:
    """Return the XML. What is undecided is skipped, with its reason; with `strict` it is a failure."""
    cases = list(result.checks())
    about = {
        "name": _SUITE,
        "tests": str(len(cases)),
        "failures": str(sum(result.fails(check) for _, check in cases)),
        "errors": "0",
        "time": f"{result.seconds:.3f}",
    }
    skipped = str(sum(_is_skipped(result, check) for _, check in cases))
    root = ElementTree.Element("testsuites", about)
    suite = ElementTree.SubElement(
        root, "testsuite", about | {"skipped": skipped, "timestamp": result.created}
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("machine", result.machine), ("threads", str(result.threads))):
        ElementTree.SubElement(properties, "property", name=name, value=plain(value))
    for pair, check in cases:
        _case(suite, result, pair, check)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _case(suite: ElementTree.Element, result: GateResult, pair: PairResult, check: Check) -> None:
    seconds = pair.seconds if check is pair.checks[0] else 0.0  # the checks of a pair share its measuring
    case = ElementTree.SubElement(
        suite, "testcase", name=check.kind, classname=plain(pair.name), time=f"{seconds:.3f}"
    )
    text = plain(check.text)
    if result.fails(check):
        failure = ElementTree.SubElement(case, "failure", type=check.state, message=text)
        failure.text = "\n".join(
            filter(None, (text, plain(check.hint), f"old: {plain(pair.old)}", f"new: {plain(pair.new)}"))
        )
    elif _is_skipped(result, check):
        ElementTree.SubElement(case, "skipped", type=check.state, message=text)
    else:
        ElementTree.SubElement(case, "system-out").text = text


def _is_skipped(result: GateResult, check: Check) -> bool:
    return check.state in ("undecided", "skipped") and not result.fails(check)
