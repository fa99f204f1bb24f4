"""Refuse a damaged archive before its package reads it, and a program that the user does not trust.

`torch.jit.load` and `torch.export.load` check no CRC-32. The sums find accidents; who changes a file on
purpose writes new ones. `torch.export.load` (PyTorch 2.13) unpickles members without restraint, evaluates the
expressions of sizes (`sympy.sympify`, which is `eval`), and looks the targets of nodes up by name in `torch`,
where `torch.os.system` is found, too. `torch.jit.load` runs `__setstate__` of classes, and operators of
TorchScript write files. No list of what is harmful is complete, so both need the user's trust.
"""

from __future__ import annotations

import contextlib
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path

from ...errors import ModelError, first_line

_MOST_RATIO = 100
"""How many times its own size an archive may unpack to, from `FREE_BYTES` on."""
FREE_BYTES = 64 << 20
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, RuntimeError)
"""What readers of archives raise of damaged ones."""


def is_archive(path: Path) -> bool:
    """Return whether a file begins as a zip archive does, whatever the state of its end."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def check_archive(path: Path, *, what: str, hint: str) -> None:
    """Read every member of a zip archive once, and compare it with its CRC-32."""
    member, problem = "", "its directory is damaged"
    try:
        with zipfile.ZipFile(path) as archive:
            size, unpacked = path.stat().st_size, sum(info.file_size for info in archive.infolist())
            if unpacked > max(_MOST_RATIO * size, FREE_BYTES):
                problem = f"its {size} bytes unpack to {unpacked}"
                raise ValueError(f"at most {_MOST_RATIO} times that is supported")
            for info in archive.infolist():
                member, problem = info.filename, f"member {info.filename!r} is damaged"
                with archive.open(info) as file:
                    while file.read(1 << 20):
                        pass
    except _DAMAGE as error:
        raise ModelError(
            f"{path}: not {what} that can be read: {problem} ({first_line(error)})",
            hint=hint,
            file=path,
            member=member,
        ) from error


_trusted: ContextVar[frozenset[Path] | None] = ContextVar("qcompile_trusted", default=frozenset())
"""The files that are trusted; None for all."""


@contextlib.contextmanager
def trusting(trust: bool | Iterable[Path] = True) -> Iterator[None]:
    """Load programs inside the block: all of them, or these files; False and an empty list change nothing."""
    before, files = _trusted.get(), () if isinstance(trust, bool) else trust
    more = None if before is None or trust is True else before | {path.resolve() for path in files}
    token = _trusted.set(more)
    try:
        yield
    finally:
        _trusted.reset(token)


def require_trust(path: Path) -> None:
    """Refuse a `.pt2` or TorchScript file unless the user trusts it.

    Raises:
        ModelError: If the file is not trusted. Nothing of it has been read.
    """
    trusted = _trusted.get()
    if trusted is not None and path.resolve() not in trusted:
        raise ModelError(
            f"{path}: PyTorch may run code of this file when it loads it; `trust` is required",
            hint="give `trust` if you know where the file comes from",
            file=path,
        )
