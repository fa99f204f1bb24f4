"""`qcompile quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .present import present_artifact
from .session import Session, command_options, examples, layer_precisions, split


@click.command(
    short_help="INT8, FP8, INT4, FP16 or BF16, for a target",
    epilog=examples(
        "qcompile quantize model.onnx -o model.int8.onnx --ranges model.ranges",
        "qcompile quantize model.onnx -o model.trt.onnx --ranges model.ranges --target tensorrt",
        "qcompile quantize model.onnx -o model.dyn.onnx --mode dynamic",
        "qcompile quantize model.onnx -o model.int4.onnx --mode weights --precision int4 --data data.npz "
        "--rounding gptq",
        "qcompile quantize model.onnx -o model.fp16.onnx --precision fp16 --data data.npz",
        "qcompile quantize model.onnx -o mixed.onnx --ranges model.ranges --target tensorrt --rest fp16 "
        "--layer '/head/*=fp32'",
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="ONNX file.")
@click.option("--ranges", type=click.Path(path_type=Path), help="Ranges file, for static INT8 and FP8.")
@click.option(
    "--target",
    type=click.Choice(["onnxruntime", "openvino", "tensorrt"]),
    default="onnxruntime",
    show_default=True,
    help="What the result is for: it decides where Q/DQ goes.",
)
@click.option(
    "--precision",
    type=click.Choice(["int8", "fp8", "int4", "fp16", "bf16"]),
    default="int8",
    show_default=True,
    help="fp8 is E4M3, for TensorRT on compute capability 8.9 and newer.",
)
@click.option(
    "--mode",
    type=click.Choice(["static", "dynamic", "weights"]),
    default="static",
    show_default=True,
    help="For integers: calibrated, scaled while it runs, or weights alone.",
)
@click.option(
    "--processor",
    type=click.Choice(["vnni", "avx2", "arm"]),
    default="vnni",
    show_default=True,
    help="What static INT8 for onnxruntime will run on.",
)
@click.option("--method", help="Another method than the ranges file's: minmax, percentile:99.9, ...")
@click.option(
    "--weight-type",
    type=click.Choice(["int8", "uint8"]),
    default="int8",
    show_default=True,
    help="Of the weights in --mode dynamic.",
)
@click.option("--exclude", multiple=True, help="Name, glob or operator type that stays in float.")
@click.option("--only", multiple=True, help="Name, glob or operator type: nothing else is quantized.")
@click.option(
    "--layer",
    "layers",
    multiple=True,
    metavar="PATTERN=PRECISION",
    help="fp32, fp16, bf16 or int8 for a name, glob or operator type in static INT8.",
)
@click.option(
    "--rest",
    type=click.Choice(["fp32", "fp16", "bf16"]),
    default="fp32",
    show_default=True,
    help="What static INT8 or FP8 leaves in float becomes.",
)
@click.option(
    "--block-size",
    type=int,
    default=64,
    show_default=True,
    help="Weights that share a scale in --mode weights; 0: an output channel.",
)
@click.option(
    "--rounding",
    type=click.Choice(["rtn", "gptq"]),
    default="rtn",
    show_default=True,
    help="Of weights, in --mode weights and static INT8: to nearest, or against the samples of --data.",
)
@click.option(
    "--form",
    type=click.Choice(["nbits", "qdq"]),
    help="In --mode weights: ONNX Runtime's operators, or ONNX's own; what the target takes by default.",
)
@click.option(
    "--correct-bias/--no-correct-bias",
    default=True,
    help="Static INT8 takes its mean error on --data off the biases (on).",
)
@click.option(
    "--balance/--no-balance",
    default=True,
    help="Static INT8 evens channels out where the outputs on --data gain by it (on).",
)
@click.option(
    "--max-damage",
    type=float,
    metavar="DB",
    help="Static INT8 leaves layers in float, worst first, until the outputs on --data reach DB.",
)
@click.option("--data", help="Samples to measure the signal-to-noise ratio on, and to learn from.")
@click.option(
    "--allow-loss", is_flag=True, help="Keep a result that loses more on --data than diff lets pass."
)
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
    processor: str,
    weight_type: str,
    exclude: tuple[str, ...],
    only: tuple[str, ...],
    layers: tuple[str, ...],
    rest: str,
    block_size: int,
    rounding: str,
    form: str | None,
    correct_bias: bool,
    balance: bool,
    max_damage: float | None,
    data: str | None,
    allow_loss: bool,
) -> None:
    """Quantize an ONNX MODEL to INT8, FP8 or INT4 for a target, or convert it to FP16 or BF16."""
    from ..compiler import quantize as quantize_model
    from ..compiler.request import WeightOptions

    artifact = quantize_model(
        model,
        output,
        ranges=ranges,
        target=target,  # type: ignore[arg-type]
        precision=precision,  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        method=method,
        processor=processor,  # type: ignore[arg-type]
        exclude=split(exclude),
        only=split(only),
        layers=layer_precisions(layers),
        rest=rest,
        weights=WeightOptions(block_size, rounding, form or ""),
        correct_bias=correct_bias,
        balance=balance,
        max_damage=max_damage,
        weight_type=weight_type,  # type: ignore[arg-type]
        data=data,
        allow_loss=allow_loss,
        progress=session.progress,
    )
    present_artifact(
        session, artifact, *_details(artifact.manifest.proof, precision, verbose=session.verbose)
    )


def _details(proof: object, precision: str, *, verbose: bool) -> list[str]:
    assert isinstance(proof, dict)
    lines = _searched(proof, verbose=verbose)
    for kind, operators in proof.get("nodes_by_precision", {}).items():
        if operators:
            found = ", ".join(f"{count} {operator}" for operator, count in operators.items())
            lines.append(f"{kind}: {found}")
    if "quantized" in proof:
        found = ", ".join(f"{count} {operator}" for operator, count in proof["quantized"].items())
        lines.append(f"{precision}: {found}")
    left = proof.get("left_in_float", {})
    lines += [f"left in float: {name} ({reason})" for name, reason in list(left.items())[:10]]
    if len(left) > 10:
        lines.append(f"left in float: {len(left) - 10} more, see the manifest")
    return lines


def _searched(proof: dict[str, Any], *, verbose: bool) -> list[str]:
    """What was tried, and where channels were evened out; each place where that is asked for."""
    lines = [
        f"tried: {one['tried']}: {one['refused'] if 'refused' in one else '{:.1f} dB'.format(one['snr_db'])}"
        for one in proof.get("search", [])
    ]
    smoothed, left = proof.get("smoothed", {}), proof.get("left_alone", {})
    if smoothed:
        lines.append(f"smoothed: {len(smoothed)} tensors, {len(left)} products left alone")
    if verbose:
        lines += [f"smoothed: {name} ({how})" for name, how in smoothed.items()]
        lines += [f"not smoothed: {name} ({reason})" for name, reason in left.items()]
    return lines
