"""Operators of PyTorch by which a stranger's graph would read or write files of its choice.

`aten::from_file(name, shared=True)` maps a file into a tensor: what the tensor gets, the file gets.
The code of a TorchScript archive is text, in which operators are found by name before PyTorch reads it, as
`torch.jit.load` runs the `__setstate__` of its classes.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import ModelError
from .torch_import import import_torch

_NAMES = r"from_file|load_tensor|rpc_async|rpc_sync|rpc_remote"
_IN_CODE = re.compile(rf"\b(?:{_NAMES})\b|\.\s*(?:save)\s*\(|getattr\s*\([^)]*\\")
"""`getattr` with an escape spells any name."""
_TARGET = re.compile(rf"torch\.ops\.\w+\.(?:{_NAMES}|save)(?:\.\w+)?")
_ZIP = b"PK\x03\x04"


def is_file_operator(target: str) -> bool:
    """Return whether a target of a `.pt2` graph, `torch.ops.aten.from_file.default`, touches files."""
    return _TARGET.fullmatch(target) is not None


def check_torchscript(path: Path) -> None:
    """Refuse a TorchScript archive whose code touches files; nothing of it is run.

    Raises:
        ModelError: Naming the member and the operator. Data: `file`, `member`.
    """
    with path.open("rb") as file:
        if file.read(len(_ZIP)) != _ZIP:  # another format that PyTorch takes, with a zip behind it
            raise ModelError(f"{path}: does not begin as a TorchScript archive", file=path)
    for name, code in _code(path):
        found = _IN_CODE.search(code)
        if found:
            raise ModelError(
                f"{path}: member {name!r} calls {found[0].strip()!r}, which reads or writes files; "
                "operators that compute are required",
                hint="if you know where the file comes from, give `trust`",
                file=path,
                member=name,
            )


def _code(path: Path) -> Iterator[tuple[str, str]]:
    """Every member with code, as Python's reader of zips has it and as PyTorch's own has it."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if "/code/" in name and name.endswith(".py"):
                yield name, archive.read(name).decode("utf-8", "replace")
    reader = import_torch()._C.PyTorchFileReader(str(path))
    for name in reader.get_all_records():
        if name.startswith("code/") and name.endswith(".py"):
            yield name, bytes(reader.get_record(name)).decode("utf-8", "replace")
