"""`qcompile doctor`."""

from __future__ import annotations

import click

from .session import Session, command_options, examples
from .tables import add_row, make_table


@click.command(
    short_help="what works here, why not, the fix",
    epilog=examples("qcompile doctor", "qcompile doctor --json"),
)
@command_options
def doctor(session: Session) -> int:
    """Say what is installed, which targets work here, why the others do not, and the fix for each.

    Exit code 1 when the installation is in a known broken state.
    """
    from ..engines import doctor as diagnose

    session.progress("look at the installation")
    diagnosis = diagnose()
    session.json(diagnosis.as_json())
    session.say(f"Python {diagnosis.python}, {diagnosis.system}, {diagnosis.processor}")
    session.say(", ".join(f"{name} {version}" for name, version in diagnosis.packages.items()))
    table = make_table("", "target", "builds here", "runs here", "on a GPU here", "fix", text=True)
    for state in diagnosis.targets:
        add_row(
            table,
            state.target,
            state.why_not_build or "yes",
            state.why_not_run or "yes",
            "no" if state.why_not_run else state.why_not_run_on_gpu or "yes",
            state.fix,
        )
    if not session.quiet:
        session.table(table)
    for problem in diagnosis.problems:
        session.warn([f"{problem.problem}\n  fix: {problem.fix}"])
    return 1 if diagnosis.problems else 0
