"""Where plain INT8 exceeds the budget or is no faster: search a mix of INT8 and float for the recipe."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bench.results.row import Row
from ..data.batches import Data
from ..errors import QCompileError
from ..files import digest_files
from ..processor import isa_here
from ..progress import Progress
from ..spec.words import CPU_TARGETS, CpuTarget, Isa
from .executor import Executor
from .published import SIMPLIFIED
from .recipe import ArtifactSection, Recipe
from .run import RunReport
from .stages import located
from .trial_steps import on_executor

TUNED = "tuned-int8"
"""Name of the artifact that `tune` finds."""
_LONGEST_S = 20.0  # of each measurement of the search; the recipe then measures what was found


@dataclass(frozen=True)
class Found:
    """What the search found.

    Attributes:
        key: Digest of all it depends on.
        lines: The `[[artifact]]` of the mix; empty where none is faster within the budget.
        notes: What the user should know.
        was_known: Whether an earlier search is the same.
    """

    key: str
    lines: tuple[str, ...]
    notes: tuple[str, ...]
    was_known: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the form that is kept."""
        return {"key": self.key, "lines": list(self.lines), "notes": list(self.notes)}


def worth_tuning(recipe: Recipe, report: RunReport, max_drop: float) -> list[CpuTarget]:
    """Return the processor's targets whose plain INT8 does not serve; none where that of one target does.

    It serves where it drops by no more than the budget and is faster than the baseline and than every float
    artifact on the processor. Whether more samples would confirm the drop is no matter of tuning.
    """
    sections = [one for one in recipe.artifact if one.target in CPU_TARGETS]
    plain = [one for one in sections if one.precision == "int8" and one.mode == "static"]
    if report.results is None or not recipe.data.calibration or not plain:
        return []
    rows = {row.name: row for row in report.results.rows}
    floats = [rows[one.name].latency for one in sections if one.precision != "int8" and one.name in rows]
    fastest = min((latency.median_ms for latency in floats if latency), default=float("inf"))
    if any(_serves(rows.get(one.name), max_drop, fastest) for one in plain):
        return []
    return [target for target in CPU_TARGETS if any(one.target == target for one in plain)]


def tune_recipe(
    recipe: Recipe,
    report: RunReport,
    folder: Path,
    targets: Sequence[CpuTarget],
    *,
    max_drop: float,
    known: Mapping[str, Any] | None,
    executor: Executor | None = None,
    progress: Progress,
) -> Found:
    """Search a mix for the graph that the recipe's artifacts are built from.

    Args:
        recipe: The recipe.
        report: What its run did.
        folder: Where the search writes.
        targets: To search for.
        max_drop: The budget.
        known: What an earlier search found, as `Found.as_json`.
        executor: Makes the trials; this process by default.
        progress: Told of every step.

    Returns:
        What was found; a search that fails is a note.
    """
    assert recipe.bench is not None, "it was measured"
    suffix = SIMPLIFIED * recipe.model.simplify
    model = report.output / f"{recipe.name}{suffix or '.onnx'}"
    calibration, evaluation = (
        located(recipe, text) for text in (recipe.data.calibration, recipe.data.evaluation)
    )
    isa = _isa(recipe.artifact)
    settings = {
        "model": digest_files([model]),
        "data": [
            Data(text, (), base=recipe.folder, depends=recipe.data_depends).digest()
            for text in (recipe.data.calibration, recipe.data.evaluation)
        ],
        "targets": list(targets),
        "max_drop": max_drop,
        "metric": recipe.bench.metric,
        "method": recipe.calibrate.method,
        "isa": isa_here() if isa == "auto" else isa,
    }
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    if isinstance(known, Mapping) and known.get("key") == key:
        lines, notes = known.get("lines"), known.get("notes")
        if isinstance(lines, list) and isinstance(notes, list):
            return Found(key, tuple(map(str, lines)), tuple(map(str, notes)), was_known=True)
    from ..tuning import tune
    from ..tuning.recipe_file import artifact_lines

    try:
        tuned = tune(
            str(model),
            str(evaluation),
            folder,
            max_drop=max_drop,
            metric=recipe.bench.metric,
            calibration=calibration,
            targets=targets,
            method=recipe.calibrate.method,
            batch_size=recipe.bench.batch_size,
            threads=recipe.bench.threads,
            max_time_s=min(recipe.bench.max_time_s, _LONGEST_S),
            isa=isa,
            elsewhere=on_executor(executor, folder, progress=progress) if executor else None,
            progress=progress,
        )
    except QCompileError as error:
        return Found(key, (), (f"tune: {error.message}",))
    notes = tuple(f"tune: {note}" for note in tuned.notes)
    if tuned.best.precision != "int8" or _is_there(recipe.artifact, tuned.best.in_float):
        return Found(key, (), notes)
    return Found(key, tuple(artifact_lines(tuned.best, TUNED, isa=isa)), notes)


def _isa(artifacts: Sequence[ArtifactSection]) -> Isa:
    """What the INT8 of a recipe is for: the first instruction set that it names."""
    named = (one.isa for one in artifacts if one.precision == "int8" and one.target in CPU_TARGETS)
    return next((isa for isa in named if isa != "auto"), "auto")


def _serves(row: Row | None, max_drop: float, fastest_float_ms: float) -> bool:
    if row is None or row.latency is None or row.speedup is None:
        return False
    drop = row.accuracy.drop if row.accuracy else None
    keeps = drop is None or drop.value <= max_drop
    return keeps and row.speedup.verdict == "faster" and row.latency.median_ms < fastest_float_ms


def _is_there(artifacts: Sequence[ArtifactSection], in_float: frozenset[str]) -> bool:
    """Whether the mix is plain INT8, which the recipe has already."""
    return not in_float and any(one.precision == "int8" for one in artifacts)
