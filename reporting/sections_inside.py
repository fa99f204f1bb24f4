"""Sections about an artifact's layers: precisions, layer errors, calibration."""

from __future__ import annotations

import math

from ..bench.results.render import slowest_layers
from ..calibration.plot import DASHES, summarize
from ..figures import DASH, decibels, figure, number, words
from .charts import (
    WORST_HISTOGRAMS,
    WORST_TENSORS,
    errors_chart,
    histogram_chart,
    layers_by_precision,
    precision_chart,
)
from .parts import Cell, Drawn, Section, Table
from .source import Layers, Source


def precision_section(source: Source) -> Section:
    """In which precision layers run."""
    title = "Precision of the layers"
    chart = precision_chart(source.subjects)
    if not chart:
        reason = "no artifact has a manifest that tells its layers' precisions"
        return Section("precision", title, missing=reason)
    rows = [
        [
            Cell(s.label, subject=s),
            Cell(name),
            Cell(str(sum(kinds.values()))),
            Cell(", ".join(f"{n} {kind}" for kind, n in kinds.items())),
        ]
        for s in source.subjects
        for name, kinds in layers_by_precision(s).items()
    ]
    table = Table(
        "Layers by precision and operator, from the artifacts' manifests.",
        ("artifact", "precision", "layers", "operators"),
        rows,
        words=(0, 1, 3),
        folded=True,
    )
    note = "What the built artifact holds, not what was asked for."
    return Section(
        "precision",
        title,
        charts=[Drawn(chart, "Layers by precision", note)],
        tables=[table],
        precisions=True,
    )


def times_section(source: Source) -> Section:
    """Which layers take the time."""
    title = "Time of the layers"
    timed = [s for s in source.measured if s.row.layer_times_ms]
    if not timed:
        return Section("times", title, missing="layer times were not measured (`layer_times`)")
    tables = [
        Table(
            f"{s.label}: medians by the runtime's profiler, which slows the layers.",
            ("layer", "ms", "share"),
            [[*map(Cell, cells)] for cells in slowest_layers(s.row)],
        )
        for s in timed
    ]
    return Section("times", title, tables=tables)


def layers_section(source: Source) -> Section:
    """Where outputs begin to differ."""
    title = "Errors of the layers"
    if not source.layers:
        reason = "no layer differences were given (`qcompile diff` writes layers.json, `layers` takes it)"
        return Section("layers", title, missing=reason)
    charts, tables = [], []
    for layers in source.layers:
        chart = errors_chart(layers)
        if not chart:
            continue
        shown = min(len(layers.tensors), WORST_TENSORS)
        note = f"The worst {shown} of {len(layers.tensors)} compared tensors. {_first_bad(layers)}"
        charts.append(Drawn(chart, f"{layers.artifact} against {layers.reference}", note))
        tables.append(_errors(layers))
    if not charts:
        return Section("layers", title, missing="the files of layers hold no tensors")
    return Section("layers", title, charts=charts, tables=tables)


def calibration_section(source: Source) -> Section:
    """The histograms that lose most."""
    title = "Calibration"
    if source.ranges is None:
        reason = "no ranges were given (`ranges` takes a ranges file)"
        return Section("calibration", title, missing=reason)
    summaries = summarize(source.ranges)
    if not summaries:
        return Section("calibration", title, missing="the ranges hold no histograms")
    lead = (
        f"{source.ranges.samples} samples, {len(summaries)} tensors, method {source.ranges.method}. "
        f"The {min(len(summaries), WORST_HISTOGRAMS)} tensors with the lowest SNR in symmetric INT8; thick "
        "lines are the chosen thresholds."
    )
    charts = [
        Drawn(
            histogram_chart(source.ranges, one),
            one.tensor,
            f"{_snr(one.snr_db)} after quantization, {one.clipped:.2%} of the values clipped. Thresholds: "
            + ", ".join(f"{method} {figure(amax)}" for method, amax in one.amax.items())
            + ".",
        )
        for one in summaries[:WORST_HISTOGRAMS]
    ]
    return Section(
        "calibration",
        title,
        lead,
        charts,
        pairs=True,
        lines={method: DASHES[method] for method in summaries[0].amax},
    )


def _snr(value: float) -> str:
    return "no error" if number(value) is None else f"{figure(value)} dB"


def _first_bad(layers: Layers) -> str:
    bad = layers.first_bad
    if not bad.get("tensor"):
        return "None of them diverges."
    node = f", node {bad['node']}" if bad.get("node") else ""
    return f"The first that diverges is {bad['tensor']} ({words(bad.get('operator'))}{node})."


def _errors(layers: Layers) -> Table:
    rows = []
    for item in layers.tensors[:WORST_TENSORS]:
        snr, equal = number(item.get("snr_db")), item.get("state", "equal") == "equal"
        shown = decibels(snr) if snr is not None else decibels(math.inf if equal else -math.inf)
        rows.append([
            Cell(item["tensor"], str(item.get("node") or "")),
            Cell(str(item.get("operator") or DASH)),
            Cell(shown),
            Cell(figure(number(item.get("max_abs_error")))),
            Cell(figure(number(item.get("max_abs")))),
        ])  # fmt: skip
    columns = ("tensor", "operator", "SNR", "largest error", "largest value")
    return Table(f"{layers.file}: tensors, the worst first.", columns, rows, words=(0, 1), folded=True)
