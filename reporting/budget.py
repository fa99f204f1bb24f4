"""Which measured artifacts keep a budget of size and latency, and what the others exceed.

The figures themselves are compared with the limits, not their intervals: a file has one size, and a latency
limit is for the machine at hand. The limit of the drop in accuracy is `summary.why_not`'s.
"""

from __future__ import annotations

from ..bench.results.row import Row
from ..figures import figure
from ..spec.measure import Budget

_BYTES_PER_MB = 1e6


def excesses(budget: Budget, row: Row) -> tuple[str, ...]:
    """Return what an artifact exceeds, in words; empty where it keeps both limits.

    What was not measured is not known to be kept: it counts as exceeded.
    """
    latency_ms = row.latency.median_ms if row.latency else None
    size_mb = row.size_bytes / _BYTES_PER_MB if row.size_bytes is not None else None
    found = (
        _excess("size", "MB", size_mb, budget.max_size_mb, "it has no file whose size is known"),
        _excess("latency", "ms", latency_ms, budget.max_latency_ms, "its latency was not measured"),
    )
    return tuple(text for text in found if text)


def _excess(name: str, unit: str, value: float | None, limit: float | None, unknown: str) -> str:
    if limit is None:
        return ""
    if value is None:
        return unknown
    return "" if value <= limit else f"{name} {figure(value)} {unit}, at most {figure(limit)}"
