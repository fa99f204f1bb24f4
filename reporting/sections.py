"""The sections of a report, in order: each has charts and tables, or a line that says why it has none."""

from __future__ import annotations

from collections.abc import Callable

from .parts import Section
from .sections_inside import calibration_section, layers_section, precision_section, times_section
from .sections_measured import (
    accuracy_section,
    costs_section,
    history_section,
    latency_section,
    results_section,
    speed_section,
    sweep_section,
    tradeoff_section,
)
from .sections_setting import environment_section, failures_section, reproduce_section
from .source import ReportedArtifact, Source


def sections(source: Source, chosen: ReportedArtifact | None) -> list[Section]:
    """Return every section, those with nothing to show too; `chosen` is the recommended artifact."""
    makers: list[Callable[[Source], Section]] = [
        lambda source: results_section(source, chosen),
        speed_section,
        tradeoff_section,
        latency_section,
        accuracy_section,
        lambda source: sweep_section(source, "batches"),
        lambda source: sweep_section(source, "concurrency"),
        lambda source: sweep_section(source, "in_flight"),
        costs_section,
        precision_section,
        times_section,
        layers_section,
        calibration_section,
        history_section,
        failures_section,
        environment_section,
        reproduce_section,
    ]
    return [make(source) for make in makers]
