"""`qcompile quantize`."""

from __future__ import annotations

from pathlib import Path

import click

from .present import present_artifact
from .session import Session, command_options, examples, split


@click.command(
    short_help="INT8 for a target, or FP16",
    epilog=examples(
        "qcompile quantize model.onnx -o model.int8.onnx --ranges model.ranges",
        "qcompile quantize model.onnx -o model.trt.onnx --ranges model.ranges --target tensorrt",
        "qcompile quantize model.onnx -o model.dyn.onnx --mode dynamic",
        "qcompile quantize model.onnx -o model.fp16.onnx --precision fp16",
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="ONNX file.")
@click.option("--ranges", type=click.Path(path_type=Path), help="Ranges file, for static INT8.")
@click.option(
    "--target",
    type=click.Choice(["onnxruntime", "tensorrt"]),
    default="onnxruntime",
    show_default=True,
    help="What the result is for: it decides where Q/DQ goes.",
)
@click.option("--precision", type=click.Choice(["int8", "fp16"]), default="int8", show_default=True)
@click.option("--mode", type=click.Choice(["static", "dynamic"]), default="static", show_default=True)
@click.option("--method", help="Another method than the ranges file's: minmax, percentile:99.9, ...")
@click.option("--exclude", multiple=True, help="Name, glob or operator type that stays in float.")
@click.option("--data", help="Samples to measure the signal-to-noise ratio on.")
@command_options
def quantize(
    session: Session,
    model: Path,
    output: Path,
    ranges: Path | None,
    target: str,
    precision: str,
    mode: str,
    method: str | None,
    exclude: tuple[str, ...],
    data: str | None,
) -> None:
    """Quantize an ONNX MODEL to INT8 for a target, or convert it to FP16."""
    from ..compiler import quantize as quantize_model

    artifact = quantize_model(
        model,
        output,
        ranges=ranges,
        target=target,  # type: ignore[arg-type]
        precision=precision,  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        method=method,
        exclude=split(exclude),
        data=data,
        progress=session.progress,
    )
    present_artifact(session, artifact, *_details(artifact.manifest.proof))


def _details(proof: object) -> list[str]:
    assert isinstance(proof, dict)
    lines = []
    for precision, kinds in proof.get("nodes_by_precision", {}).items():
        if kinds:
            found = ", ".join(f"{count} {operator}" for operator, count in kinds.items())
            lines.append(f"{precision}: {found}")
    if "quantized" in proof:
        found = ", ".join(f"{count} {operator}" for operator, count in proof["quantized"].items())
        lines.append(f"int8: {found}")
    left = proof.get("left_in_float", {})
    lines += [f"left in float: {name} ({reason})" for name, reason in list(left.items())[:10]]
    if len(left) > 10:
        lines.append(f"left in float: {len(left) - 10} more, see the manifest")
    return lines
