"""`qcompile ranges`: look at what calibration found, merge shards, write TensorRT's cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .present import present_artifact
from .session import RoadGroup, Session, command_options, examples
from .tables import add_row, make_table

if TYPE_CHECKING:
    from ..calibration.summary import TensorSummary

_METHOD_HELP = "minmax, percentile[:NUMBER], entropy, mse or auto; the file's own by default."


@click.group(cls=RoadGroup, short_help="look at ranges, merge shards, write TensorRT's cache")
def ranges() -> None:
    """Work with the ranges files that `qcompile calibrate` writes."""


@ranges.command(
    short_help="tensors with their thresholds, the worst first",
    epilog=examples(
        "qcompile ranges show model.ranges",
        "qcompile ranges show model.ranges --method mse --top 10 --plot worst.svg",
    ),
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--method", help=_METHOD_HELP)
@click.option(
    "--target",
    type=click.Choice(["onnxruntime", "openvino", "tensorrt"]),
    default="onnxruntime",
    show_default=True,
    help="Whose quantization is reckoned: asymmetric uint8, or symmetric int8.",
)
@click.option("--top", type=click.IntRange(min=1), help="Only so many tensors; 12 are drawn by default.")
@click.option("--tensor", "tensors", multiple=True, help="Only this tensor; may be given again.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the histograms: .svg or .png.")
@command_options
def show(
    session: Session,
    file: Path,
    method: str | None,
    target: str,
    top: int | None,
    tensors: tuple[str, ...],
    plot: Path | None,
) -> None:
    """Show every observed tensor of a ranges FILE: extremes, thresholds by method, share of the values
    clipped and the signal-to-noise ratio that eight bits leave, reckoned on the histogram."""
    from ..artifact import writing
    from ..calibration import load_ranges, parse_method
    from ..calibration.plot import SUFFIXES, plot_ranges
    from ..calibration.summary import summarize
    from ..errors import InvalidOption

    if plot is not None and plot.suffix not in SUFFIXES:
        raise InvalidOption(f"--plot {plot}: {' or '.join(SUFFIXES)} is required", option="--plot")
    loaded = load_ranges(file)
    chosen = parse_method(method) if method else loaded.method
    if chosen.name != "percentile":
        chosen = replace(chosen, percentile=loaded.method.percentile)
    loaded.method = chosen
    session.progress("choose thresholds")
    found = summarize(loaded, symmetric=target == "tensorrt")
    for name in tensors:
        if name in loaded.shared:
            shared = ", ".join(loaded.shared[name])
            raise InvalidOption(
                f"--tensor {name!r}: takes its range from {shared}", hint=f"--tensor {shared}"
            )
        if name not in loaded.histograms:
            raise InvalidOption(f"--tensor {name!r}: was not observed", hint="leave it out to see all")
    found = [one for one in found if not tensors or one.tensor in tensors]
    listed = found[:top] if top else found
    session.json(
        {
            "model": loaded.model,
            "samples": loaded.samples,
            "method": str(chosen),
            "target": target,
            "tensors": [one.as_json() for one in listed],
            "shared": {name: list(sources) for name, sources in loaded.shared.items()},
            "skipped": dict(loaded.skipped),
        }
    )
    session.say(f"{file}  {loaded.samples} samples, {len(found)} tensors, {chosen} for {target}")
    _table(session, listed)
    for name, reason in loaded.skipped.items():
        session.say(f"  skipped {name}: {reason}")
    if plot is not None:
        session.progress("draw")
        with writing(plot) as path:
            plot_ranges(loaded, found[: top or 12], path)
        session.say(f"{plot}")


def _table(session: Session, found: list[TensorSummary]) -> None:
    if not found:
        return
    methods = list(found[0].amax)
    columns = [f"amax\n{name}" for name in methods]
    table = make_table("", "tensor", "min", "max", *columns, "clipped", "SNR")
    for one in found:
        values = (one.min, one.max, *one.amax.values())
        snr = "exact" if one.snr_db == float("inf") else f"{one.snr_db:.1f} dB"
        add_row(table, one.tensor, *(f"{value:.4g}" for value in values), f"{one.clipped:.3%}", snr)
    session.table(table)


@ranges.command(
    short_help="put the shards of one calibration together",
    epilog=examples("qcompile ranges merge part1.ranges part2.ranges -o model.ranges"),
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Ranges file.")
@command_options
def merge(session: Session, files: tuple[Path, ...], output: Path) -> None:
    """Merge ranges FILES of one model: shards of the same data, or different data. Nothing is lost: all
    shards together give, bit by bit, the file of one whole run."""
    from ..calibration.merge import merge_files

    artifact = merge_files(files, output, progress=session.progress)
    present_artifact(session, artifact, f"{artifact.manifest.proof['samples']} samples of {len(files)} files")


@ranges.command(
    short_help="write TensorRT's calibration cache",
    epilog=examples("qcompile ranges cache model.ranges -o model.cache --tensorrt 8.5.3"),
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Cache to write.")
@click.option("--tensorrt", "version", required=True, help="Version of TensorRT that will read it: 8.5.3.")
@click.option("--calibrator", default="EntropyCalibration2", show_default=True, help="Its name in the cache.")
@click.option("--method", help=_METHOD_HELP)
@command_options
def cache(
    session: Session, file: Path, output: Path, version: str, calibrator: str, method: str | None
) -> None:
    """Write the scales of a ranges FILE as a calibration cache, which TensorRT 8 and 10 read in place of
    calibrating. `qcompile quantize --ranges CACHE` reads it back."""
    from ..artifact import write_text
    from ..calibration import load_ranges, parse_method
    from ..calibration.tensorrt_cache import format_cache

    loaded = load_ranges(file)
    text = format_cache(
        loaded, version=version, calibrator=calibrator, method=parse_method(method) if method else None
    )
    write_text(output, text)
    lines = text.splitlines()
    session.json({"path": str(output), "header": lines[0], "tensors": len(lines) - 1})
    session.say(f"{output}  {lines[0]}, {len(lines) - 1} tensors")
