"""`qcompile run`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidOption
from ..processes.untrusted import is_child
from ..spec.recipes import RunCommand, RunOptions, recipe_schema
from .scheduler import executor_of, listener_of
from .session import Session, refuse_trust
from .tables import DASH, add_row, bytes_text, make_table, present_results
from .verb import verb

if TYPE_CHECKING:
    from ..pipeline.plan import Plan
    from ..pipeline.run import RunReport


@verb(
    RunCommand,
    "qcompile run examples/digits/recipe.toml",
    "qcompile run recipe.toml -o /tmp/out --again bench",
    "qcompile run recipe.toml --dry-run",
    "qcompile run recipe.toml --scheduler tcp://127.0.0.1:8786",
    "qcompile run --schema > recipe.schema.json",
)
def run(session: Session, given: RunCommand) -> int:
    """Print what was done, and the table of what was measured."""
    if given.schema:
        click.echo(json.dumps(recipe_schema(), indent=2))
        return 0
    if given.recipe is None:
        raise click.UsageError("Missing argument 'RECIPE'.")
    from ..pipeline.plan import plan
    from ..pipeline.run import run as run_recipe

    return carry_out(session, given, given.recipe, run_recipe, plan)


def carry_out(
    session: Session,
    given: RunOptions,
    path: Path,
    run_recipe: Callable[..., RunReport],
    plan: Callable[..., Plan],
) -> int:
    """Run a recipe, or print what a run would do; return the exit code."""
    from ..pipeline.recipe import read_recipe

    recipe = read_recipe(path, told=lambda text: session.warn([text]))
    if recipe.model.trust and is_child():
        refuse_trust("model.trust of the recipe")
    options: dict[str, Any] = {
        "output": given.output, "again": given.again, "trust": given.trust, "progress": session.progress,
    }  # fmt: skip
    if given.dry_run and given.scheduler:
        raise InvalidOption(
            "`dry_run` tells what this machine would do; it is required without `scheduler`",
            hint="leave one of them out",
            option="dry_run",
        )
    if given.dry_run:
        return _show_plan(session, plan(recipe, **options))
    with executor_of(session, given, given.output or recipe.folder / recipe.output) as executor:
        report = run_recipe(recipe, executor=executor, listener=listener_of(session, executor), **options)
    return _present(session, report)


def _present(session: Session, report: RunReport) -> int:
    """Print what a run did, and the table of what was measured; return the exit code."""
    results = report.results
    session.json(
        {
            "output": str(report.output),
            "stages": report.stages,
            "artifacts": {name: str(path) for name, path in report.artifacts.items()},
            "failures": {name: error.as_json() for name, error in report.failures.items()},
            "results": results.as_json() if results else None,
            "report": str(report.page) if report.page else None,
            "budget": report.budget,
            "where": report.where,
            **({"impossible": report.impossible} if report.impossible else {}),
        }
    )
    if results:
        present_results(session, results)
    elif not session.quiet:
        session.table(_artifacts_table(report))
    if session.quiet or not results:  # else the table's rows have said it
        session.warn(f"{name}: not built: {error}" for name, error in report.failures.items())
    if not report.failures and all(state == "skipped" for state in report.stages.values()):
        session.note("nothing changed: every stage was done already (--again bench measures again)")
    if report.page:
        session.say(f"report: {report.page}")
    elif report.why_no_page:
        session.note(f"no report: {report.why_no_page}")
    session.say(f"artifacts{' and results.json' if results else ''}: {report.output}")
    failed = results and any(row.status == "failed" for row in results.rows)
    return 1 if failed or report.failures or not _present_budget(session, report.budget) else 0


def _present_budget(session: Session, budget: dict[str, str] | None) -> bool:
    """Print what keeps the budget and what speaks against the others; return whether anything keeps it."""
    if budget is None:
        return True
    kept = [name for name, reason in budget.items() if not reason]
    session.say(f"within the budget: {', '.join(kept) or 'no artifact'}")
    for name, reason in budget.items():
        if reason:
            session.say(f"  not {name}: {reason}")
    return bool(kept)


def _show_plan(session: Session, planned: Plan) -> int:
    """Print what a run would do."""
    session.json(planned.as_json())
    if session.quiet or session.as_json:
        return 0
    table = make_table("", "stage", "state", "seconds", "memory", "disk", "from", "why")
    for one in planned.stages:
        took = one.estimate
        seconds = DASH if took.seconds is None else f"{took.seconds:.1f}"
        sizes = [bytes_text(took.peak_bytes), bytes_text(took.disk_bytes)]
        add_row(table, one.name, one.state, seconds, *sizes, took.source, one.why)
    session.table(table)
    if not planned.pending:
        session.say("nothing to do: every stage is done")
        return 0
    total_s = planned.total("seconds")
    session.say(
        f"to do: {len(planned.pending)} of {len(planned.stages)} stages, "
        f"{'some of unknown time' if total_s is None else f'about {total_s:.0f} s'}, "
        f"{bytes_text(planned.peak_bytes)} of memory, {bytes_text(planned.total('disk_bytes'))} of disk; "
        "nothing was run"
    )
    return 0


def _artifacts_table(report: Any) -> Any:
    table = make_table("", "artifact", "file", "size")
    for name, path in report.artifacts.items():
        add_row(table, name, path.name, bytes_text(path.stat().st_size))
    for name in report.failures:
        add_row(table, name, "failed", DASH)
    for name in report.impossible:
        add_row(table, name, "impossible", DASH)
    return table
