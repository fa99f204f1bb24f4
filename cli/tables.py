"""Tables and figures as people read them: units everywhere, a dash where nothing was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.table import Table

    from ..bench import Results
    from ..bench.diff import Difference
    from ..bench.regress import Change, Regression
    from ..bench.results import Entry

DASH = "–"

_WIDE = 150
_RUNTIMES = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "pytorch": "PyTorch",
    "torchscript": "PyTorch",
}


def bytes_text(size: float | None) -> str:
    """Return "1.10 MB"; decimal units, as file managers and disk makers count."""
    if size is None:
        return DASH
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def make_table(title: str, *columns: str, text: bool = False) -> Table:
    """Return an empty table.

    Args:
        title: Line above it; empty for none.
        columns: Headers.
        text: Whether columns after the first hold words, not figures to be aligned on the right.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title) if title else None, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        left = text or index == 0
        table.add_column(Text(column), justify="left" if left else "right", no_wrap=index == 0)
    return table


def add_row(table: Table, *cells: str) -> None:
    """Add a row of plain text: brackets in `qcompile[torch]` or `[2.1, 2.3]` are no markup."""
    from rich.text import Text

    table.add_row(*(Text(cell) for cell in cells))


def results_table(results: Results, *, width: int) -> Table:
    """Return the table of a benchmark, one row per artifact; narrow terminals get two lines a row."""
    settings, machine = results.settings, results.environment
    shapes = ", ".join(f"{name}:{shape}" for name, shape in settings["inputs"].items())
    wide = width >= _WIDE
    gap = ", " if wide else "\n"
    table = make_table(
        f"{shapes} · {settings['threads']} threads · {machine['processor']} · speed-up against "
        f"{results.baseline} with its 95% interval",
        "artifact",
        "runs on",
        "latency ms: median, p90, p99" if wide else "latency ms\np90  p99",
        "samples/s",
        "speed-up" if wide else "speed-up\ninterval",
        f"size{gap}memory",
        f"accuracy{gap}drop",
        "output SNR" if wide else "output\nSNR",
    )
    if not wide:
        from rich import box

        table.box, table.show_lines = box.SIMPLE_HEAD, False
    for entry in results.entries:
        add_row(table, *_row(entry, results.baseline, wide=wide))
    return table


def _row(entry: Entry, baseline: str, *, wide: bool) -> list[str]:
    gap = " " if wide else "\n"
    name = f"{entry.name}{gap}(baseline)" if entry.name == baseline else entry.name
    if entry.status != "measured":
        where = "failed" if entry.status == "failed" else f"not run here:{gap}{entry.runs_on}"
        return [name, where, DASH, DASH, DASH, bytes_text(entry.size_bytes), DASH, DASH]
    latency = entry.latency_ms or {}
    size, memory = bytes_text(entry.size_bytes), bytes_text(entry.peak_memory_bytes)
    return [
        name,
        f"{_RUNTIMES.get(entry.engine, entry.engine)}{',' if wide else ''}{gap}{entry.runs_on}",
        f"{latency['median']:.3g}{gap}{latency['p90']:.3g} {latency['p99']:.3g}",
        f"{entry.throughput_per_s:,.0f}" if entry.throughput_per_s else DASH,
        _speedup(entry, gap),
        f"{size},{gap}{memory}" if wide else f"{size}\n{memory}",
        _accuracy(entry, "," + gap if wide else "\n"),
        _difference(entry.difference),
    ]


def _speedup(entry: Entry, gap: str) -> str:
    ratio = entry.speedup
    if not ratio:
        return DASH
    text = f"{ratio['value']:.2f}x{gap}[{ratio['low']:.2f}, {ratio['high']:.2f}]"
    return text if ratio["verdict"] == "faster" else f"{text} {ratio['verdict']}"


def _accuracy(entry: Entry, gap: str) -> str:
    if not entry.accuracy:
        return DASH
    drop = entry.accuracy["drop_points"]
    return f"{entry.accuracy['value']:.2%}{gap}{drop + 0.0:.2f}"


