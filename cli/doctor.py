"""`qcompile doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    "qcompile doctor --json",
    files=False,
)
def doctor(session: Session, given: DoctorCommand) -> int:
    """Print what the machine can do and the state of every target."""
    from ..engines import doctor as diagnose

    session.progress("look at the installation")
    diagnosis = diagnose(gpus=given.gpus, python=given.python)
    announced = _announced(diagnosis)
    session.json(diagnosis.as_json() | {"announced": announced})
    session.say(f"Python {diagnosis.python}, {diagnosis.system}, {diagnosis.processor}")
    session.say(", ".join(f"{name} {version}" for name, version in diagnosis.packages.items()))
    _show_machine(session, diagnosis)
    if not session.quiet:
        _show_targets(session, diagnosis)
        _show_precisions(session, diagnosis)
        _show_extras(session, diagnosis)
        names = [name if name[:4] != "gpu-" else f"{name} ({n:.0f})" for name, n in sorted(announced.items())]
        session.say(f"qcompile worker announces here: {', '.join(names)}")
    for problem in diagnosis.problems:
        session.warn([f"{problem.problem}\n  fix: {problem.fix}"])
    return 1 if diagnosis.problems else 0


def _announced(diagnosis: Diagnosis) -> dict[str, float]:
    """What a worker of a cluster would announce here, besides slots and memory."""
    from ..cluster.facts import capabilities, versions_here

    why_not = {
        one.target: one.why_not_run if one.target == "pytorch" else one.why_not_build
        for one in diagnosis.targets
    }
    return capabilities(why_not, [gpu.types.capability for gpu in diagnosis.gpus], versions_here())


def _show_machine(session: Session, diagnosis: Diagnosis) -> None:
    machine = diagnosis.machine
    sets = ", ".join(machine.instruction_sets) or "the system does not tell its instruction sets"
    session.say(f"processor: {sets}")
    caches = ", ".join(f"{level} {bytes_text(size)}" for level, size in machine.caches.items())
    memory = f"{bytes_text(machine.memory_bytes)} memory, {bytes_text(machine.memory_free_bytes)} free"
    parts = [f"{machine.cores} cores, {machine.usable} threads here", caches, memory]
    session.say("  " + "; ".join(part for part in parts if part))
    session.say(f"  {diagnosis.int8.sentence}")
    for place in machine.places:
        used = f"{bytes_text(place.used_bytes)} used, " if place.used_bytes else ""
        session.say(f"  {place.what}: {place.path}, {used}{bytes_text(place.free_bytes)} free")
    for gpu in diagnosis.gpus:
        driver = f", driver {gpu.driver}" if gpu.driver else ""
        session.say(f"GPU {gpu.index}: {gpu.name}, {bytes_text(gpu.memory_bytes)}, CUDA {gpu.cuda}{driver}")
    shown = diagnosis.asked or list(dict.fromkeys(gpu.types for gpu in diagnosis.gpus))
    for types in shown:
        taken = f"{types.tensor_cores} generation Tensor Cores: {', '.join(types.types)}"
        note = f" ({types.note})" if types.note else ""
        said = taken if types.types else "no Tensor Cores"
        session.say(f"  {types.capability} {types.architecture}{note}: {said}")
    if shown:
        from ..engines.doctor.gpu_types import SOURCE

        session.say(f"  source: {SOURCE}")


def _show_targets(session: Session, diagnosis: Diagnosis) -> None:
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
    session.table(table)


def _show_precisions(session: Session, diagnosis: Diagnosis) -> None:
    """One row a target and device; below, each reason once with the cells that it stands for."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for one in diagnosis.precisions:
        rows.setdefault((one.target, one.device), {})[one.precision] = one.state
        if one.reason and one.target not in _missing(diagnosis):
            reasons.setdefault((one.target, one.reason, one.fix), []).append(one.precision)
    precisions = list(next(iter(rows.values()), {}))
    table = make_table("what an artifact computes in here", "target", "on", *precisions, text=True)
    for (target, device), states in rows.items():
        add_row(table, target, device, *(states[name] for name in precisions))
    session.table(table)
    for (target, reason, fix), names in reasons.items():
        way_out = f"; {session.spelled(fix)}" if fix else ""
        session.say(f"  {target} {', '.join(dict.fromkeys(names))}: {reason}{way_out}")
    session.say("  concluded from instruction sets and tables, not measured: qcompile bench measures")


def _missing(diagnosis: Diagnosis) -> set[str]:
    """Targets whose one reason is in the table of targets already."""
    return {one.target for one in diagnosis.targets if one.why_not_build}


def _show_extras(session: Session, diagnosis: Diagnosis) -> None:
    table = make_table("", "extra", "state", "missing or wrong", "fix", text=True)
    for one in diagnosis.extras:
        add_row(table, one.extra, one.state, one.problem or ", ".join(one.missing), one.fix)
    session.table(table)
    found = diagnosis.tensorflow
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    state = found.problem or "converts TensorFlow models"
    session.say(f"TensorFlow by {found.python}: {state} ({versions or 'nothing is known of it'})")
    if found.problem and found.fix:
        session.say(f"  fix: {session.spelled(found.fix)}")
