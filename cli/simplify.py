"""`qcompile simplify`."""

from __future__ import annotations

from ..spec.models import SimplifyCommand
from .session import Session
from .tables import present_artifact
from .verb import verb


@verb(
    SimplifyCommand,
    "qcompile simplify model.onnx -o model.simple.onnx",
    "qcompile simplify model.onnx -o model.simple.onnx --data samples.npz",
)
def simplify(session: Session, given: SimplifyCommand) -> None:
    """Print what was removed."""
    from ..compiler.simplify.simplify import simplify as simplify_model

    artifact = simplify_model(given.model, given.output, given, progress=session.progress)
    proof = artifact.manifest.proof
    removed = proof["removed"]
    assert isinstance(removed, dict)
    gone = ", ".join(f"{-count:+d} {name}" for name, count in removed.items()) or "nothing to remove"
    present_artifact(session, artifact, f"nodes: {proof['nodes_before']} to {proof['nodes_after']} ({gone})")
