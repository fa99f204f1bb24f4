"""`qcompile sweep`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import to_builtins

from ..spec.sweep import THIS_PROCESS, SweepCommand
from ..untrusted.child import is_child
from .scheduler import executor_of
from .session import Session
from .sweep_board import SHOWN, Board, cell_line, cells_table
from .tables import add_row, make_table
from .untrusted import refuse_trust
from .verb import verb

if TYPE_CHECKING:
    from ..bench.results.sweep_results import CellResult
    from ..pipeline.recipe import Recipe
    from ..pipeline.sweep.cells import Member
    from ..pipeline.sweep.sweep import SweepReport


@verb(
    SweepCommand,
    "qcompile sweep recipe.toml",
    "qcompile sweep recipe.toml --dry-run",
    "qcompile sweep recipe.toml --only '*-int8' --again bench",
    "qcompile sweep recipe.toml --scheduler tls://scheduler:8786 -o /data/sweep",
    "qcompile sweep recipe.toml --scheduler none",
)
def sweep(session: Session, given: SweepCommand) -> int:
    """Show the cells while they are made, then the table of all."""
    from ..pipeline.recipe import read_recipe

    recipe = read_recipe(given.recipe, told=lambda text: session.warn([text]))
    if recipe.model.trust and is_child():
        refuse_trust("model.trust of the recipe")
    if given.dry_run:
        return _show_preview(session, given, recipe)
    from ..pipeline.sweep.sweep import sweep as sweep_recipe

    output = (given.output or recipe.folder / recipe.output).absolute()
    scheduler = "" if given.scheduler == THIS_PROCESS else given.scheduler
    with executor_of(session, replace(given, scheduler=scheduler), output) as executor:
        board = Board()
        with session.live(board.render) as is_live:
            listener = _Told(session, board, is_live=is_live)
            report = sweep_recipe(
                recipe,
                output=given.output,
                only=given.only,
                again=given.again,
                trust=given.trust,
                executor=executor,
                progress=session.progress if not is_live else board.progress,
                listener=listener,
            )
    _present(session, report, _page(session, report))
    return 1 if report.failed else 0


def _page(session: Session, report: SweepReport) -> Path | None:
    """Write the report; without its libraries there is none."""
    from ..errors import EngineUnavailable
    from ..reporting.sweep_page import write_sweep_report

    session.progress("draw the report")
    try:
        return write_sweep_report(report.results, report.output / "sweep.html")
    except EngineUnavailable as error:
        session.note(f"no report: {error.message}")
        return None


class _Told:
    """Tells the board of what is done, and prints a line for each cell where there is none."""

    def __init__(self, session: Session, board: Board, *, is_live: bool) -> None:
        self.session, self.board, self.is_live = session, board, is_live

    def planned(self, cells: int) -> None:
        self.board.planned = cells

    def began(self, member: Member) -> None:
        self.board.began(member)

    def stage(self, member: Member, stage: str, state: str, seconds: float) -> None:
        if state != "skipped" and self.session.verbose:
            self.session.note(f"{state:>7}  {member.name}: {stage}  {seconds:.1f} s")

    def finished(self, cell: CellResult, *, changed: bool) -> None:
        self.board.finished(cell, changed=changed)
        if not self.is_live and (changed or cell.state != "done" or self.session.verbose):
            self.session.note(cell_line(cell))

    def left(self, member: Member) -> None:
        self.board.left(member)


def _present(session: Session, report: SweepReport, page: Path | None) -> None:
    from ..bench.results.sweep_results import load_sweep

    results = load_sweep(report.results)
    session.json(
        {
            "output": str(report.output),
            "results": str(report.results),
            "report": str(page) if page else None,
            "planned": report.planned,
            "counts": report.counts,
            "unchanged": report.unchanged,
            "cells": [to_builtins(cell) for cell in results.cells],
        }
    )
    session.table(cells_table(results.cells))
    if session.quiet or len(results.cells) > SHOWN:
        session.warn(f"{cell.name}: {cell.reason}" for cell in results.cells if cell.state == "failed")
    if report.unchanged == report.planned:
        session.note("nothing changed: every cell was done already (--again bench measures again)")
    if page:
        session.say(f"report: {page}")
    session.say(f"results: {report.results}")
    parts = [f"{count} {state}" for state, count in sorted(report.counts.items())]
    session.say(f"{report.planned} cells: {', '.join(parts) or 'none'}")


def _show_preview(session: Session, given: SweepCommand, recipe: Recipe) -> int:
    """Print what a sweep would do."""
    from ..pipeline.sweep.preview import preview

    # The kinds of GPU of a cluster are known to the cluster; a dry run connects to none.
    made = preview(recipe, output=given.output, only=given.only, again=given.again, trust=given.trust)
    session.json({"cells": [one.as_json() for one in made.cells], "stages": made.stages, "to_do": made.to_do})
    if session.quiet or session.as_json:
        return 0
    table = make_table("", "cell", "state", "why", text=True)
    for one in made.cells:
        add_row(table, one.cell.name, one.state, one.why)
    session.table(table)
    session.say(f"{len(made.cells)} cells; to do: {made.to_do} of {made.stages} stages; nothing was run")
    return 0