def _difference(difference: Mapping[str, Any] | None) -> str:
    if not difference:
        return DASH
    snr = difference["snr_db"]
    text = "equal" if snr is None else f"{snr:.1f} dB"
    return text if difference["passed"] else f"{text} MISMATCH"


def warnings(results: Results) -> list[str]:
    """Return what the user should know, artifacts with the same warning in one line."""
    found: dict[str, list[str]] = {}
    for entry in results.entries:
        for text in entry.warnings:
            found.setdefault(text, []).append(entry.name)
    return [f"{', '.join(names)}: {text}" for text, names in found.items()]


def reasons(results: Results) -> list[str]:
    """Return why artifacts have no numbers, one line per reason."""
    why: dict[str, list[str]] = {}
    for entry in results.entries:
        if entry.status != "measured":
            why.setdefault(f"{entry.status}: {entry.reason}", []).append(entry.name)
    return [f"{', '.join(names)}: {reason}" for reason, names in why.items()]


def noise_lines(results: Results) -> list[str]:
    """Return what disturbed the run and what to do about it; nothing for a quiet one."""
    noise = results.environment.get("noise") or {}
    return [f"noisy: {reason}" for reason in noise.get("reasons", ())]


def curve_table(results: Results, curve: Literal["batches", "concurrency"]) -> Table | None:
    """Return latency and throughput over batch sizes or clients; None where nothing was measured."""
    axis = {"batches": "batch_size", "concurrency": "clients"}[curve]
    points = [(entry.name, point) for entry in results.entries for point in getattr(entry, curve)]
    if not points:
        return None
    table = make_table("", "artifact", axis.replace("_", " "), "median ms", "p99 ms", "samples/s")
    for name, point in points:
        figures = f"{point['median_ms']:.3g}", f"{point['p99_ms']:.3g}", f"{point['throughput_per_s']:,.0f}"
        add_row(table, name, f"{point[axis]}", *figures)
    return table


def regression_table(found: Regression) -> Table:
    """Return the table of two runs, one row per artifact; without verdicts across machines."""
    old, new = found.machines
    what = "speed-up against the own baseline" if found.relative else "latency"
    title = f"{what}, new against old, with its 95% interval" if found.same_machine else f"{old} | {new}"
    table = make_table(
        title, "artifact", "old ms", "new ms", "speed-up", "verdict", "size", "accuracy points"
    )
    for change in found.changes:
        add_row(table, *_change_row(change))
    return table


def _change_row(change: Change) -> list[str]:
    ratio = change.speedup
    return [
        change.name,
        DASH if change.old_ms is None else f"{change.old_ms:.3g}",
        DASH if change.new_ms is None else f"{change.new_ms:.3g}",
        DASH if ratio is None else f"{ratio['value']:.3f}x [{ratio['low']:.3f}, {ratio['high']:.3f}]",
        DASH if ratio is None else ratio["verdict"],
        DASH if change.size_ratio is None else f"{change.size_ratio:.3g}x",
        DASH if change.accuracy_points is None else f"{change.accuracy_points + 0.0:+.2f}",
    ]


def difference_table(difference: Difference) -> Table:
    """Return the table of a comparison, one row per output."""
    table = make_table(
        f"{difference.artifact} against {difference.reference}: {difference.samples} samples, "
        f"judged as {difference.precision}",
        "output", "verdict", "SNR", "largest error", "same argmax, cosine", "required",
    )  # fmt: skip
    for output in difference.outputs:
        alike = output.agreement if output.cosine is None else output.cosine
        add_row(
            table,
            output.output,
            "pass" if output.passed else "MISMATCH",
            "equal" if output.snr_db == float("inf") else f"{output.snr_db:.1f} dB",
            f"{output.max_abs_error:.3g}",
            DASH if alike is None else f"{alike:.2%}" if output.cosine is None else f"{alike:.4f}",
            output.criterion,
        )
    return table
