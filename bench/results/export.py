"""Results as CSV, one row per artifact with every single figure, and as the Markdown table of a README."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...figures import DASH
from ...files import write_text
from ...plain_text import plain
from ..measuring.environment import machine_text
from ..statistics.bootstrap import CONFIDENCE as DROP_CONFIDENCE
from .render import RowText, csv_columns, csv_row, interval_words, render
from .results import Results

_CHARACTERS = str.maketrans({"|": "\\|", "\n": " "})
_MARKUP = str.maketrans({"\\": "\\\\", "|": "\\|", "<": "&lt;", "[": "\\[", "`": "\\`"})
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
HEADER = (
    "method", "latency ms", "samples/s", "speed-up", "parameters", "size", "size saved", "peak memory",
    "memory saved", "accuracy", "drop", "mean difference", "largest difference",
)  # fmt: skip
MEANING = (
    "Latency is the median of a call, which is one batch. Size is that of the file; of a MODEL, which has "
    "none, that of its weights. Peak memory is the largest of the process, with runtime and loading. Saved "
    "is the share of the baseline's, difference the absolute one from the baseline's outputs."
)


def save_csv(results: Results, path: Path) -> None:
    """Write one row per artifact; columns carry their units, an empty cell was not measured."""
    text = io.StringIO()
    writer = csv.DictWriter(text, csv_columns(), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in csv_row(row).items()} for row in results.rows)
    write_text(path, text.getvalue())


def save_markdown(results: Results, path: Path) -> None:
    """Write the table, and beneath it the machine, the input and whether the run was disturbed."""
    write_text(path, markdown(results))


def markdown(results: Results) -> str:
    """Return the table as GitHub's Markdown, the baseline first."""
    table = markdown_table(results)
    settings = results.settings
    shapes = ", ".join(f"{name}:{shape}" for name, shape in (settings.get("inputs") or {}).items())
    about = (
        f"{_machines(results)}, {settings.get('threads')} threads, input {shapes}; "
        f"speed-up against {results.baseline} with its {interval_words(results.confidence)}"
    )
    if any(row.accuracy for row in results.rows):
        about += f", drop with its {DROP_CONFIDENCE:.0%} interval"
    noise = results.environment.get("noise") or {}
    disturbed = "".join(f"\n- disturbed: {reason}" for reason in noise.get("reasons", ()))
    stopped = "\n- interrupted: not every round was measured" if results.interrupted else ""
    return f"{table}\n\n{about}\n\n{MEANING}\n{disturbed}{stopped}".rstrip() + "\n"


def markdown_table(results: Results) -> str:
    """Return the table alone."""
    rows = sorted(results.rows, key=lambda row: row.name != results.baseline)
    lines: list[Sequence[str]] = [HEADER, ["---"] + ["---:"] * (len(HEADER) - 1)]
    lines += [_cells(render(row, results.baseline_of(row))) for row in rows]
    if results.machines:  # in the second column
        machines = ["machine", "---", *(markdown_cell(row.machine) for row in rows)]
        lines = [[line[0], text, *line[1:]] for line, text in zip(lines, machines, strict=True)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def markdown_cell(text: str) -> str:
    """Return a text of strangers as a cell of a table shows it: no markup of it counts."""
    return plain(text).translate(_MARKUP)


def _machines(results: Results) -> str:
    """The machine, or each by its name."""
    named = [f"{name}: {machine_text(one.environment)}" for name, one in results.machines.items()]
    return "; ".join(named) or machine_text(results.environment)


def _cells(text: RowText) -> list[str]:
    sizes = [text.parameters, text.size, text.size_saved]
    if text.problem:
        cells = [text.name, text.problem, DASH, DASH, *sizes, *[DASH] * 6]
    else:
        cells = [
            text.name, text.latency, text.throughput, text.compared, *sizes, text.memory, text.memory_saved,
            text.accuracy, f"{text.drop} {text.drop_interval}".strip(), text.mean_error, text.max_error,
        ]  # fmt: skip
    name, *others = cells
    return [markdown_cell(name), *(cell.translate(_CHARACTERS) for cell in others)]


def _cell(value: Any) -> Any:
    """A text that a spreadsheet would compute gets the apostrophe that makes it a text there."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
