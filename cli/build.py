"""`qcompile build`."""

from __future__ import annotations

from pathlib import Path

import click

from .present import present_artifact
from .session import Session, command_options, examples, split


@click.command(
    short_help="build for a target, prove the precision",
    epilog=examples(
        "qcompile build model.onnx --target onnxruntime -o model.cpu.onnx",
        "qcompile build model.onnx --target tensorrt-rtx --precision fp16 --gpu sm86,sm89 -o model.engine",
        "qcompile build model.onnx --target tensorrt-rtx --precision int8 --ranges model.ranges "
        "--gpu sm86 -o model.engine",
        "qcompile build model.py:build --target torchscript --input x:1x3x224x224 -o model.pt",
    ),
)
@click.argument("model")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Artifact.")
@click.option(
    "--target", required=True, help="onnxruntime, openvino, tensorrt-rtx, tensorrt, or torchscript."
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "fp16", "bf16", "int8", "int4"]),
    default="fp32",
    show_default=True,
    help="The intent; a build that does not reach it fails.",
)
@click.option("--ranges", type=click.Path(path_type=Path), help="Quantize to INT8 with these first.")
@click.option("--method", help="Another method than the ranges file's.")
@click.option(
    "--rest",
    type=click.Choice(["fp32", "fp16", "bf16"]),
    default="fp32",
    show_default=True,
    help="What INT8 leaves in float is computed in (openvino, tensorrt-rtx, tensorrt).",
)
@click.option("--gpu", multiple=True, help="GPU to build for, such as sm86,sm89 (tensorrt-rtx).")
@click.option("--min-shapes", multiple=True, metavar="NAME:SHAPE", help="Smallest shape of an input.")
@click.option("--opt-shapes", multiple=True, metavar="NAME:SHAPE", help="Shape to optimize for.")
@click.option("--max-shapes", multiple=True, metavar="NAME:SHAPE", help="Largest shape of an input.")
@click.option("-i", "--input", "inputs", multiple=True, metavar="NAME:SHAPE[:DTYPE]",
              help="An input of a PyTorch MODEL.")  # fmt: skip
@click.option("--threads", type=int, default=0, help="Threads of a CPU runtime; 0 lets it choose.")
@click.option(
    "--calibrator",
    type=click.Choice(["ours", "entropy", "minmax"]),
    help="TensorRT 8.5 to 10: read our scales (--ranges), or calibrate by itself (--data), instead of Q/DQ.",
)
@click.option("--data", help="Samples for TensorRT's own calibrator.")
@click.option("--calibration-cache", type=click.Path(path_type=Path), help="Keep the scales it found.")
@click.option("--allow-fallback", is_flag=True, help="Keep an artifact that missed its precision.")
@command_options
def build(
    session: Session,
    model: str,
    output: Path,
    target: str,
    precision: str,
    ranges: Path | None,
    method: str | None,
    rest: str,
    gpu: tuple[str, ...],
    min_shapes: tuple[str, ...],
    opt_shapes: tuple[str, ...],
    max_shapes: tuple[str, ...],
    inputs: tuple[str, ...],
    threads: int,
    allow_fallback: bool,
    calibrator: str | None,
    data: str | None,
    calibration_cache: Path | None,
) -> None:
    """Build MODEL for a target and prove that what came out is what was asked for."""
    from ..intent import build as build_artifact
    from ..shapes import parse_shapes

    artifact = build_artifact(
        model,
        output,
        target=target,
        precision=precision,
        ranges=ranges,
        method=method,
        rest=rest,
        gpus=split(gpu),
        min_shapes=parse_shapes(_list(min_shapes), option="--min-shapes"),
        opt_shapes=parse_shapes(_list(opt_shapes), option="--opt-shapes"),
        max_shapes=parse_shapes(_list(max_shapes), option="--max-shapes"),
        inputs=inputs,
        threads=threads,
        allow_fallback=allow_fallback,
        calibrator=calibrator or "",
        data=data,
        calibration_cache=calibration_cache,
        progress=session.progress,
    )
    proof = artifact.manifest.proof
    lines = [
        f"proof: {proof['reached_in_precision']} of {proof['planned_in_precision']} layers that "
        f"compute are {precision}"
    ]
    if artifact.manifest.kind == "engine" and not proof.get("has_run"):
        lines.append("it has not been run: the proof is the types of the network")
    present_artifact(session, artifact, *lines)


def _list(values: tuple[str, ...]) -> list[str]:
    """trtexec separates inputs by commas, which also stand inside shapes: split before a name."""
    import re

    return [part for value in values for part in re.split(r",(?=[^,\[\]]*:)", value) if part]
