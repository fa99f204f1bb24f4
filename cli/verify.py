"""`qcompile verify`."""

from __future__ import annotations

from ..spec.signing import VerifyCommand
from .session import Session
from .verb import verb


@verb(VerifyCommand, "qcompile verify model.engine --key team.key")
def verify(session: Session, given: VerifyCommand) -> None:
    """Print what was verified; the first that is not as it was signed is an error."""
    from ..artifact.signing import read_key
    from ..artifact.signing import verify as verify_artifact

    key = read_key(given.key)
    session.warn(key.warnings)
    found = {str(path): verify_artifact(path, key).manifest for path in given.artifacts}
    session.json({"key": key.name, "verified": {path: one.digest for path, one in found.items()}})
    for path, manifest in found.items():
        session.say(f"{path}  signed with key {key.name}, {manifest.digest[:19]}…")
