"""Results of several machines, or of several GPUs of one, as one: each row is compared where it was measured.

results.cpu.json   pytorch, int8                      results.json   pytorch, int8
results.sm90.json  pytorch, engine             ─▶                    pytorch (sm90), engine
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .results import Measured, Results
from .row import Row


def join_results(parts: Mapping[str, Results], *, history: Sequence[Mapping[str, Any]] = ()) -> Results:
    """Return one results of several measurements.

    The first part keeps the names of its rows, and its settings and environment are those of the whole. A row
    of another part whose name is taken gets that of its machine: the baseline is measured on each.

    Args:
        parts: Machine, such as "sm90" or "cuda:1", to what was measured there; at least one.
        history: Of the file that they become.
    """
    (first_name, first), *_ = parts.items()
    if len(parts) == 1:
        return replace(first, history=history)
    rows, machines = list[Row](), dict[str, Measured]()
    for part_name, results in parts.items():
        names = {row.name: _free(row.name, part_name, {one.name for one in rows}) for row in results.rows}
        for inner, measured in (results.machines or {"": _alone(results)}).items():
            machine = " ".join(filter(None, (part_name, inner)))
            machines[machine] = replace(measured, baseline=names[measured.baseline])
        rows += [
            replace(row, name=names[row.name], machine=" ".join(filter(None, (part_name, row.machine))))
            for row in results.rows
        ]
    return replace(
        first,
        baseline=machines[_first_machine(first_name, first)].baseline,
        rows=rows,
        machines=machines,
        history=history,
        created=max(one.created for one in parts.values()),
        interrupted=any(one.interrupted for one in parts.values()),
        environment={**first.environment, "noise": _noise(parts)},
    )


def _alone(results: Results) -> Measured:
    return Measured(results.baseline, results.environment)


def _first_machine(name: str, results: Results) -> str:
    return " ".join(filter(None, (name, next(iter(results.machines), ""))))


def _free(name: str, machine: str, taken: set[str]) -> str:
    while name in taken:
        name = f"{name} ({machine})"
    return name


def _noise(parts: Mapping[str, Results]) -> dict[str, Any]:
    """What disturbed any of them, with its machine."""
    found = {name: results.environment.get("noise") or {} for name, results in parts.items()}
    reasons = [f"{name}: {reason}" for name, noise in found.items() for reason in noise.get("reasons", ())]
    return {"noisy": any(noise.get("noisy") for noise in found.values()), "reasons": reasons}
