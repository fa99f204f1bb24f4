"""History in a results file: the runs that were written to it before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ArtifactError
from ..measuring.environment import machine_text
from .results import Results, load_results

LIMIT = 100


def earlier_runs(path: str | Path | None) -> list[Mapping[str, Any]]:
    """Return the history of a file with its own run behind it; empty for what is no results file."""
    if path is None or not Path(path).is_file():
        return []
    try:
        before = load_results(Path(path))
    except ArtifactError:
        return []  # it is about to be replaced, whatever it is
    return [*before.history, summary(before)][-LIMIT:]


def summary(results: Results) -> dict[str, Any]:
    """Return what is kept of a run: when, where, and the figures of each artifact that was measured."""
    return {
        "created": results.created,
        "machine": machine_text(results.environment),
        "artifacts": {
            row.name: {
                "median_ms": row.latency.median_ms if row.latency else None,
                "speedup": row.speedup.value if row.speedup else None,
                "low": row.speedup.low if row.speedup else None,
                "high": row.speedup.high if row.speedup else None,
                "accuracy": row.accuracy.value if row.accuracy else None,
            }
            for row in results.rows
            if row.status == "measured"
        },
    }
