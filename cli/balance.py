"""`qcompile balance`."""

from __future__ import annotations

from pathlib import Path

import click

from .present import present_artifact
from .session import Session, command_options, examples


@click.command(
    short_help="even out channels before INT8",
    epilog=examples(
        "qcompile balance model.onnx -o model.even.onnx --data data.py:calibration",
        "qcompile calibrate model.even.onnx -o model.ranges --data data.py:calibration",
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="ONNX file.")
@click.option("--data", help="Samples: the largest value of each channel is found on them.")
@click.option("--samples", type=int, default=32, show_default=True, help="Use at most so many.")
@command_options
def balance(session: Session, model: Path, output: Path, data: str | None, samples: int) -> None:
    """Move what is hard to quantize from activations into weights; outputs stay the same."""
    from ..compiler import balance as balance_model

    artifact = balance_model(model, output, data=data, samples=samples, progress=session.progress)
    proof = artifact.manifest.proof
    smoothed, left = proof.get("smoothed", {}), proof.get("left alone", {})
    assert isinstance(smoothed, dict), "the manifest's own form"
    assert isinstance(left, dict), "the manifest's own form"
    counts = {"equalized pairs": proof["equalized pairs"], "smoothed": len(smoothed), "left alone": len(left)}
    lines = [", ".join(f"{name}: {count}" for name, count in counts.items())]
    lines += [f"smoothed: {name} ({how})" for name, how in smoothed.items()]
    lines += [f"left alone: {name} ({reason})" for name, reason in left.items()]
    present_artifact(session, artifact, *lines)
