"""Render sections and summary into one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from ...core.figures import counted, value_text
from ...core.files import check_output, write_text
from ...core.installation import import_package
from ...errors import InvalidOption
from ...spec.decode import spec_from_call
from ...spec.looking import ReportSpec
from ...spec.measure import Budget
from ...version import __version__
from ..results.environment import machine_text
from . import sections as parts
from .source import FAMILIES, ReportedArtifact, ReportSource, Section, compared_layers, read_source
from .summary import summarize
from .svg import FAMILY_MARKS

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup
    from typing_extensions import Unpack

    from ...spec.keywords import ReportKeywords

SUFFIXES = (".html", ".htm")


def write_report(
    results_path: str | Path,
    output: str | Path,
    spec: Budget | None = None,
    /,
    **options: Unpack[ReportKeywords],
) -> Path:
    """Write the report of a results file, atomically.

    Args:
        results_path: `results.json` of `bench` or `run`.
        output: The HTML file.
        spec: Files and options of the report, and the budget of a recommended artifact: by default any size
            and latency, and no drop in accuracy that its interval proves.
        options: Fields of `ReportSpec` by name, in place of those of `spec`.

    Returns:
        The path of the report.
    """
    path = Path(output)
    if path.suffix not in SUFFIXES:
        raise InvalidOption(f"`output` {path}: {' or '.join(SUFFIXES)} is required", option="output")
    check_output(path)
    template("page.html")
    shown = spec_from_call(ReportSpec, spec, options)
    source = read_source(
        Path(results_path), layers=shown.layers, ranges=shown.ranges, recipe=shown.recipe, budget=shown
    )
    if not shown.layers:
        source = replace(source, layers=compared_layers(source, Path(results_path).parent))
    write_text(path, render(source, name=Path(results_path).name))
    return path


def render(source: ReportSource, *, name: str) -> str:
    """Return the page; `name` is the file name of the results."""
    summary = summarize(source)
    all_sections = sections(source, summary.recommended)
    script = file_text("sort.js")
    used_families = {subject.family for subject in source.subjects}
    return template("page.html").render(
        summary=summary,
        sections=[section for section in all_sections if not section.missing],
        left_out=[section for section in all_sections if section.missing],
        families={family: text for family, text in FAMILIES.items() if family in used_families},
        about=_about(source),
        facts=_facts(source),
        results=name,
        created=str(source.results.created),
        version=__version__,
        style=file_text("style.css"),
        script=script,
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
    )


def sections(source: ReportSource, recommended: ReportedArtifact | None) -> list[Section]:
    """Return every section, also the empty ones; `recommended` is the recommended artifact."""
    titled_sections = {
        "results": ("Results", parts.results_section(source, recommended)),
        "speed": ("Speed-up", parts.speed_section(source)),
        "tradeoff": ("Accuracy, latency and size", parts.tradeoff_section(source)),
        "latency": ("Latency distributions", parts.latency_section(source)),
        "accuracy": ("Accuracy", parts.accuracy_section(source)),
        "batches": ("Batch sizes", parts.sweep_section(source, "batches")),
        "concurrency": ("Concurrent clients", parts.sweep_section(source, "concurrency")),
        "in_flight": ("Inferences in flight", parts.sweep_section(source, "in_flight")),
        "costs": ("Start, memory, energy", parts.costs_section(source)),
        "precision": ("Precision of the layers", parts.precision_section(source)),
        "times": ("Time of the layers", parts.times_section(source)),
        "layers": ("Errors of the layers", parts.layers_section(source)),
        "calibration": ("Calibration", parts.calibration_section(source)),
        "history": ("History", parts.history_section(source)),
        "failures": ("Failures and warnings", parts.failures_section(source)),
        "environment": ("Environment", parts.environment_section(source)),
        "reproduce": ("Reproduction", parts.reproduce_section(source)),
    }
    return [replace(section, name=name, title=title) for name, (title, section) in titled_sections.items()]


def template(name: str) -> Template:
    import_package("jinja2", "jinja2 cannot be imported", extra="report", engine="report")
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent, encoding="utf-8"),
        autoescape=True,  # texts of a results file are untrusted
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["marks"] = FAMILY_MARKS
    environment.filters["prose"] = _prose
    return environment.get_template(name)


def _prose(text: object) -> Markup:
    """Return a text as HTML: escaped, with code between backticks in <code>."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def file_text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _about(source: ReportSource) -> list[str]:
    """Return the model, the data and the number of samples; a path keeps its last folder."""
    settings = source.results.settings
    models = {_short_path(s.row.artifact): None for s in source.subjects if s.is_baseline and s.row.artifact}
    data = str(settings.get("evaluation") or settings.get("data") or "random input")
    samples = max((s.row.accuracy.samples or 0 for s in source.measured if s.row.accuracy), default=0)
    names = [*models] if len(models) < 3 else [f"{len(models)} models"]
    return [*names, _short_path(data), f"{samples:,} samples"] if samples else [*names, _short_path(data)]


def _short_path(text: str) -> str:
    return value_text("/".join(PurePath(text).parts[-2:]))


def _facts(source: ReportSource) -> list[str]:
    settings, environment = source.results.settings, source.results.environment
    inputs: Mapping[str, Any] = settings.get("inputs") or {}
    threads = settings.get("threads")
    facts = [", ".join(f"{name}:{shape}" for name, shape in inputs.items())]
    facts.append(counted(threads, "thread"))
    if environment.get("processor"):
        facts.append(value_text(machine_text(environment)))
    return [text for text in facts if text]
