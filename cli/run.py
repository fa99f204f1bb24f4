"""`qcompile run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .present import present_results
from .session import Session, command_options, examples, split
from .tables import DASH, add_row, bytes_text, make_table


@click.command(
    short_help="all of it, from one recipe",
    epilog=examples(
        "qcompile run examples/digits/recipe.toml",
        "qcompile run recipe.toml -o /tmp/out --again bench",
    ),
)
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="In place of the recipe's.")
@click.option("--again", multiple=True, help="Stage to carry out although nothing changed: bench, ...")
@command_options
def run(session: Session, recipe: Path, output: Path | None, again: tuple[str, ...]) -> int:
    """Carry out a RECIPE; what is done already is skipped, also after a kill."""
    from ..pipeline import run as run_recipe

    def listener(stage: str, state: str, seconds: float, /) -> None:
        if state != "skipped" or session.verbose:
            session.note(f"{state:>7}  {stage}  {seconds:.1f} s")

    report = run_recipe(
        recipe,
        output=output,
        again=tuple(split(again)),
        progress=session.progress,
        listener=listener,
    )
    results = report.results
    session.json(
        {
            "output": str(report.output),
            "stages": report.stages,
            "artifacts": {name: str(path) for name, path in report.artifacts.items()},
            "failures": {name: error.as_json() for name, error in report.failures.items()},
            "results": results.as_json() if results else None,
            "report": str(report.page) if report.page else None,
        }
    )
    if results:
        present_results(session, results)
    elif not session.quiet:
        session.table(_artifacts_table(report))
    if session.quiet or not results:  # else the table's rows have said it
        session.warn(f"{name}: not built: {error}" for name, error in report.failures.items())
    if all(state == "skipped" for state in report.stages.values()):
        session.note("nothing changed: every stage was done already (--again bench measures again)")
    if report.page:
        session.say(f"report: {report.page}")
    elif report.why_no_page:
        session.note(f"no report: {report.why_no_page}")
    session.say(f"artifacts and results.json: {report.output}")
    failed = results and any(entry.status == "failed" for entry in results.entries)
    return 1 if failed or report.failures else 0


def _artifacts_table(report: Any) -> Any:
    table = make_table("", "artifact", "file", "size")
    for name, path in report.artifacts.items():
        add_row(table, name, path.name, bytes_text(path.stat().st_size))
    for name in report.failures:
        add_row(table, name, "failed", DASH)
    return table
