"""The outcome of a gate: its checks, whether all that was required holds; as XML and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ...figures import DASH
from ...files import write_text
from ...plain_text import plain
from ..results.render import markdown_cell
from .checks import Check, Limits, Slowdown, State

KIND = "qcompile.gate"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class PairResult:
    """The checks of one pair.

    Attributes:
        name: Of the artifact.
        old, new: Paths or MODEL spellings.
        slowdown: Of the new version; None where it was not measured.
        checks: In the order of `checks.Kind`.
        seconds: That the pair took.
        warnings: What the rows say of the measuring.
        disturbed: What else used the machine meanwhile, and what to do about it.
    """

    name: str
    old: str
    new: str
    slowdown: Slowdown | None
    checks: Sequence[Check]
    seconds: float = 0.0
    warnings: Sequence[str] = ()
    disturbed: Sequence[str] = ()

    @property
    def is_skipped(self) -> bool:
        """Whether the pair could not run here."""
        return any(check.kind == "run" and check.state == "skipped" for check in self.checks)


@dataclass(frozen=True)
class GateResult:
    """The outcome of a gate; true when nothing fails.

    Attributes:
        pairs: What was judged.
        limits: What was required.
        added: Artifacts that only the new folder holds.
        machine: Where it ran, in words.
        threads: Of every artifact.
        created: When, ISO 8601 in UTC.
        seconds: That it took.
    """

    pairs: Sequence[PairResult]
    limits: Limits
    added: Sequence[str]
    machine: str
    threads: int
    created: str
    seconds: float

    def __bool__(self) -> bool:
        return not any(self.fails(check) for _, check in self.checks())

    def checks(self) -> Iterator[tuple[PairResult, Check]]:
        """Yield every check with its pair."""
        return ((pair, check) for pair in self.pairs for check in pair.checks)

    def fails(self, check: Check) -> bool:
        """Whether a check fails the gate: with `strict` also one that is open."""
        is_open = check.state == "undecided" or (check.kind == "run" and check.state == "skipped")
        return check.state == "failed" or (self.limits.strict and is_open)

    @property
    def words(self) -> str:
        """The outcome as one line."""
        failed = sum(self.fails(check) for _, check in self.checks())
        undecided = sum(check.state == "undecided" for _, check in self.checks())
        count = f"{len(self.pairs)} artifact{'' if len(self.pairs) == 1 else 's'}"
        left = f", {undecided} undecided" if undecided else ""
        verdict = f"failed: {failed} check{'' if failed == 1 else 's'}" if failed else "passed"
        return f"{verdict}, {count}{left}, {self.seconds:.0f} s"

    def as_json(self) -> dict[str, Any]:
        """Return the `--json` form."""
        return {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "created": self.created,
            "passed": bool(self),
            "machine": self.machine,
            "threads": self.threads,
            "seconds": round(self.seconds, 3),
            "limits": {
                "max_slower_percent": round(100.0 * self.limits.max_slower, 6),
                "max_larger_percent": round(100.0 * self.limits.max_larger, 6),
                "max_drop": self.limits.max_drop,
                "outputs": self.limits.outputs,
                "strict": self.limits.strict,
            },
            "pairs": [asdict(pair) | {"seconds": round(pair.seconds, 3)} for pair in self.pairs],
            "added": list(self.added),
        }


# JUnit XML of a gate: a suite, one case for each check, as Jenkins, GitLab and GitHub actions read it.
#
# The elements and attributes are those of Jenkins' schema (`junit-10.xsd` of the xUnit plugin). GitLab shows
# `classname` as the suite and drops a second case of one name (docs.gitlab.com, "Unit test reports"), so the
# class is the artifact and the name is the check.


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


_HEADER = ("artifact", "check", "old", "new", "change", "verdict")
WORDS: dict[State, str] = {
    "passed": "passed", "failed": "FAILED", "undecided": "undecided", "skipped": "not judged",
}  # fmt: skip


def save_markdown(result: GateResult, path: Path) -> None:
    """Write the Markdown."""
    write_text(path, markdown(result))


def markdown(result: GateResult) -> str:
    """Return a heading, the table, and a sentence for each check that did not pass."""
    lines: list[tuple[str, ...]] = [_HEADER, ("---", "---", "---:", "---:", "---:", "---")]
    lines += [cells_of(result, pair, check) for pair, check in result.checks()]
    rows = ["| " + " | ".join(map(markdown_cell, cells)) + " |" for cells in lines]
    notes = [f"- {markdown_cell(note)}" for note in notes_of(result)]
    about = f"{result.machine}, {result.threads} threads; interleaved, with 99% intervals"
    parts = (f"### qcompile gate: {result.words}", "\n".join(rows), "\n".join(notes), markdown_cell(about))
    return "\n\n".join(filter(None, parts)) + "\n"


def cells_of(result: GateResult, pair: PairResult, check: Check) -> tuple[str, ...]:
    """Return the row of a check; the cells of what was not measured have a dash."""
    first = pair.name if check is pair.checks[0] else ""
    verdict = WORDS[check.state]
    if result.fails(check) and check.state != "failed":
        verdict = f"FAILED: {verdict}"
    return (first, check.kind, check.old or DASH, check.new or DASH, check.change or DASH, verdict)


def notes_of(result: GateResult) -> list[str]:
    """Return a sentence for each check that failed or is open, and for artifacts without an old version."""
    notes = [f"{pair.name}: {check.text}" for pair, check in result.checks() if check.state != "passed"]
    return [*notes, *(f"{name}: only the new folder has it; not judged" for name in result.added)]
