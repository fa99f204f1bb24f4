"""Tables and pictures of qcompile's objects for Jupyter, from the code of the report."""

from __future__ import annotations

import functools
from typing import Any

from ...calibration.ranges import Ranges
from ...core.artifact import Artifact
from ...core.figures import (
    DASH,
    accuracy_text,
    bytes_text,
    decibels,
    drop_interval,
    drop_text,
    figure,
    shortened,
)
from ...core.notebook import html_table
from ...errors import InvalidOption
from ..diff.diff import OutputComparison
from ..results.render import columns_of, flat_rows, render
from ..results.results import Results
from . import svg
from .charts import latency_tracks
from .range_plots import ranges_picture, summarize
from .recommendation import Recommendation
from .source import ReportedArtifact

__all__ = ["flat_rows", "html_of", "picture_of"]

_MOST_TENSORS = 12
_NAME, _TRACK, _VALUE, _ROW = 190, 420, 170, 30
"""Widths of the parts of a row, and its height, in pixels."""


@functools.singledispatch
def html_of(value: object) -> str:
    """Return the HTML of an object."""
    raise NotImplementedError(type(value))


@functools.singledispatch
def picture_of(value: object, **options: Any) -> str:
    """Return an SVG picture of an object."""
    raise NotImplementedError(type(value))


@html_of.register
def _artifact(artifact: Artifact) -> str:
    manifest = artifact.manifest
    layers = manifest.proof.get("layers_by_precision") or {}
    counts = [f"{precision}: {sum(of.values())}" for precision, of in layers.items() if of]
    rows: list[tuple[str, object]] = [
        ("kind", " ".join(filter(None, (manifest.kind, manifest.target, manifest.precision)))),
        ("size", bytes_text(manifest.size_bytes)),
        ("layers", ", ".join(counts)),
        *((f"check {'passed' if check.passed else 'FAILED'}", check.name) for check in manifest.checks),
        *(("warning", warning) for warning in manifest.warnings),
    ]
    return html_table(str(artifact.path), (), [row for row in rows if row[1]])


@html_of.register
def _results(results: Results) -> str:
    columns = columns_of("markdown")
    rows = []
    for row in sorted(results.rows, key=lambda row: row.name != results.baseline):
        text = render(row, results.baseline_of(row))
        cells = [
            getattr(text, column.key) if column.of_file or not text.problem else DASH for column in columns
        ]
        rows.append([*cells, text.problem])
    titles = [*(column.title_in("markdown") for column in columns), ""]
    if not any(row[-1] for row in rows):
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    return html_table(f"measured against {results.baseline}", titles, rows)


@html_of.register
def _comparison(comparison: OutputComparison) -> str:
    rows = [
        (
            output.output,
            "pass" if output.passed else "MISMATCH",
            DASH if output.rule == "labels" else decibels(output.snr_db),
            f"{output.max_abs_error:.3g}",
            output.criterion,
        )
        for output in comparison.outputs
    ]
    titles = ("output", "verdict", "SNR", "largest error", "required")
    caption = f"{comparison.artifact} against {comparison.reference}: {comparison.spread}"
    text = html_table(caption, titles, rows)
    if (accuracy := comparison.accuracy) is not None:
        unit = accuracy.unit
        values = [accuracy_text(value, unit) for value in (accuracy.reference, accuracy.artifact)]
        drop = f"{drop_text(accuracy.drop, unit)} {drop_interval(accuracy.low, accuracy.high, unit)}"
        titles = ("metric", "reference", "artifact", f"drop, {unit}", "samples")
        text += html_table("accuracy", titles, [(accuracy.metric, *values, drop, accuracy.samples)])
    return text


@html_of.register
def _recommendation(recommendation: Recommendation) -> str:
    rows = [*recommendation.others.items(), *(("caveat", text) for text in recommendation.caveats)]
    return html_table(recommendation.sentence, ("other artifact", "reason against it") if rows else (), rows)


@html_of.register
def _ranges(ranges: Ranges) -> str:
    summaries = summarize(ranges)
    rows = [
        (s.tensor, figure(s.min), figure(s.max), figure(s.amax[ranges.method.name]), f"{s.clipped:.3%}",
         decibels(s.snr_db))
        for s in summaries[:_MOST_TENSORS]
    ]  # fmt: skip
    caption = f"{ranges.samples} samples, {len(summaries)} tensors, the worst first, method {ranges.method}"
    return html_table(caption, ("tensor", "min", "max", "amax", "clipped", "SNR"), rows)


@picture_of.register
def _plot_ranges(ranges: Ranges, *, top: int = _MOST_TENSORS) -> str:
    return ranges_picture(ranges, summarize(ranges)[:top])


@picture_of.register
def _plot_results(results: Results) -> str:
    """Draw the latency distribution of each artifact."""
    ordered = sorted(results.rows, key=lambda row: row.name != results.baseline)
    subjects = [
        ReportedArtifact(number, row, row.name == results.baseline_of(row))
        for number, row in enumerate(ordered, 1)
    ]
    rows, scale, title = latency_tracks([subject for subject in subjects if subject.is_measured])
    if scale is None:
        raise InvalidOption("results: no artifact was measured; at least one latency is required")
    grid = "".join(svg.line((scale.at(tick), 0), (scale.at(tick), 100)) for tick in scale.ticks(5))
    panels = []
    for index, (_, name, value, track) in enumerate(rows):
        top = 10 + index * _ROW
        label = svg.text(0, 50, shortened(name, 28), shift=(-_NAME + 8, 4), anchor="start", colour="ink")
        words = svg.text(100, 50, value, shift=(10, 4), anchor="start")
        panels.append(((_NAME, top, _TRACK, _ROW), grid + track + label + words))
    ticks = "".join(svg.text(scale.at(tick), 0, svg.plain(tick), shift=(0, 14)) for tick in scale.ticks(5))
    bottom = 10 + len(rows) * _ROW
    panels.append(((_NAME, bottom, _TRACK, 40), ticks + svg.text(50, 0, title, shift=(0, 32), size=12)))
    return svg.picture(panels, (_NAME + _TRACK + _VALUE, bottom + 44))
