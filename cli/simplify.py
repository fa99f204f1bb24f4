"""`qcompile simplify`."""

from __future__ import annotations

from pathlib import Path

import click

from .present import present_artifact
from .session import Session, command_options, examples


@click.command(
    short_help="fold and fuse, outputs stay equal",
    epilog=examples(
        "qcompile simplify model.onnx -o model.simple.onnx",
        "qcompile simplify model.onnx -o model.simple.onnx --data samples.npz",
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="ONNX file.")
@click.option("--data", help="Samples to check the outputs on; made input otherwise.")
@command_options
def simplify(session: Session, model: Path, output: Path, data: str | None) -> None:
    """Fold and fuse what an ONNX MODEL computes for nothing; outputs stay equal, axes dynamic."""
    from ..compiler import simplify as simplify_model

    artifact = simplify_model(model, output, data=data, progress=session.progress)
    proof = artifact.manifest.proof
    removed = proof["removed"]
    assert isinstance(removed, dict)
    gone = ", ".join(f"{-count:+d} {name}" for name, count in removed.items()) or "nothing to remove"
    present_artifact(session, artifact, f"nodes: {proof['nodes_before']} to {proof['nodes_after']} ({gone})")
