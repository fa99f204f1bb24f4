"""The kernels that TensorRT-RTX compiled for an engine, in a file beside it: the next process need not.

TensorRT-RTX itself refuses a cache of another version, GPU or driver (`IRuntimeCache.deserialize` of 1.7).
What it cannot know is whether the file is whole and which engine it is of: the header says both.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ....errors import InvalidOption, StorageError
from ....files import digest_files, writing

SUFFIX = ".runtime_cache"
_MAGIC = b"qcompile runtime cache 1\n"


class RuntimeCacheFile:
    """Loads and saves the runtime cache of one engine.

    Args:
        engine: The engine's file.
        version: TensorRT-RTX's.
        digest: The engine's, where it is known and was checked.

    Attributes:
        path: The cache's file.
        note: What became of the file that was there, for the user; empty where there was none.
    """

    def __init__(self, engine: Path, version: str, digest: str = "") -> None:
        self.path = engine.with_name(engine.name + SUFFIX)
        self.note = ""
        self._about = {"engine": digest or digest_files([engine]), "tensorrt_rtx": version}
        self._blob_digest = ""

    def load(self, cache: Any) -> None:
        """Fill a runtime cache from the file; one that cannot be used is left empty, and `note` says why."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            self.note = f"{self.path}: cannot be read ({error.strerror}); kernels are compiled again"
            return
        blob = self._blob(content)
        reason = "it is of another engine or version, or damaged"
        if blob is not None:
            if cache.deserialize(blob):
                self._blob_digest = _digest(blob)
                self.note = f"kernels are those of {self.path.name}; the first start without it compiles them"
                return
            reason = "TensorRT-RTX refuses it, as of another GPU or driver"
        self.note = f"{self.path} is not used: {reason}; kernels are compiled again"

    def save(self, cache: Any) -> None:
        """Write what was compiled since, whole or not at all.

        Of several processes the last one wins: each of them has what it needs itself.
        """
        serialized = cache.serialize()
        blob = b"" if serialized is None else bytes(serialized)
        if not blob or _digest(blob) == self._blob_digest:
            return
        header = json.dumps({**self._about, "sha256": _digest(blob)}).encode()
        try:
            with writing(self.path) as temporary:
                temporary.write_bytes(_MAGIC + header + b"\n" + blob)
        except (OSError, InvalidOption, StorageError):
            return  # a cache is no result: where it cannot be kept, the next process compiles again
        self._blob_digest = _digest(blob)

    def _blob(self, content: bytes) -> bytes | None:
        """What TensorRT-RTX wrote; None where the header does not vouch for it."""
        if not content.startswith(_MAGIC):
            return None
        header, _, blob = content[len(_MAGIC) :].partition(b"\n")
        try:
            about = json.loads(header)
        except (ValueError, RecursionError):
            return None
        return blob if about == {**self._about, "sha256": _digest(blob)} else None


def _digest(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()
