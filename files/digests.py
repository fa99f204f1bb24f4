"""Files told apart by digest, and the files that belong to one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from .storage import reading

_CHUNK_BYTES = 1 << 20


def digest_files(paths: Sequence[Path]) -> str:
    """Return "sha256:..." over the contents of files, in the given order."""
    total = hashlib.sha256()
    for path in paths:
        with reading(path), path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                total.update(chunk)
    return f"sha256:{total.hexdigest()}"


def manifest_path(path: Path) -> Path:
    """Return where the manifest of an artifact lies."""
    return path.with_name(path.name + ".json")


def side_files(path: Path) -> list[Path]:
    """Return the files that belong to an artifact beside its main file."""
    data = path.with_name(path.name + ".data")
    return [data] if data.is_file() else []
