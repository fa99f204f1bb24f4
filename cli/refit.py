"""`qcompile refit`."""

from __future__ import annotations

from pathlib import Path

import click

from .present import present_artifact
from .session import Session, command_options, examples


@click.command(
    short_help="new weights for a built engine",
    epilog=examples(
        "qcompile build model.onnx --target tensorrt --precision fp16 --refit -o model.engine",
        "qcompile refit model.engine retrained.onnx -o retrained.engine",
        "qcompile build model.onnx --target tensorrt --strip-weights -o small.engine",
        "qcompile refit small.engine model.onnx -o model.engine",
    ),
)
@click.argument("engine", type=click.Path(path_type=Path))
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Engine to write.")
@command_options
def refit(session: Session, engine: Path, model: Path, output: Path) -> None:
    """Give ENGINE the weights of MODEL, which has the same structure, without building again."""
    from ..intent import refit as refit_engine

    artifact = refit_engine(engine, model, output, progress=session.progress)
    present_artifact(session, artifact, f"weights of {model}")
