"""Tables and lines in the terminal; their figures have the same text as in the other forms of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from ..core.artifact import Artifact
from ..core.figures import (
    DASH,
    accuracy_text,
    bytes_text,
    counted,
    decibels,
    drop_interval,
    drop_text,
    figure,
    times,
)
from ..core.plain_text import plain
from ..spec.tensors import ModelIO, format_shape
from .session import Session
from .terminal_table import TerminalTable, plain_cell

if TYPE_CHECKING:
    from ..bench.diff.diff import AccuracyComparison, OutputComparison
    from ..bench.results.results import Results
    from ..bench.results.row import Curve, Row

__all__ = ["DASH", "add_row", "bytes_text", "make_table"]

_WIDE = 150
_SPARE = ("throughput", "difference", "size", "runtime")
_LISTED = 10


def make_table(
    title: str, *columns: str, text: bool = False, spare: Sequence[str] = (), compact: bool = False
) -> TerminalTable:
    """Return an empty table; with `text`, columns after the first hold words instead of figures.

    A narrow terminal leaves out the columns of `spare` first, then those on the right.
    """
    return TerminalTable(title, columns, range(len(columns)) if text else (0,), spare, compact)


def add_row(table: TerminalTable, name: str, *cells: str, below: str = "") -> None:
    """Add a row of plain text: brackets in `tritonclient[grpc]` or `[2.1, 2.3]` are not markup.

    `below` is appended to the name; it begins with a line break or a space.
    """
    table.rows.append([plain(name) + below, *map(plain_cell, cells)])


def results_table(results: Results, *, width: int) -> TerminalTable:
    """Return the table of a benchmark, one row per artifact; rows have two lines on narrow terminals."""
    from ..bench.results.render import columns_of, interval_words

    settings, machine = results.settings, results.environment
    shapes = ", ".join(f"{name}:{shape}" for name, shape in settings.get("inputs", {}).items())
    baseline = "the baseline of each measurement" if results.machines else results.baseline
    wide = width >= _WIDE
    titles = {
        column.key: column.title_in("terminal" if wide else "narrow") for column in columns_of("terminal")
    }
    table = make_table(
        f"{f'{shapes} · ' if shapes else ''}{counted(settings['threads'], 'thread')} · "
        f"{machine['processor']} · speed-up against {baseline} with its {interval_words(results.confidence)}",
        "artifact",
        *(["measurement"] if results.machines else []),
        *titles.values(),
        spare=[titles[key] for key in _SPARE],
        compact=not wide,
    )
    for row in results.rows:
        base = results.baseline_of(row)
        below = f"{' ' if wide else chr(10)}(baseline)" if row.name == base else ""
        where = [row.machine] if results.machines else []
        add_row(table, row.name, *where, *_cells(row, base, wide=wide), below=below)
    return table


def _cells(row: Row, baseline: str, *, wide: bool) -> list[str]:
    from ..bench.results.render import columns_of, render

    gap = " " if wide else "\n"
    text = render(row, baseline)
    columns = columns_of("terminal")
    if text.problem:
        where = f"not run here:{gap}{row.runs_on}" if row.status == "not run" else row.status
        cells = {column.key: getattr(text, column.key) if column.of_file else DASH for column in columns}
        return [*(cells | {"runtime": where}).values()]
    comma = f",{gap}" if wide else gap
    compared = gap.join(filter(None, [text.speedup, text.interval, text.verdict]))
    combined = {
        "runtime": f"{text.runtime}{comma}{row.runs_on}",
        "latency": f"{text.latency}{gap}{text.tail}",
        "speedup": compared if text.interval else DASH,
        "size": f"{text.size}{comma}{text.memory}",
        "accuracy": f"{text.accuracy}{comma}{text.drop}" if row.accuracy else DASH,
    }
    return [combined.get(column.key, getattr(text, column.key)) for column in columns]


def unmeasured_lines(results: Results) -> list[str]:
    names_by_reason: dict[str, list[str]] = {}
    for row in results.rows:
        if row.status != "measured":
            names_by_reason.setdefault(f"{row.status}: {row.reason}", []).append(row.name)
    return [f"{', '.join(names)}: {reason}" for reason, names in names_by_reason.items()]


def curve_table(results: Results, curve: Curve) -> TerminalTable | None:
    """Return the table of a curve, with latency and throughput at each count; None if not measured."""
    from ..bench.results.render import CURVES

    points = [(row.name, point) for row in results.rows for point in getattr(row, curve)]
    if not points:
        return None
    table = make_table("", "artifact", CURVES[curve], "median ms", "p99 ms", "samples/s")
    for name, point in points:
        cells = map(figure, (point.median_ms, point.p99_ms, point.throughput_per_s))
        add_row(table, name, str(point.count), *cells)
    return table


_SHOWN_CALLS = 32


def calls_table(results: Results) -> TerminalTable | None:
    """Return the latency of at most `_SHOWN_CALLS` calls of each artifact; None without stored calls."""
    rows = [row for row in results.rows if row.calls_ms]
    if not rows:
        return None
    shown = min(_SHOWN_CALLS, *(len(row.calls_ms) for row in rows))
    table = make_table("ms of single calls, from the first to the last", "call", *(row.name for row in rows))
    for index in range(shown):
        places = (index * (len(row.calls_ms) - 1) // max(shown - 1, 1) for row in rows)
        cells = (figure(row.calls_ms[place]) for row, place in zip(rows, places, strict=True))
        add_row(table, f"{index + 1} of {shown}", *cells)
    return table


def layer_tables(results: Results) -> list[TerminalTable]:
    from ..bench.results.render import slowest_layers

    tables = []
    for row in results.rows:
        if row.layer_times_ms:
            tables.append(make_table(f"layers of {row.name}, profiled", "layer", "ms", "share"))
            for cells in slowest_layers(row):
                add_row(tables[-1], *cells)
    return tables


def gpu_table(results: Results) -> TerminalTable | None:
    """Return the table of times by the GPU's clock; None without them.

    The ratio is of medians of 50 calls, without an interval; the verdict is from the latencies.
    """
    rows = [(row, row.gpu_latency) for row in results.rows if row.gpu_latency is not None]
    if not rows:
        return None
    table = make_table("by the GPU's clock", "artifact", "compute ms", "ratio", "+ copies ms", "enqueue ms")
    for row, latency in rows:
        base = results.row(results.baseline_of(row)).gpu_latency
        ratio = times(base.compute_ms / latency.compute_ms) if base and latency.compute_ms else DASH
        cells = map(figure, (latency.with_transfers_ms, latency.enqueue_ms))
        add_row(table, row.name, figure(latency.compute_ms), ratio, *cells)
    return table


def difference_table(difference: OutputComparison) -> TerminalTable:
    table = make_table(
        f"{difference.artifact} against {difference.reference}: {difference.spread}, "
        f"judged as {difference.precision}",
        "output", "verdict", "SNR", "largest error", "same argmax, cosine", "required",
    )  # fmt: skip
    for output in difference.outputs:
        score = output.agreement if output.cosine is None else output.cosine
        add_row(
            table,
            output.output,
            "pass" if output.passed else "MISMATCH",
            DASH if output.rule == "labels" else decibels(output.snr_db),
            f"{output.max_abs_error:.3g}",
            DASH if score is None else f"{score:.2%}" if output.cosine is None else f"{score:.4f}",
            output.criterion,
        )
    return table


def accuracy_line(accuracy: AccuracyComparison) -> str:
    unit = accuracy.unit
    values = " and ".join(accuracy_text(value, unit) for value in (accuracy.reference, accuracy.artifact))
    drop = f"{drop_text(accuracy.drop, unit)} {drop_interval(accuracy.low, accuracy.high, unit)}".rstrip()
    line = f"{accuracy.metric}: {values} on {counted(accuracy.samples, 'sample')}, drop {drop} {unit}"
    if accuracy.max_drop is not None:
        is_proven = accuracy.high is None or accuracy.high <= accuracy.max_drop
        verdict = "pass" if accuracy and is_proven else "pass on these samples" if accuracy else "TOO LARGE"
        line += f", at most {drop_text(accuracy.max_drop, unit)} is required: {verdict}"
    return f"{line}; {accuracy.statement}" if accuracy.statement else line


def present_artifact(session: Session, artifact: Artifact, *details: str) -> None:
    """Print an artifact's path, size, checks and warnings, or its manifest as JSON."""
    manifest = artifact.manifest
    session.json({"path": str(artifact.path), **manifest.as_json()})
    session.say(f"{artifact.path}  {bytes_text(manifest.size_bytes)}  {manifest.precision}".rstrip())
    if manifest.io is not None:
        present_io(session, manifest.io)
    for detail in details:
        session.say(f"  {detail}")
    for check in manifest.checks:
        session.say(f"  checked: {check.name}: {check.detail}")
    session.warn(manifest.warnings)


