"""`qcompile calibrate`."""

from __future__ import annotations

from pathlib import Path

import click

from .present import present_artifact
from .session import Session, command_options, examples, split


@click.command(
    short_help="observe activations over samples",
    epilog=examples(
        "qcompile calibrate model.onnx --data samples.npz -o model.ranges",
        "qcompile calibrate model.onnx --data data.py:calibration -o model.ranges --method percentile:99.9",
        "qcompile calibrate model.onnx --data images/ -o part2.ranges --shard 2/8",
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", required=True, help=".npz, folder of .npy/.npz, or file.py:function.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Ranges file.")
@click.option(
    "--method",
    default="auto",
    show_default=True,
    help="minmax, percentile[:NUMBER], entropy, mse or auto; can be chosen again when quantizing.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    help="What it will be quantized for: onnxruntime, openvino, tensorrt; all by default. Fewer is faster.",
)
@click.option("--samples", type=int, help="Use at most this many.")
@click.option("--shard", default="1/1", help="PART/PARTS: observe every PARTS-th sample; see ranges merge.")
@click.option("--threads", type=int, default=0, help="Threads in all; 0 takes one per core.")
@click.option("--fresh", is_flag=True, help="Do not go on from an interrupted calibration.")
@command_options
def calibrate(
    session: Session,
    model: Path,
    data: str,
    output: Path,
    method: str,
    targets: tuple[str, ...],
    samples: int | None,
    shard: str,
    threads: int,
    fresh: bool,
) -> None:
    """Observe the activations of an ONNX MODEL over samples, in one pass and bounded memory. Killed, it
    goes on where it was when it is run again."""
    from ..compiler.int8.placement import TARGETS
    from ..intent import calibrate as calibrate_model

    artifact = calibrate_model(
        model,
        data,
        output,
        targets=split(targets) or TARGETS,
        method=method,
        samples=samples,
        shard=shard,
        threads=threads,
        resume=not fresh,
        progress=session.progress,
    )
    proof = artifact.manifest.proof
    shared = f", {proof['shared']} more share their ranges" if proof["shared"] else ""
    present_artifact(session, artifact, f"{proof['tensors']} tensors over {proof['samples']} samples{shared}")
