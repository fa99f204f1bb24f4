"""The section of what was measured under load."""

from __future__ import annotations

from ..bench.results.under_load_text import COLUMNS, LARGEST_COLUMNS, arrival_cells, bound_of, largest_cells
from .charts_load import load_chart
from .parts import Cell, Drawn, Section, Table
from .source import Source

_TITLE = "Under load"


def load_section(source: Source) -> Section:
    """Latency over the rate of arriving requests, and the largest rate whose p99 stays below a bound."""
    shown = [s for s in source.measured if s.row.arrivals]
    if not shown:
        return Section(
            "arrivals", _TITLE, missing="no requests arrived by themselves (`rates` 20,50, `p99_below_ms` 50)"
        )
    tables, charts = [], []
    largest = [(s, s.row.largest_rate) for s in shown if s.row.largest_rate]
    bound_ms = bound_of([s.row for s in shown])
    if bound_ms is not None:
        rows = [[Cell(s.label, subject=s), *map(Cell, largest_cells(found))] for s, found in largest]
        caption = f"Largest rate whose 99th percentile of latency stays below {bound_ms:g} ms."
        tables.append(Table(caption, ("artifact", *LARGEST_COLUMNS), rows))
    points = [
        [Cell(s.label, subject=s), *map(Cell, arrival_cells(point))]
        for s in shown
        for point in s.row.arrivals
    ]
    caption = "Latency of requests that arrive at a rate, from the arrival on."
    tables.append(Table(caption, ("artifact", *COLUMNS), points, folded=True))
    chart = load_chart(shown)
    if chart is not None:
        note = (
            "The bar is the 99% interval of p99. A line ends where the artifact no longer keeps up. "
            "The dashed line is the bound that was asked for, if any."
        )
        charts.append(Drawn(chart, "99th percentile over arriving requests", note))
    return Section("arrivals", _TITLE, charts=charts, tables=tables, signs=shown)
