"""`qcompile gate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spec.gate import GateCommand
from .session import Session
from .tables import add_row, make_table
from .verb import verb

if TYPE_CHECKING:
    from rich.table import Table

    from ..bench.gate.result import GateResult


@verb(
    GateCommand,
    "qcompile gate old.onnx new.onnx",
    "qcompile gate old/model.int8.onnx out/model.int8.onnx --evaluation data.py:evaluation --max-drop 0.5",
    "qcompile gate main/out out --skip-identical --threads 1 --junit gate.xml --markdown gate.md",
    "qcompile gate old.engine new.engine --python tensorrt=/opt/trt/bin/python --max-slower 3",
)
def gate(session: Session, given: GateCommand) -> int:
    """Print the table of checks, and why one failed."""
    from ..bench.gate.gate import gate as judge
    from ..bench.gate.result import notes_of, save_junit, save_markdown
    from ..files import check_output

    for path in (given.junit, given.markdown):
        if path is not None:
            check_output(path)
    result = judge(given.old, given.new, given, progress=session.progress)
    if given.junit is not None:
        save_junit(result, given.junit)
    if given.markdown is not None:
        save_markdown(result, given.markdown)
    session.json(result.as_json())
    session.table(gate_table(result))
    for note in notes_of(result):
        session.note(note)
    hints = dict.fromkeys(check.hint for _, check in result.checks() if check.hint)
    for hint in hints:
        session.note(f"  hint: {hint}")
    for pair in result.pairs:
        is_open = any(check.state == "undecided" for check in pair.checks)
        told = [*(pair.disturbed if is_open else ()), *(pair.warnings if session.verbose else ())]
        session.warn(f"{pair.name}: {text}" for text in told)
    session.say(f"gate {result.words}")
    return 0 if result else 1


def gate_table(result: GateResult) -> Table:
    """Return the table of a gate, one row for each check."""
    from ..bench.gate.result import cells_of

    table = make_table(
        f"{result.machine} · {result.threads} threads", "artifact", "check", "old", "new", "change", "verdict"
    )
    for pair, check in result.checks():
        add_row(table, *cells_of(result, pair, check))
    return table
