"""`qcompile calibrate`."""

from __future__ import annotations

from pathlib import Path

import click

from .present import present_artifact
from .session import Session, command_options, examples


@click.command(
    short_help="observe activations over samples",
    epilog=examples(
        "qcompile calibrate model.onnx --data samples.npz -o model.ranges",
        "qcompile calibrate model.onnx --data data.py:calibration -o model.ranges --method percentile:99.9",
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", required=True, help=".npz, folder of .npy/.npz, or file.py:function.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Ranges file.")
@click.option(
    "--method",
    default="entropy",
    show_default=True,
    help="minmax, entropy, or percentile[:NUMBER]; can be chosen again when quantizing.",
)
@click.option("--samples", type=int, help="Use at most this many.")
@click.option("--batch-size", type=int, help="Samples per inference, where the model leaves it open.")
@click.option("--threads", type=int, default=0, help="Threads of ONNX Runtime; 0 lets it choose.")
@command_options
def calibrate(
    session: Session,
    model: Path,
    data: str,
    output: Path,
    method: str,
    samples: int | None,
    batch_size: int | None,
    threads: int,
) -> None:
    """Observe the activations of an ONNX MODEL over samples, in one pass and bounded memory."""
    from ..calibration import calibrate as calibrate_model

    artifact = calibrate_model(
        model,
        data,
        output,
        method=method,
        samples=samples,
        batch_size=batch_size,
        threads=threads,
        progress=session.progress,
    )
    proof = artifact.manifest.proof
    present_artifact(session, artifact, f"{proof['tensors']} tensors over {proof['samples']} samples")
