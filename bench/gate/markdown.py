"""Markdown of a gate, for the summary of a GitHub job or a comment on a merge request."""

from __future__ import annotations

from pathlib import Path

from ...figures import DASH
from ...files import write_text
from ..results.export import markdown_cell
from .checks import Check, State
from .result import GateResult, PairResult

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
