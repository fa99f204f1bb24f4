"""`qcompile sign`."""

from __future__ import annotations

from ..spec.signing import SignCommand
from .session import Session
from .verb import verb


@verb(
    SignCommand,
    "qcompile sign model.engine --key team.key --new-key",
    "qcompile sign model.engine model.int8.onnx --key team.key",
)
def sign(session: Session, given: SignCommand) -> None:
    """Print which key signed what."""
    from ..artifact.signing import read_key, signature_path, write_key
    from ..artifact.signing import sign as sign_artifact

    key = write_key(given.key) if given.new_key else read_key(given.key)
    session.warn(key.warnings)
    signed = {str(path): sign_artifact(path, key) for path in given.artifacts}
    session.json({"key": key.name, "signed": {path: one.signature for path, one in signed.items()}})
    for path in given.artifacts:
        session.say(f"{signature_path(path)}  signed with key {key.name}")
