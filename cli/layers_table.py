"""What `qcompile diff --layers` shows: the verdict, the ranked table, the first bad tensor's surroundings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..figures import decibels
from .tables import add_row, bytes_text, make_table

if TYPE_CHECKING:
    from rich.table import Table

    from ..comparison.layers.outcome import LayerDiff, Neighbour

ROWS = 15


def layers_table(diff: LayerDiff, *, rows: int = ROWS) -> Table:
    """Return the table of the layers that lose most, the first bad one on top."""
    table = make_table(
        f"{diff.artifact} against {diff.reference}: {diff.samples} samples, {len(diff.layers)} of "
        f"{diff.paired} pairs of tensors, judged as {diff.precision}",
        "tensor", "operator", "node", "SNR", "lost here", "largest error", "elements",
    )  # fmt: skip
    for column in table.columns[1:3]:
        column.justify = "left"
    for layer in diff.layers[:rows]:
        add_row(
            table,
            layer.tensor,
            layer.operator,
            layer.node,
            decibels(layer.snr_db),
            f"{layer.drop_db:.1f} dB",
            f"{layer.max_abs_error:.3g} of {layer.max_abs:.3g}",
            f"{layer.elements:,}",
        )
    return table


def verdict(diff: LayerDiff) -> str:
    """Return the finding in a sentence."""
    bad = diff.first_bad
    if bad is None:
        seen = "no tensor diverges" if diff.complete else f"none of the {len(diff.layers)} measured diverges"
        lowest = min((layer.snr_db for layer in diff.layers), default=math.inf)
        if lowest == math.inf:
            return f"{seen}: all are equal"
        return f"{seen}: the lowest SNR is {decibels(lowest)}, {diff.threshold_db:g} dB is required"
    where = f"{bad.tensor}, made by {bad.operator} {bad.node}"
    if diff.gradual:
        most = max(layer.drop_db for layer in diff.layers)
        first = "first" if diff.complete else "first measured"
        return (
            f"noise adds up: no tensor loses more than {most:.1f} dB by itself; the {first} below "
            f"{diff.threshold_db:g} dB is {where} ({decibels(bad.snr_db)})"
        )
    return f"first bad tensor: {where} ({decibels(bad.snr_db)}, {bad.drop_db:.1f} dB lost here)"


def neighbourhood(diff: LayerDiff) -> list[str]:
    """Return the first bad tensor, what it is made of and what reads it, two steps each way."""
    if not diff.around:
        return []
    lines = [_line(diff.around[0], "")]
    for way, title in ((-1, "made of"), (1, "read by")):
        branches = _branches(diff.around, 0, way, "  ")
        lines += [f"  {title}", *branches] if branches else []
    return lines


def inside(diff: LayerDiff) -> list[str]:
    """Return what the search inside an engine took, and what it could not tell."""
    search = diff.engine
    if search is None:
        return []
    debug = {"unfused": "unfused tensors, ", "marked": "marked tensors, "}.get(search.survey, "")
    lines = [f"inside the engine: {debug}{search.builds} of at most {search.max_builds} builds"]
    if diff.first_bad is not None and search.after_db is not None:
        before = ", ".join(f"{name} {decibels(snr)}" for name, snr in search.before.items())
        sure = "confirmed in a graph that ends there" if search.confirmed else "not confirmed"
        lines.append(f"  before: {before or 'not measured'}; after: {decibels(search.after_db)}; {sure}")
    return [*lines, *(f"  not known: {text}" for text in search.unknown)]


def footer(diff: LayerDiff) -> str:
    """Return what it took."""
    return (
        f"{diff.runs} runs of the artifact; peak memory {bytes_text(diff.peak_memory_bytes)} with taps, "
        f"{bytes_text(diff.plain_peak_memory_bytes)} without"
    )


def unpaired(diff: LayerDiff) -> str:
    """Return how many tensors have no partner; empty when all have."""
    parts = []
    if diff.reference_only:
        parts.append(f"{len(diff.reference_only)} of the reference ({_some(diff.reference_only)})")
    if diff.artifact_only:
        parts.append(f"{len(diff.artifact_only)} of the artifact ({_some(diff.artifact_only)})")
    return f"without a partner: {'; '.join(parts)}" if parts else ""


def _branches(around: Sequence[Neighbour], root: int, way: int, indent: str) -> list[str]:
    children = [i for i, one in enumerate(around) if one.under == root and one.steps * way > 0]
    lines = []
    for index in children:
        last = index == children[-1]
        lines.append(_line(around[index], f"{indent}{'└─' if last else '├─'} "))
        lines += _branches(around, index, way, indent + ("   " if last else "│  "))
    return lines


def _line(one: Neighbour, lead: str) -> str:
    measured = "not measured" if one.snr_db is None else decibels(one.snr_db)
    return f"{lead}{one.tensor}  {one.operator} {one.node}  {measured}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
