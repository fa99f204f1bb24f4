"""Reject damaged archives before a package reads them, and files with code that the user does not trust.

`torch.jit.load` and `torch.export.load` check no CRC-32. Checksums detect accidents, not intent: an attacker
can write new ones. `torch.export.load` (PyTorch 2.13) unpickles members without restrictions, evaluates
expressions of sizes (`sympy.sympify`, which is `eval`), and looks up the targets of nodes by name in `torch`,
which includes `torch.os.system`. `torch.jit.load` runs `__setstate__` of classes, and operators of
TorchScript write files. A list of harmful operations cannot be complete, so both formats require `trust`.
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

_MAX_RATIO = 100
"""Largest ratio of unpacked to packed size of an archive; checked from `FREE_BYTES` unpacked bytes on."""
FREE_BYTES = 64 << 20
_DAMAGE_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, RuntimeError)
"""Errors that archive readers raise for damaged files."""


def is_archive(path: Path) -> bool:
    """Return whether a file starts with the signature of a zip archive; its end may be damaged."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def check_archive(path: Path, *, what: str, hint: str) -> None:
    """Read every member of a zip archive and verify its CRC-32; raise ModelError if it is damaged."""
    member, problem = "", "its directory is damaged"
    try:
        with zipfile.ZipFile(path) as archive:
            size, unpacked = path.stat().st_size, sum(info.file_size for info in archive.infolist())
            if unpacked > max(_MAX_RATIO * size, FREE_BYTES):
                problem = f"its {size} bytes unpack to {unpacked}"
                raise ValueError(f"at most {_MAX_RATIO} times that is supported")
            for info in archive.infolist():
                member, problem = info.filename, f"member {info.filename!r} is damaged"
                with archive.open(info) as file:
                    while file.read(1 << 20):
                        pass
    except _DAMAGE_ERRORS as error:
        raise ModelError(
            f"{path}: not {what} that can be read: {problem} ({first_line(error)})",
            hint=hint,
            file=path,
            member=member,
        ) from error


_trusted: ContextVar[frozenset[Path] | None] = ContextVar("qcompile_trusted", default=frozenset())
"""The trusted files; None trusts all."""


@contextlib.contextmanager
def trust_files(trust: bool | Iterable[Path] = True) -> Iterator[None]:
    """Trust all files (True) or these files inside the block; False and an empty list change nothing."""
    before, files = _trusted.get(), () if isinstance(trust, bool) else trust
    trusted_files = None if before is None or trust is True else before | {path.resolve() for path in files}
    token = _trusted.set(trusted_files)
    try:
        yield
    finally:
        _trusted.reset(token)


def require_trust(path: Path) -> None:
    """Raise ModelError unless the user trusts a `.pt2` or TorchScript file, before any of its code runs."""
    trusted = _trusted.get()
    if trusted is not None and path.resolve() not in trusted:
        raise ModelError(
            f"{path}: PyTorch may run code of this file when it loads it; `trust` is required",
            hint="give `trust` if you know where the file comes from",
            file=path,
        )
