"""Refuse a damaged archive of PyTorch or Keras before its package reads it.

`torch.jit.load` and `torch.export.load` check no CRC-32: a weight with a byte changed is exported, and
computes something else. Every member is read once, a chunk at a time, and compared with the sum that its
writer noted. The sums find accidents; who changes a file on purpose writes new ones.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections import Counter
from pathlib import Path, PurePosixPath

from ..errors import ModelError, first_line
from ..progress import Progress, silent

MOST_RATIO = 100
"""How many times its own size an archive may unpack to, from `FREE_BYTES` on."""
FREE_BYTES = 64 << 20
_BEGINNING = b"PK\x03\x04"
_CHUNK_BYTES = 1 << 20
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, RuntimeError,
)  # fmt: skip


def is_archive(path: Path) -> bool:
    """Return whether a file begins as a zip archive does, whatever the state of its end."""
    with path.open("rb") as file:
        return file.read(len(_BEGINNING)) == _BEGINNING


def check_archive(path: Path, *, what: str, hint: str, progress: Progress = silent) -> None:
    """Read every member of a zip archive once.

    Args:
        path: The file.
        what: What it should be, for messages: "a TorchScript archive".
        hint: How to get a whole one.
        progress: Told of the megabytes that are checked.

    Raises:
        ModelError: If its directory or a member is damaged, a member lies outside of the archive or comes
            twice, or it unpacks to much more than itself. Data: `file`, `member`.
    """
    member = ""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_directory(archive, path, hint)
            members = archive.infolist()
            done, total = 0, sum(one.file_size for one in members)
            for one in members:
                member = one.filename
                with archive.open(one) as file:  # which compares the CRC-32 at the end
                    while chunk := file.read(_CHUNK_BYTES):
                        done += len(chunk)
                        progress("check the archive, MB", done >> 20, total >> 20)
    except _DAMAGE as error:
        where = f"member {member!r} is damaged" if member else "its directory is damaged"
        raise ModelError(
            f"{path}: not {what} that can be read: {where} ({first_line(error)})",
            hint=hint,
            file=path,
            member=member,
        ) from error


def _check_directory(archive: zipfile.ZipFile, path: Path, hint: str) -> None:
    members = archive.infolist()
    names = Counter(member.orig_filename for member in members)
    for name, count in names.items():
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if ".." in parts or name.startswith(("/", "\\")) or "\0" in name:
            raise ModelError(f"{path}: member {name!r} lies outside of the archive", hint=hint, file=path)
        if count > 1:
            raise ModelError(f"{path}: holds member {name!r} more than once", hint=hint, file=path)
    size = path.stat().st_size
    unpacked = sum(member.file_size for member in members)
    if unpacked > max(MOST_RATIO * size, FREE_BYTES):
        raise ModelError(
            f"{path}: its {size} bytes unpack to {unpacked}; at most {MOST_RATIO} times that is supported",
            hint=hint,
            file=path,
        )
