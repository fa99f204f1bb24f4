"""What a stage hands out: an artifact, and the manifest beside it."""

from .artifact import (
    Artifact,
    accept,
    accepting,
    checked_input,
    commit,
    digest_artifact,
    known_digest,
    load_artifact,
    size_bytes,
    tool_versions,
)  # fmt: skip
from .manifest import SCHEMA_VERSION, Check, Manifest, is_manifest, read_manifest

__all__ = [
    "SCHEMA_VERSION", "Artifact", "Check", "Manifest", "accept", "accepting", "checked_input", "commit",
    "digest_artifact", "is_manifest", "known_digest", "load_artifact", "read_manifest", "size_bytes",
    "tool_versions",
]  # fmt: skip
