"""The verbs that write models: `export`, `simplify`, `calibrate`, `ranges`, `quantize`, `build`, `refit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from ..core.figures import counted
from ..errors import IntentNotReached
from ..spec.artifacts import BuildCommand, QuantizeCommand, RefitCommand, ReproduceCommand
from ..spec.decode import Refused
from ..spec.models import (
    CalibrateCommand,
    ExportCommand,
    MergeRangesCommand,
    RangesCacheCommand,
    ShowRangesCommand,
    SimplifyCommand,
)
from .session import Session
from .tables import (
    add_row,
    bytes_text,
    first_lines,
    left_in_float_lines,
    make_table,
    present_artifact,
    profile_lines,
)  # fmt: skip
from .usage import OrderedGroup
from .verb import verb

if TYPE_CHECKING:
    from ..bench.report.range_plots import TensorSummary


@verb(
    ExportCommand,
    "qcompile export timm:resnet18 -o model.onnx",
    "qcompile export 'torchvision:resnet18?classes=10' -o model.onnx --weights trained.safetensors",
    "qcompile export model.py:build -o model.onnx --data data.py:samples",
    "qcompile export model.py:build -o model.onnx --input x:1x3x224x224",
    "qcompile export model.py:build -o model.onnx --input 'x:[batch,3,224,224]'",
    "qcompile export unet.py:build -o unet.onnx --input 'x:[batch,3,height=32..64..512,width=64]'",
    "qcompile export net.pt2 -o net.onnx --input x:1x16 --opset 18",
    "qcompile export model.keras -o model.onnx --python tensorflow=tf/bin/python",
)
def export(session: Session, options: ExportCommand) -> None:
    from ..compiler.export import export as export_model

    present_artifact(session, export_model(options.model, options.output, options, progress=session.progress))


@verb(
    SimplifyCommand,
    "qcompile simplify model.onnx -o model.simple.onnx",
    "qcompile simplify model.onnx -o model.simple.onnx --data samples.npz",
)
def simplify(session: Session, options: SimplifyCommand) -> None:
    from ..compiler.simplify.simplify import simplify as simplify_model

    artifact = simplify_model(options.model, options.output, options, progress=session.progress)
    proof = artifact.manifest.proof
    removed = proof["removed"]
    assert isinstance(removed, dict)
    diff = ", ".join(f"{-count:+d} {name}" for name, count in removed.items()) or "nothing to remove"
    present_artifact(session, artifact, f"nodes: {proof['nodes_before']} to {proof['nodes_after']} ({diff})")


@verb(
    CalibrateCommand,
    "qcompile calibrate model.onnx --data samples.npz -o model.ranges",
    "qcompile calibrate model.onnx --data data.py:calibration -o model.ranges --method percentile:99.9",
    "qcompile calibrate model.onnx --data images/ -o part2.ranges --shard 2/8",
)
def calibrate(session: Session, options: CalibrateCommand) -> None:
    from ..compiler.quantize.calibrate import calibrate as calibrate_model

    artifact = calibrate_model(
        options.model, options.data, options.output, options, progress=session.progress
    )
    proof = artifact.manifest.proof
    shared = f", {proof['shared']} more share their ranges" if proof["shared"] else ""
    tensors, samples = counted(proof["tensors"], "tensor"), counted(proof["samples"], "sample")
    present_artifact(session, artifact, f"{tensors} over {samples}{shared}")


@verb(
    QuantizeCommand,
    "qcompile quantize model.onnx -o model.int8.onnx --ranges model.ranges",
    "qcompile quantize model.onnx -o model.trt.onnx --ranges model.ranges --target tensorrt",
    "qcompile quantize model.onnx -o model.dyn.onnx --mode dynamic",
    "qcompile quantize model.onnx -o model.int4.onnx --mode weights --precision int4 --data data.npz "
    "--rounding gptq",
    "qcompile quantize model.onnx -o model.fp16.onnx --precision fp16 --data data.npz",
    "qcompile quantize model.onnx -o mixed.onnx --ranges model.ranges --target tensorrt "
    "--float-precision fp16 --layer '/head/*=fp32'",
)
def quantize(session: Session, options: QuantizeCommand) -> None:
    from ..compiler.quantize.quantize import quantize as quantize_model

    artifact = quantize_model(options.model, options.output, options, progress=session.progress)
    present_artifact(
        session, artifact, *_details(artifact.manifest.proof, options.precision, verbose=session.verbose)
    )


def _details(proof: object, precision: str, *, verbose: bool) -> list[str]:
    assert isinstance(proof, dict)
    lines = _search_lines(proof, verbose=verbose)
    for kind, operators in proof.get("nodes_by_precision", {}).items():
        if operators:
            counts = ", ".join(f"{count} {operator}" for operator, count in operators.items())
            lines.append(f"{kind}: {counts}")
    if "quantized" in proof:
        tables = {"lookup tables": len(proof.get("tables", ()))}
        quantized = {**proof["quantized"], **tables}
        counts = ", ".join(f"{count} {operator}" for operator, count in quantized.items() if count)
        lines.append(f"{precision}: {counts}")
    return lines + left_in_float_lines(proof, "the manifest")


def _search_lines(proof: dict[str, Any], *, verbose: bool) -> list[str]:
    """Return the tried candidates and the number of smoothed tensors; with `verbose`, also their names."""
    lines = [
        f"tried: {trial['tried']}: {trial.get('refused') or '{:.1f} dB'.format(trial['snr_db'])}"
        for trial in proof.get("search", [])
    ]
    smoothed, left_alone = proof.get("smoothed", {}), proof.get("left_alone", {})
    if smoothed:
        lines.append(
            f"smoothed: {counted(len(smoothed), 'tensor')}, {counted(len(left_alone), 'product')} left alone"
        )
    if verbose:
        lines += [f"smoothed: {name} ({how})" for name, how in smoothed.items()]
        lines += [f"not smoothed: {name} ({reason})" for name, reason in left_alone.items()]
    return lines


@verb(
    BuildCommand,
    "qcompile build model.onnx --target onnxruntime -o model.cpu.onnx",
    "qcompile build model.onnx --target tensorrt-rtx --precision fp16 --gpu sm86,sm89 -o model.engine",
    "qcompile build model.onnx --target tensorrt-rtx --precision int8 --ranges model.ranges "
    "--gpu sm86 -o model.engine",
    "qcompile build model.onnx --target tensorrt --precision int8 --float-precision fp16 "
    "--ranges model.ranges --profile x:1x3x224x224..8x3x224x224..32x3x224x224 -o model.engine",
    "qcompile build model.onnx --target tensorrt --precision int8 --calibrator native "
    "--data data.py:samples -o model.engine",
    "qcompile build model.onnx --target tensorrt-rtx --gpu sm89 --precision best --ranges model.ranges "
    "--dry-run -o model.engine",
    "qcompile build model.py:build --target torchscript --input x:1x3x224x224 -o model.pt",
)
def build(session: Session, options: BuildCommand) -> None:
    from ..building.build import build as build_artifact
    from ..building.build import plan

    if options.dry_run:
        planned = plan(options.model, options, progress=session.progress)
        session.json(planned)
        target, precision = planned.pop("target"), planned.pop("precision")
        passes = planned.pop("passes")
        session.say(f"{options.output} would be built for {target}, {precision}; nothing was written")
        for name, value in planned.items():
            if value not in ({}, [], ""):
                session.say(f"  {name}: {value}")
        assert isinstance(passes, Mapping), "name to the number of nodes that it changed"
        for number, (name, changed) in enumerate(passes.items() if session.verbose else (), 1):
            session.say(f"  pass {number}: {name}: {f'{changed} changed' if changed else 'nothing to do'}")
        return
    try:
        artifact = build_artifact(options.model, options.output, options, progress=session.progress)
    except IntentNotReached as error:
        _note_layers(session, error.data.get("proof", {}))
        raise
    _note_layers(session, artifact.manifest.proof)
    proof, precision = artifact.manifest.proof, artifact.manifest.precision
    lines = [
        *_computing_lines(proof, precision),
        *profile_lines(proof),
    ]
    if proof.get("engine_layers"):
        lines.append(
            f"engine: {counted(proof['engine_layers'], 'layer')} ({proof['fused_layers']} fused), "
            f"{counted(proof['tactics'], 'tactic')}, "
            f"{bytes_text(float(str(proof['device_memory_bytes'])))} of device memory"
        )
    elif artifact.manifest.kind == "engine" and not proof.get("has_run"):
        lines.append("not run: verified only by the types of the network")
    present_artifact(session, artifact, *lines)


def _computing_lines(proof: Mapping[str, Any], precision: str) -> list[str]:
    """Return count and share of the layers that compute in `precision`, and the float ones with reasons."""
    facts = proof.get("computing_layers")
    if facts is None:
        counts = f"{proof['reached_in_precision']} of {proof['planned_in_precision']}"
        return [f"proof: {counts} layers that compute are {precision}{_unreported(proof)}"]
    share = f", {facts['share']:.1%} of the {facts['weighed_by']}" if facts["weighed_by"] != "layers" else ""
    counts = f"{facts['in_precision']} of {facts['all']}"
    lines = [f"proof: {counts} layers that compute are {precision}{share}{_unreported(proof)}"]
    floats = sorted(facts["in_float"].items(), key=lambda layer: -layer[1]["share"])
    texts = [f"in float: {name} ({layer['share']:.1%}: {layer['reason']})" for name, layer in floats]
    return lines + first_lines(texts, "in float", "the manifest")


def _unreported(proof: Mapping[str, object]) -> str:
    """Return the number of layers that the runtime does not report, and the evidence of their precision."""
    layers, evidence = proof.get("unreported"), proof.get("evidence")
    if not (isinstance(layers, dict) and layers):
        return ""
    return f", {len(layers)} unreported" + (f" ({evidence})" if evidence else "")


def _note_layers(session: Session, proof: object) -> None:
    """With `-v`, print every missed or unreported layer; the error message names only the largest one."""
    assert isinstance(proof, Mapping), "a manifest's, or an error's"
    for kind in ("missed", "unreported") if session.verbose else ():
        layers = proof.get(kind)
        for name, about in layers.items() if isinstance(layers, dict) else ():
            session.note(f"{kind}: {name}: {about['share']:.1%}: {about['reason']}")


@verb(
    ReproduceCommand,
    "qcompile reproduce model.onnx --target openvino --precision int8 --ranges model.ranges -o fault/",
    "qcompile reproduce model.int8.onnx --target openvino --precision int8 --data samples.npz -o fault/",
    "qcompile reproduce model.onnx --target tensorrt-rtx --gpu sm86 --max-time 1800 -o fault/",
)
def reproduce(session: Session, options: ReproduceCommand) -> None:
    from ..building.build import reproduce as write_reproducer

    reproducer = write_reproducer(options.model, options.output, options, progress=session.progress)
    nodes = f"{reproducer.nodes} of {counted(reproducer.nodes_before, 'node')}"
    session.json({**asdict(reproducer), "folder": str(reproducer.folder)})
    session.say(f"{options.target} {reproducer.failure.kind}, {reproducer.way}: {reproducer.failure.words}")
    session.say(f"{reproducer.folder}: {nodes} show it, found in {counted(reproducer.trials, 'trial')}")
    session.say(f"run it with the runtime alone: cd {reproducer.folder} && python run.py")


@verb(
    RefitCommand,
    "qcompile build model.onnx --target tensorrt --precision fp16 --refit -o model.engine",
    "qcompile refit model.engine retrained.onnx -o retrained.engine",
    "qcompile build model.onnx --target tensorrt --strip-weights -o small.engine",
    "qcompile refit small.engine model.onnx -o model.engine",
)
def refit(session: Session, options: RefitCommand) -> None:
    from ..building.build import refit as refit_engine

    artifact = refit_engine(options.engine, options.model, options.output, progress=session.progress)
    present_artifact(session, artifact, f"weights of {options.model}")


@click.group(cls=OrderedGroup)
def ranges() -> None:
    """Work with the ranges files that `qcompile calibrate` writes."""


@verb(
    ShowRangesCommand,
    "qcompile ranges show model.ranges",
    "qcompile ranges show model.ranges --method mse --top 10 --plot worst.svg",
    short_help="show tensors with their thresholds, the largest error first",
)
def show(session: Session, options: ShowRangesCommand) -> None:
    file, plot, tensors = options.file, options.plot, options.tensors
    from ..bench.report.range_plots import SUFFIX, plot_ranges, summarize
    from ..calibration import load_ranges, parse_method
    from ..core.files import writing

    if plot is not None and plot.suffix != SUFFIX:
        raise Refused("plot", f"{SUFFIX} is required", value=str(plot))
    stored = load_ranges(file)
    method = parse_method(options.method) if options.method else stored.method
    if method.name != "percentile":
        method = replace(method, percentile=stored.method.percentile)
    stored.method = method
    session.progress("choose thresholds")
    summaries = summarize(stored, symmetric=options.target == "tensorrt")
    for name in tensors:
        if name in stored.shared:
            shared = ", ".join(stored.shared[name])
            raise Refused("tensors", f"takes its range from {shared}", value=name, hint=f"`tensors` {shared}")
        if name not in stored.histograms:
            raise Refused("tensors", "was not observed", value=name, hint="leave it out to see all")
    summaries = [summary for summary in summaries if not tensors or summary.tensor in tensors]
    shown_summaries = summaries[: options.top] if options.top else summaries
    session.json(
        {
            "model": stored.model,
            "samples": stored.samples,
            "method": str(method),
            "target": options.target,
            "tensors": [summary.as_json() for summary in shown_summaries],
            "shared": {name: list(sources) for name, sources in stored.shared.items()},
            "skipped": dict(stored.skipped),
        }
    )
    counts = f"{counted(stored.samples, 'sample')}, {counted(len(summaries), 'tensor')}"
    session.say(f"{file}  {counts}, {method} for {options.target}")
    _print_summaries(session, shown_summaries)
    for name, reason in stored.skipped.items():
        session.say(f"  skipped {name}: {reason}")
    if plot is not None:
        session.progress("draw")
        with writing(plot) as path:
            plot_ranges(stored, summaries[: options.top or 12], path)
        session.say(f"{plot}")


def _print_summaries(session: Session, summaries: list[TensorSummary]) -> None:
    if not summaries:
        return
    methods = list(summaries[0].amax)
    columns = [f"amax\n{name}" for name in methods]
    table = make_table("", "tensor", "min", "max", *columns, "clipped", "SNR", spare=columns[::-1])
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
    from ..calibration.ranges_file import merge_files

    artifact = merge_files(options.files, options.output, progress=session.progress)
    samples = counted(artifact.manifest.proof["samples"], "sample")
    present_artifact(session, artifact, f"{samples} of {counted(len(options.files), 'file')}")


@verb(
    RangesCacheCommand,
    "qcompile ranges cache model.ranges -o model.cache --tensorrt 8.5.3",
    short_help="write TensorRT's calibration cache",
)
def cache(session: Session, options: RangesCacheCommand) -> None:
    from ..calibration import load_ranges, parse_method
    from ..calibration.tensorrt_cache import format_cache
    from ..core.files import write_text

    stored = load_ranges(options.file)
    method = parse_method(options.method) if options.method else None
    text = format_cache(stored, version=options.version, calibrator=options.calibrator, method=method)
    write_text(options.output, text)
    lines = text.splitlines()
    session.json({"path": str(options.output), "header": lines[0], "tensors": len(lines) - 1})
    session.say(f"{options.output}  {lines[0]}, {counted(len(lines) - 1, 'tensor')}")


for _command in (show, merge, cache):
    ranges.add_command(_command)