def present_io(session: Session, io: ModelIO) -> None:
    for word, tensors in (("in ", io.inputs), ("out", io.outputs)):
        for tensor in tensors:
            session.say(f"  {word} {tensor}")


def profile_lines(proof: Mapping[str, Any]) -> list[str]:
    """Return the shapes that an engine takes, each profile as `--profile` spells it."""
    return [
        "profile "
        + ", ".join(
            f"{name}:" + "..".join(format_shape(shapes[kind]) for kind in ("min", "opt", "max"))
            for name, shapes in ranges.items()
        )
        for ranges in proof.get("profiles", [])
        if ranges
    ]


def left_in_float_lines(proof: Mapping[str, Any], place: str) -> list[str]:
    """Return lines for the first ten layers that stayed in floating point, and the place of the full list."""
    layers = proof.get("left_in_float", {})
    lines = [f"left in float: {name} ({reason})" for name, reason in layers.items()]
    return first_lines(lines, "left in float", place)


def first_lines(lines: list[str], subject: str, place: str) -> list[str]:
    """Return the first ten lines, and one with the number and the place of the others."""
    more = f"{subject}: {len(lines) - _LISTED} more, see {place}"
    return lines[:_LISTED] + ([more] if len(lines) > _LISTED else [])


def present_results(session: Session, results: Results) -> None:
    """Print the tables of a benchmark, and the notes and warnings on its results."""
    from ..bench.results.render import accuracy_lines, warning_lines
    from ..bench.results.row import Curve

    if not session.quiet:
        session.table(results_table(results, width=session.width))
        curves = [curve_table(results, curve) for curve in get_args(Curve)]
        for table in (gpu_table(results), *curves, *layer_tables(results)):
            if table is not None:
                session.table(table)
    for line in unmeasured_lines(results):
        session.note(line)
    if results.settings.get("metric_note"):
        session.note(f"accuracy is {results.settings['metric_note']}")
    for line in accuracy_lines(results):
        session.note(line)
    noise = results.environment.get("noise") or {}
    noisy = [f"noisy: {reason}" for reason in noise.get("reasons", ())]
    session.warn([*noisy, *warning_lines(results)])
