"""Refuse a damaged archive of PyTorch or Keras before its package reads it.

`torch.jit.load` and `torch.export.load` check no CRC-32: a weight with a byte changed is exported, and
computes something else. The sums find accidents; who changes a file on purpose writes new ones.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections import Counter
from pathlib import Path, PurePosixPath

from ..errors import ModelError, first_line

MOST_RATIO = 100
"""How many times its own size an archive may unpack to, from `FREE_BYTES` on."""
FREE_BYTES = 64 << 20
DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, RuntimeError)
"""What readers of archives raise of damaged ones."""
_BEGINNING = b"PK\x03\x04"


def is_archive(path: Path) -> bool:
    """Return whether a file begins as a zip archive does, whatever the state of its end."""
    with path.open("rb") as file:
        return file.read(len(_BEGINNING)) == _BEGINNING


def check_archive(path: Path, *, what: str, hint: str) -> None:
    """Read every member of a zip archive once, and compare it with its CRC-32.

    Args:
        path: The file.
        what: What it should be, for messages: "a TorchScript archive".
        hint: How to get a whole one.
    """
    member, problem = "", "its directory is damaged"
    try:
        with zipfile.ZipFile(path) as archive:
            check_names(archive, path, hint)
            for info in archive.infolist():
                member, problem = info.filename, f"member {info.filename!r} is damaged"
                with archive.open(info) as file:
                    while file.read(1 << 20):
                        pass
    except DAMAGE as error:
        raise ModelError(
            f"{path}: not {what} that can be read: {problem} ({first_line(error)})",
            hint=hint,
            file=path,
            member=member,
        ) from error


def check_names(archive: zipfile.ZipFile, path: Path, hint: str = "") -> None:
    """Refuse members outside of the archive, that come twice, or that unpack to too much."""
    members = archive.infolist()
    for name, count in Counter(member.orig_filename for member in members).items():
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if ".." in parts or name.startswith(("/", "\\")) or "\0" in name:
            raise ModelError(f"{path}: member {name!r} lies outside of the archive", hint=hint, file=path)
        if count > 1:
            raise ModelError(f"{path}: holds member {name!r} more than once", hint=hint, file=path)
    size, unpacked = path.stat().st_size, sum(member.file_size for member in members)
    if unpacked > max(MOST_RATIO * size, FREE_BYTES):
        raise ModelError(
            f"{path}: its {size} bytes unpack to {unpacked}; at most {MOST_RATIO} times that is supported",
            hint=hint,
            file=path,
        )
