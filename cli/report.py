"""`qcompile report`."""

from __future__ import annotations

from ..spec.measure import ReportCommand
from .session import Session
from .tables import bytes_text
from .verb import verb


@verb(
    ReportCommand,
    "qcompile report results.json -o report.html",
    "qcompile report results.json -o report.html --layers layers.json --ranges model.ranges",
)
def report(session: Session, given: ReportCommand) -> None:
    """Print where the page is."""
    from ..reporting import write_report

    session.progress("draw")
    path = write_report(given.results, given.output, given)
    size = path.stat().st_size
    session.json({"path": str(path), "size_bytes": size})
    session.say(f"{path}  {bytes_text(size)}, loads nothing: open it in a browser, print it, send it")
