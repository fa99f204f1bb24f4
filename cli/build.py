"""`qcompile build`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import IntentNotReached
from .present import present_artifact
from .session import Session, command_options, examples, layer_precisions, split
from .tables import bytes_text
from .tensorrt_options import tensorrt_options

if TYPE_CHECKING:
    from ..engines.tensorrt.options import TensorRTOptions


@click.command(
    short_help="build for a target, prove the precision",
    epilog=examples(
        "qcompile build model.onnx --target onnxruntime -o model.cpu.onnx",
        "qcompile build model.onnx --target tensorrt-rtx --precision fp16 --gpu sm86,sm89 -o model.engine",
        "qcompile build model.onnx --target tensorrt-rtx --precision int8 --ranges model.ranges "
        "--gpu sm86 -o model.engine",
        "qcompile build model.onnx --target tensorrt --precision int8 --rest fp16 --ranges model.ranges "
        "--profile x:1x3x224x224..8x3x224x224..32x3x224x224 -o model.engine",
        "qcompile build model.onnx --target tensorrt --precision int8 --calibrator native "
        "--data data.py:samples -o model.engine",
        "qcompile build model.onnx --target tensorrt-rtx --gpu sm89 --precision best --ranges model.ranges "
        "--dry-run -o model.engine",
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
    type=click.Choice(["fp32", "tf32", "fp16", "bf16", "int8", "fp8", "int4", "best"]),
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
@click.option(
    "--layer",
    "layers",
    multiple=True,
    metavar="PATTERN=PRECISION",
    help="Precision of layers by name, glob or operator type; repeat.",
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
    type=click.Choice(["ours", "native", "entropy", "minmax"]),
    help="TensorRT 8.5 to 10: read our scales (--ranges), or calibrate by itself (--data), instead of Q/DQ.",
)
@click.option("--data", help="Samples to judge INT8 and check the artifact on, or for --calibrator.")
@click.option("--calibration-cache", type=click.Path(path_type=Path), help="Keep the scales it found.")
@click.option("--allow-fallback", is_flag=True, help="Keep an artifact that missed its precision.")
@click.option("--strict", is_flag=True, help="Fail where one layer missed its precision.")
@click.option("--allow-loss", is_flag=True, help="Keep INT8 that loses more on --data than diff lets pass.")
@click.option("--trust", is_flag=True, help="Load a .pt2 that runs code when it is loaded.")
@click.option("--dry-run", is_flag=True, help="Parse, check, and say what would be built.")
@tensorrt_options
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
    layers: tuple[str, ...],
    gpu: tuple[str, ...],
    min_shapes: tuple[str, ...],
    opt_shapes: tuple[str, ...],
    max_shapes: tuple[str, ...],
    inputs: tuple[str, ...],
    threads: int,
    allow_fallback: bool,
    strict: bool,
    allow_loss: bool,
    calibrator: str | None,
    data: str | None,
    calibration_cache: Path | None,
    trust: bool,
    dry_run: bool,
    tensorrt: TensorRTOptions | None,
) -> None:
    """Build MODEL for a target and prove that what came out is what was asked for."""
    from ..intent import build_intent, plan_intent
    from ..model.pt2_archive import trusting
    from ..preparation import Intent
    from ..shapes import parse_shapes

    intent = Intent(
        model,
        target,
        precision,
        ranges=ranges,
        method=method,
        rest=rest,
        layers=layer_precisions(layers),
        gpus=split(gpu),
        min_shapes=parse_shapes(_list(min_shapes), option="--min-shapes"),
        opt_shapes=parse_shapes(_list(opt_shapes), option="--opt-shapes"),
        max_shapes=parse_shapes(_list(max_shapes), option="--max-shapes"),
        inputs=inputs,
        threads=threads,
        calibrator=calibrator or "",
        data=data,
        options=tensorrt,
        strict=strict,
        allow_loss=allow_loss,
    )
    if dry_run:
        _present_plan(session, plan_intent(intent, progress=session.progress), output)
        return
    try:
        with trusting(trust):
            artifact = build_intent(
                intent,
                output,
                allow_fallback=allow_fallback,
                calibration_cache=calibration_cache,
                progress=session.progress,
            )
    except IntentNotReached as error:
        _note_layers(session, error.data.get("proof", {}))
        raise
    _note_layers(session, artifact.manifest.proof)
    proof, asked = artifact.manifest.proof, artifact.manifest.precision
    lines = [
        f"proof: {proof['reached_in_precision']} of {proof['planned_in_precision']} layers that "
        f"compute are {asked}"
    ]
    if proof.get("engine_layers"):
        lines.append(
            f"engine: {proof['engine_layers']} layers ({proof['fused_layers']} fused), {proof['tactics']} "
            f"tactics, {bytes_text(float(str(proof['device_memory_bytes'])))} of device memory"
        )
    elif artifact.manifest.kind == "engine" and not proof.get("has_run"):
        lines.append("it has not been run: the proof is the types of the network")
    present_artifact(session, artifact, *lines)


def _note_layers(session: Session, proof: object) -> None:
    """With -v, every layer that missed or is unreported; a message names the largest alone."""
    assert isinstance(proof, Mapping), "a manifest's, or an error's"
    for kind in ("missed", "unreported") if session.verbose else ():
        layers = proof.get(kind)
        for name, about in layers.items() if isinstance(layers, dict) else ():
            session.note(f"{kind}: {name}: {about['share']:.1%}: {about['reason']}")


def _present_plan(session: Session, plan: dict[str, object], output: Path) -> None:
    session.json(plan)
    session.say(f"{output} would be built for {plan['target']}, {plan['precision']}; nothing was written")
    for name, value in plan.items():
        if name not in ("target", "precision") and value not in ({}, [], ""):
            session.say(f"  {name}: {value}")


def _list(values: tuple[str, ...]) -> list[str]:
    """trtexec separates inputs by commas, which also stand inside shapes: split before a name."""
    import re

    return [part for value in values for part in re.split(r",(?=[^,\[\]]*:)", value) if part]
