"""`qcompile doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..figures import bytes_text
from ..spec.looking import DoctorCommand
from .session import Session
from .tables import add_row, make_table
from .verb import verb

if TYPE_CHECKING:
    from ..engines.doctor import Diagnosis


@verb(
    DoctorCommand,
    "qcompile doctor",
    "qcompile doctor --gpu sm86,sm89",
    "qcompile doctor --python tensorflow=tf/bin/python",
    files=False,
)
def doctor(session: Session, given: DoctorCommand) -> int:
    """Print what the machine can do and the state of every target."""
    from ..engines import doctor as diagnose

    session.progress("look at the installation")
    diagnosis = diagnose(given)
    session.json(asdict(diagnosis))
    machine: dict[str, Any] = diagnosis.machine
    session.say(f"Python {diagnosis.python}, {diagnosis.system}, {machine['processor']}")
    session.say(", ".join(f"{name} {version}" for name, version in diagnosis.packages.items()))
    sets = ", ".join(machine["features"]) or "the system does not tell its instruction sets"
    memory, free = bytes_text(machine["memory_bytes"]), bytes_text(machine["free_bytes"])
    session.say(f"processor: {sets}; {machine['threads']} threads, {memory} memory, {free} free on the disk")
    session.say(f"  {machine['int8']}")
    for index, gpu in enumerate(diagnosis.gpus):
        session.say(f"GPU {index}: {gpu.name}, {bytes_text(gpu.memory_bytes)}, CUDA {gpu.cuda}")
    for types in diagnosis.types:
        note = f" ({types.note})" if types.note else ""
        taken = f"Tensor Cores take {', '.join(types.types)}" if types.types else "no Tensor Cores"
        session.say(f"  {types.capability} {types.architecture}{note}: {taken}")
    if not session.quiet:
        _show_targets(session, diagnosis)
        _show_precisions(session, diagnosis)
        _show_extras(session, diagnosis)
    for problem in diagnosis.problems:
        session.warn([f"{problem.problem}\n  fix: {problem.fix}"])
    return 1 if diagnosis.problems else 0


def _show_targets(session: Session, diagnosis: Diagnosis) -> None:
    table = make_table("", "target", "builds here", "runs here", "on a GPU here", "fix", text=True)
    for state in diagnosis.targets:
        on_gpu = "no" if state.why_not_run else state.why_not_run_on_gpu
        reasons = (reason or "yes" for reason in (state.why_not_build, state.why_not_run, on_gpu))
        add_row(table, state.target, *reasons, state.fix)
    session.table(table)


def _show_precisions(session: Session, diagnosis: Diagnosis) -> None:
    """One row a target and device; below, each reason once with the cells that it stands for."""
    missing = {state.target for state in diagnosis.targets if state.why_not_build}  # told in their table
    rows: dict[tuple[str, str], dict[str, str]] = {}
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for cell in diagnosis.precisions:
        rows.setdefault((cell.target, cell.device), {})[cell.precision] = cell.state
        if cell.reason and cell.target not in missing:
            reasons.setdefault((cell.target, cell.reason, cell.fix), []).append(cell.precision)
    precisions = list(next(iter(rows.values()), {}))
    table = make_table("what an artifact computes in here", "target", "on", *precisions, text=True)
    for (target, device), states in rows.items():
        add_row(table, target, device, *(states[name] for name in precisions))
    session.table(table)
    for (target, reason, fix), names in reasons.items():
        way_out = f"; {session.spelled(fix)}" * bool(fix)
        session.say(f"  {target} {', '.join(dict.fromkeys(names))}: {reason}{way_out}")
    session.say("  concluded from instruction sets and tables, not measured: qcompile bench measures")


def _show_extras(session: Session, diagnosis: Diagnosis) -> None:
    table = make_table("", "extra", "state", "missing or wrong", "fix", text=True)
    for extra in diagnosis.extras:
        add_row(table, extra.extra, extra.state, extra.problem or ", ".join(extra.missing), extra.fix)
    session.table(table)
    state = diagnosis.tensorflow
    versions = ", ".join(f"{name} {version}" for name, version in state.versions.items()) or "nothing known"
    session.say(f"TensorFlow by {state.python}: {state.problem or 'converts its models'} ({versions})")
    if state.fix:
        session.say(f"  fix: {session.spelled(state.fix)}")
