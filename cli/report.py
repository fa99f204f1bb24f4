"""`qcompile report`."""

from __future__ import annotations

from pathlib import Path

import click

from .session import Session, command_options, examples
from .tables import bytes_text


@click.command(
    short_help="one HTML file of results",
    epilog=examples(
        "qcompile report results.json -o report.html",
        "qcompile report results.json -o report.html --layers layers.json --ranges model.ranges",
    ),
)
@click.argument("results", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("report.html"),
              show_default=True, help="HTML file to write.")  # fmt: skip
@click.option("--layers", multiple=True, type=click.Path(path_type=Path),
              help="Layer differences from `diff --layers`; may be given again.")  # fmt: skip
@click.option("--ranges", type=click.Path(path_type=Path), help="Ranges file: draws its worst histograms.")
@click.option("--recipe", type=click.Path(path_type=Path), help="Recipe to show, where RESULTS holds none.")
@command_options
def report(
    session: Session,
    results: Path,
    output: Path,
    layers: tuple[Path, ...],
    ranges: Path | None,
    recipe: Path | None,
) -> None:
    """Write RESULTS of `bench` or `run` as one HTML file that loads nothing: which artifact to use and why,
    tables, charts, environment, and what repeats it."""
    from ..bench.report import write_report

    session.progress("draw")
    path = write_report(results, output, layers=layers, ranges=ranges, recipe=recipe)
    size = path.stat().st_size
    session.json({"path": str(path), "size_bytes": size})
    session.say(f"{path}  {bytes_text(size)}, loads nothing: open it in a browser, print it, send it")
