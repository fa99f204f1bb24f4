"""`qcompile ranges`: look at what calibration found, merge shards, write TensorRT's cache."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ..spec.decode import Refused
from ..spec.models import MergeRangesCommand, RangesCacheCommand, ShowRangesCommand
from .session import RoadGroup, Session
from .tables import add_row, make_table, present_artifact
from .verb import verb

if TYPE_CHECKING:
    from ..calibration.plot import TensorSummary


@click.group(cls=RoadGroup, short_help="show ranges, merge shards, write TensorRT's cache")
def ranges() -> None:
    """Work with the ranges files that `qcompile calibrate` writes."""


@verb(
    ShowRangesCommand,
    "qcompile ranges show model.ranges",
    "qcompile ranges show model.ranges --method mse --top 10 --plot worst.svg",
    short_help="show tensors with their thresholds, the largest error first",
)
def show(session: Session, options: ShowRangesCommand) -> None:
    """Print the table of tensors."""
    file, plot, tensors = options.file, options.plot, options.tensors
    from ..calibration import load_ranges, parse_method
    from ..calibration.plot import SUFFIX, plot_ranges, summarize
    from ..files import writing

    if plot is not None and plot.suffix != SUFFIX:
        raise Refused("plot", f"{SUFFIX} is required", value=str(plot))
    loaded = load_ranges(file)
    session.warn(loaded.notes)
    method = parse_method(options.method) if options.method else loaded.method
    if method.name != "percentile":
        method = replace(method, percentile=loaded.method.percentile)
    loaded.method = method
    session.progress("choose thresholds")
    summaries = summarize(loaded, symmetric=options.target == "tensorrt")
    for name in tensors:
        if name in loaded.shared:
            shared = ", ".join(loaded.shared[name])
            raise Refused("tensors", f"takes its range from {shared}", value=name, hint=f"`tensors` {shared}")
        if name not in loaded.histograms:
            raise Refused("tensors", "was not observed", value=name, hint="leave it out to see all")
    summaries = [summary for summary in summaries if not tensors or summary.tensor in tensors]
    listed = summaries[: options.top] if options.top else summaries
    session.json(
        {
            "model": loaded.model,
            "samples": loaded.samples,
            "method": str(method),
            "target": options.target,
            "tensors": [summary.as_json() for summary in listed],
            "shared": {name: list(sources) for name, sources in loaded.shared.items()},
            "skipped": dict(loaded.skipped),
            **({"fixed": dict(loaded.fixed)} if loaded.fixed else {}),
        }
    )
    session.say(f"{file}  {loaded.samples} samples, {len(summaries)} tensors, {method} for {options.target}")
    _table(session, listed)
    for name, amax in loaded.fixed.items():
        session.say(f"  {name}: amax {amax:.4g}, of TensorRT's cache")
    for name, reason in loaded.skipped.items():
        session.say(f"  skipped {name}: {reason}")
    if plot is not None:
        session.progress("draw")
        with writing(plot) as path:
            plot_ranges(loaded, summaries[: options.top or 12], path)
        session.say(f"{plot}")


def _table(session: Session, summaries: list[TensorSummary]) -> None:
    if not summaries:
        return
    methods = list(summaries[0].amax)
    columns = [f"amax\n{name}" for name in methods]
    table = make_table("", "tensor", "min", "max", *columns, "clipped", "SNR")
    for summary in summaries:
        values = (summary.min, summary.max, *summary.amax.values())
        snr = "exact" if summary.snr_db == float("inf") else f"{summary.snr_db:.1f} dB"
        add_row(table, summary.tensor, *(f"{value:.4g}" for value in values), f"{summary.clipped:.3%}", snr)
    session.table(table)


@verb(
    MergeRangesCommand,
    "qcompile ranges merge part1.ranges part2.ranges -o model.ranges",
    short_help="merge the shards of one calibration",
)
def merge(session: Session, options: MergeRangesCommand) -> None:
    """Print the merged file."""
    from ..calibration.ranges_file import merge_files

    artifact = merge_files(options.files, options.output, progress=session.progress)
    present_artifact(
        session, artifact, f"{artifact.manifest.proof['samples']} samples of {len(options.files)} files"
    )


@verb(
    RangesCacheCommand,
    "qcompile ranges cache model.ranges -o model.cache --tensorrt 8.5.3",
    short_help="write TensorRT's calibration cache",
)
def cache(session: Session, options: RangesCacheCommand) -> None:
    """Print the header of the cache."""
    from ..calibration import load_ranges, parse_method
    from ..calibration.tensorrt_cache import format_cache
    from ..files import write_text

    loaded = load_ranges(options.file)
    session.warn(loaded.notes)
    method = parse_method(options.method) if options.method else None
    text = format_cache(loaded, version=options.version, calibrator=options.calibrator, method=method)
    write_text(options.output, text)
    lines = text.splitlines()
    session.json({"path": str(options.output), "header": lines[0], "tensors": len(lines) - 1})
    session.say(f"{options.output}  {lines[0]}, {len(lines) - 1} tensors")


for _command in (show, merge, cache):
    ranges.add_command(_command)
