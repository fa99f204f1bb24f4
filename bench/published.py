"""The table that papers print: method, latency, speed-up, size, reduction, accuracy, drop."""

from __future__ import annotations

from typing import Any

from .accuracy import unit_of
from .results import Entry, Results


def published_rows(results: Results) -> list[dict[str, Any]]:
    """Return one row per artifact, the baseline first; None where nothing was measured.

    The keys are `method`, `baseline` (whether it is), `engine`, `precision`, `latency_ms` (median),
    `speedup` with `speedup_low`, `speedup_high` and `verdict`, `size_bytes`, `reduction` (the size ratio),
    `metric`, `accuracy`, `drop` in `drop_unit` with `drop_low` and `drop_high`, `agreement`, `status` and
    `reason`. The baseline's speed-up is 1 and its drop 0 by definition: they have no interval.
    """
    entries = sorted(results.entries, key=lambda entry: entry.name != results.baseline)
    return [_row(entry, is_baseline=entry.name == results.baseline) for entry in entries]


def _row(entry: Entry, *, is_baseline: bool) -> dict[str, Any]:
    ratio, found = entry.speedup or {}, entry.accuracy or {}
    measured = entry.status == "measured"
    return {
        "method": entry.name,
        "baseline": is_baseline,
        "engine": entry.engine,
        "precision": entry.precision,
        "latency_ms": entry.latency_ms["median"] if measured and entry.latency_ms else None,
        "speedup": 1.0 if is_baseline and measured else ratio.get("value"),
        "speedup_low": ratio.get("low"),
        "speedup_high": ratio.get("high"),
        "verdict": ratio.get("verdict"),
        "size_bytes": entry.size_bytes,
        "reduction": entry.size_ratio,
        "metric": found.get("metric"),
        "accuracy": found.get("value"),
        "drop": found.get("drop_points"),
        "drop_unit": unit_of(found["metric"]) if found else None,
        "drop_low": found.get("low"),
        "drop_high": found.get("high"),
        "agreement": found.get("agreement"),
        "status": entry.status,
        "reason": entry.reason,
    }
