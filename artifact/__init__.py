"""What a stage hands out: an artifact, and the manifest beside it."""

from .artifact import (
    SCHEMA_VERSION,
    Artifact,
    Check,
    Manifest,
    accept,
    accepting,
    checked_input,
    commit,
    digest_artifact,
    is_manifest,
    known_digest,
    load_artifact,
    read_manifest,
    size_bytes,
    tool_versions,
)  # fmt: skip

__all__ = [
    "SCHEMA_VERSION", "Artifact", "Check", "Manifest", "accept", "accepting", "checked_input", "commit",
    "digest_artifact", "is_manifest", "known_digest", "load_artifact", "read_manifest", "size_bytes",
    "tool_versions",
]  # fmt: skip
