"""`qcompile doctor`."""

from __future__ import annotations

from ..spec.looking import DoctorCommand
from .session import Session
from .tables import add_row, make_table
from .verb import verb


@verb(DoctorCommand, "qcompile doctor", "qcompile doctor --json")
def doctor(session: Session, _: DoctorCommand) -> int:
    """Print the state of every target."""
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
