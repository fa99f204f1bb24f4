"""What was measured under load as text: the same cells for terminal, Markdown and report."""

from __future__ import annotations

from collections.abc import Sequence

from ...figures import DASH, figure
from .row import Row
from .under_load import ArrivalPoint, LargestRate

COLUMNS = (
    "requests/s", "answered/s", "median, ms", "p90, ms", "p99, ms", "99% interval", "most waiting", "busy",
)  # fmt: skip
LARGEST_COLUMNS = ("largest rate, requests/s", "certainly below", "certainly above")
NO_STEADY_STATE = "does not keep up"


def arrival_cells(point: ArrivalPoint) -> list[str]:
    """Return the cells of `COLUMNS`."""
    ends = [end for end in (point.p99_low_ms, point.p99_high_ms) if end is not None]
    between = f"[{figure(point.p99_low_ms)}, {figure(point.p99_high_ms)}]" if ends else DASH
    return [
        figure(point.rate_per_s),
        figure(point.achieved_per_s),
        figure(point.median_ms) if point.keeps_up else NO_STEADY_STATE,
        figure(point.p90_ms),
        figure(point.p99_ms),
        between,
        str(point.backlog),
        DASH if point.busy is None else f"{point.busy:.0%}",
    ]


def largest_cells(found: LargestRate) -> list[str]:
    """Return the cells of `LARGEST_COLUMNS`."""
    rate = figure(found.per_s) if found.per_s is not None else f"none: {found.reason}"
    return [rate, figure(found.low_per_s), figure(found.high_per_s)]


def bound_of(rows: Sequence[Row]) -> float | None:
    """Return what p99 was to stay below; None where nobody asked."""
    return next((row.largest_rate.p99_below_ms for row in rows if row.largest_rate), None)
