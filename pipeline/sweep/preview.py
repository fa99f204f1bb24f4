"""`qcompile sweep --dry-run`: the cells of a matrix, and how many stages are to be done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import QCompileError
from ..plan import stage_states
from ..recipe import Recipe
from ..store import FOLDER
from ..trust import trusted
from .cells import Cell, Member, members
from .measured import sentence
from .sweep import with_scales

_OF_ONE_RECIPE = ("bench", "report")


@dataclass(frozen=True)
class PlannedCell:
    """A cell before a sweep.

    Attributes:
        cell: The cell.
        state: "done" where there is nothing to do, "to do", "failed" where its recipe cannot be run, or
            "impossible".
        why: Why it is one of the latter two.
    """

    cell: Cell
    state: str
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the `--json` form."""
        about = {key: value for key, value in vars(self.cell).items() if key not in ("artifact", "why_not")}
        return {**about, "state": self.state, "why": self.why}


@dataclass
class Preview:
    """What a sweep would do.

    Attributes:
        cells: Every cell.
        stages: Number of stages; those that shapes of a model share count once.
        to_do: Number of those that are not done.
    """

    cells: list[PlannedCell]
    stages: int = 0
    to_do: int = 0


def preview(
    recipe: Recipe,
    *,
    output: Path | None = None,
    only: Sequence[str] = (),
    again: tuple[str, ...] = (),
    trust: bool = False,
    gpus_there: Sequence[str] = (),
) -> Preview:
    """Return what `sweep` would do; nothing is run, and nothing is written.

    Args:
        recipe, output, only, again, trust, gpus_there: As `sweep`.

    Raises:
        RecipeError: As `sweep`.
    """
    trusted(recipe, trust=trust, output=output)
    folder = (output or recipe.folder / recipe.output).absolute()
    made, shared = Preview([]), dict[tuple[str, str], bool]()
    for member in members(recipe, gpus_there=gpus_there, only=only):
        member = with_scales(member)
        states: dict[str, str] = {}
        why = ""
        try:
            if member.recipe is not None:
                states = dict(
                    stage_states(
                        member.recipe, output=folder / member.place, shared=folder / member.shared / FOLDER,
                        again=again, trust=trust,
                    )
                )  # fmt: skip
        except QCompileError as error:
            why = sentence(error)
        made.cells += _cells(member, states, why)
        for stage, state in states.items():
            of = member.name if stage.startswith(_OF_ONE_RECIPE) else member.shared
            shared[of, stage] = shared.get((of, stage), False) or state != "done"
    made.stages, made.to_do = len(shared), sum(shared.values())
    return made


def _cells(member: Member, states: dict[str, str], why: str) -> Iterator[PlannedCell]:
    common = ("export", "simplify", "bench")
    for cell in member.cells:
        own = [states.get(f"{kind}-{cell.artifact}", "done") for kind in ("quantize", "build")]
        own += [states.get(stage, "done") for stage in common]
        if cell.why_not:
            yield PlannedCell(cell, "impossible", cell.why_not)
        elif why:
            yield PlannedCell(cell, "failed", why)
        else:
            yield PlannedCell(cell, "done" if all(state == "done" for state in own) else "to do")
