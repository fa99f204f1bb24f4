"""`qcompile refit`."""

from __future__ import annotations

from ..spec.artifacts import RefitCommand
from .session import Session
from .tables import present_artifact
from .verb import verb


@verb(
    RefitCommand,
    "qcompile build model.onnx --target tensorrt --precision fp16 --refit -o model.engine",
    "qcompile refit model.engine retrained.onnx -o retrained.engine",
    "qcompile build model.onnx --target tensorrt --strip-weights -o small.engine",
    "qcompile refit small.engine model.onnx -o model.engine",
)
def refit(session: Session, given: RefitCommand) -> None:
    """Print the engine and where its weights are from."""
    from ..building import refit as refit_engine

    artifact = refit_engine(given.engine, given.model, given.output, progress=session.progress)
    present_artifact(session, artifact, f"weights of {given.model}")
