"""Results as CSV, one row per artifact with every single figure, and as the Markdown table of a README."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..artifact import write_text
from .environment import machine_text
from .published import published_rows
from .results import Entry, Results

_SINGLE = (
    "name", "artifact", "engine", "mode", "precision", "runs_on", "device", "status", "reason", "size_bytes",
    "size_ratio", "throughput_per_s", "load_ms", "peak_memory_bytes", "gpu_memory_bytes", "contains",
)  # fmt: skip
_GROUPS = {
    "latency_ms": ("min", "median", "p90", "p99", "max", "calls"),
    "speedup": ("value", "low", "high", "rounds", "launches", "verdict"),
    "accuracy": ("metric", "value", "drop_points", "low", "high", "samples", "agreement"),
    "difference": ("snr_db", "max_abs_error", "passed"),
    "cold_start_ms": ("process", "load", "first_result", "total"),
    "energy": ("mj_per_sample", "source", "unavailable"),
}
_CHARACTERS = str.maketrans({"|": "\\|", "\n": " "})


def save_csv(results: Results, path: Path) -> None:
    """Write one row per artifact; columns carry their units, an empty cell was not measured."""
    text = io.StringIO()
    rows = [_flat(entry) for entry in results.entries]
    writer = csv.DictWriter(text, [*_SINGLE, *_group_columns()], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def save_markdown(results: Results, path: Path) -> None:
    """Write the table, and beneath it the machine, the input and whether the run was disturbed."""
    write_text(path, markdown(results))


def markdown(results: Results) -> str:
    """Return the table as GitHub's Markdown."""
    header = ["method", "latency ms", "speed-up", "size MB", "reduction", "accuracy", "drop"]
    lines = [header, ["---"] + ["---:"] * (len(header) - 1)]
    lines += [_published(row) for row in published_rows(results)]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    settings = results.settings
    shapes = ", ".join(f"{name}:{shape}" for name, shape in settings.get("inputs", {}).items())
    about = (
        f"{machine_text(results.environment)}, {settings.get('threads')} threads, input {shapes}; "
        f"speed-up against {results.baseline} with its {settings.get('confidence', 0.95):.0%} interval"
    )
    noise = results.environment.get("noise") or {}
    doubt = "".join(f"\n- disturbed: {reason}" for reason in noise.get("reasons", ()))
    stopped = "\n- interrupted: not every round was measured" if results.interrupted else ""
    return f"{table}\n\n{about}\n{doubt}{stopped}".rstrip() + "\n"


def _published(row: Mapping[str, Any]) -> list[str]:
    method = row["method"] + (" (baseline)" if row["baseline"] else "")
    if row["latency_ms"] is None:
        return [_cell(method), _cell(f"{row['status']}: {row['reason']}"), *["–"] * 5]
    ratio = "–" if row["speedup"] is None else f"{row['speedup']:.2f}x"
    if row["speedup_low"] is not None:
        ratio += f" [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"
        ratio += "" if row["verdict"] == "faster" else f" {row['verdict']}"
    size, reduction = row["size_bytes"], row["reduction"]
    accuracy, drop = row["accuracy"], row["drop"]
    lost = "–" if drop is None else f"{drop:.2f}"
    if row["drop_low"] is not None:
        lost += f" [{row['drop_low']:.2f}, {row['drop_high']:.2f}]"
    return [
        _cell(method),
        f"{row['latency_ms']:.3g}",
        ratio,
        "–" if size is None else f"{size / 1e6:.3g}",
        "–" if reduction is None else f"{reduction:.2f}x",
        "–" if accuracy is None else f"{accuracy:.4g}",
        lost,
    ]


def _cell(text: str) -> str:
    return text.translate(_CHARACTERS)


def _group_columns() -> list[str]:
    return [_column(group, part) for group, parts in _GROUPS.items() for part in parts]


def _column(group: str, part: str) -> str:
    """`latency_median_ms`, `speedup_low`: the unit stays at the end."""
    stem = group.removesuffix("_ms")
    return f"{stem}_{part}_ms" if stem != group and part != "calls" else f"{stem}_{part}"


def _flat(entry: Entry) -> dict[str, Any]:
    row = {name: getattr(entry, name) for name in _SINGLE}
    for group, parts in _GROUPS.items():
        found = getattr(entry, group) or {}
        row |= {_column(group, part): found.get(part) for part in parts}
    return row
