"""How a finished artifact is shown: what it is, what was checked, what to know."""

from __future__ import annotations

from ..artifact import Artifact
from .session import Session
from .tables import bytes_text


def present_artifact(session: Session, artifact: Artifact, *details: str) -> None:
    """Print an artifact's path, size, checks and warnings, or its manifest as JSON."""
    manifest = artifact.manifest
    session.json({"path": str(artifact.path), **manifest.as_json()})
    session.say(f"{artifact.path}  {bytes_text(manifest.size_bytes)}  {manifest.precision}".rstrip())
    if manifest.io is not None:
        for word, tensors in (("in ", manifest.io.inputs), ("out", manifest.io.outputs)):
            for tensor in tensors:
                session.say(f"  {word} {tensor}")
    for detail in details:
        session.say(f"  {detail}")
    for check in manifest.checks:
        session.say(f"  checked: {check.name}: {check.detail}")
    session.warn(manifest.warnings)
