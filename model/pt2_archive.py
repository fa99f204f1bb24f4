"""Detect code in a `.pt2` that loading would run, before PyTorch reads it.

`torch.export.save` writes a zip: the graph and the places of the weights as JSON, raw tensors, and the
example inputs as a pickle of tensors. `torch.export.load` (PyTorch 2.13) unpickles without restraint what
follows, and evaluates or calls what the JSON names:

| member                                        | is refused unless trusted where                            |
|-----------------------------------------------|------------------------------------------------------------|
| `*.pt`; tensors that a configuration pickles; | PyTorch's unpickler of weights alone does not take it      |
| `serialized_*.json` of PyTorch before 2.8     |                                                            |
| `custom_obj_*`, `opaque_obj_*`                | it is there                                                |
| `data/aotinductor/*`                          | it is there: native code                                   |
| `models/*.json`                               | an expression or a target is more than a program has       |
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import ModelError, first_line
from .pt2_graph import foreign_code

_trusted: ContextVar[bool] = ContextVar("qcompile_trusted", default=False)

_OLD_PICKLES = ("serialized_state_dict.json", "serialized_constants.json")
_OBJECTS = ("custom_obj_", "opaque_obj_")
_WEIGHTS_ALONE, _ANYTHING = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"

_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, RuntimeError)

Members = Mapping[str, Callable[[], bytes]]


@contextlib.contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Load programs whatever they hold, as long as this lasts; with False nothing changes."""
    before = _trusted.set(trust or _trusted.get())
    try:
        yield
    finally:
        _trusted.reset(before)


def is_trusted() -> bool:
    """Return whether what loads now is trusted."""
    return _trusted.get()


@contextlib.contextmanager
def program_checked(path: Path) -> Iterator[None]:
    """Check a program, and let PyTorch unpickle nothing but weights as long as this lasts.

    Raises:
        ModelError: If the file is no such archive; or holds more than weights, and is not trusted.
    """
    if _trusted.get():
        yield
        return
    check_program(path)
    before = {name: os.environ.pop(name, None) for name in (_WEIGHTS_ALONE, _ANYTHING)}
    os.environ[_WEIGHTS_ALONE] = "1"  # should another PyTorch unpickle what this one does not
    try:
        yield
    finally:
        del os.environ[_WEIGHTS_ALONE]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def check_program(path: Path) -> None:
    """Refuse a `.pt2` that runs code when it is loaded; nothing of it is run.

    Raises:
        ModelError: If the file is no such archive; or holds more than weights, and is not trusted.
            Data: `file`, `member`.
    """
    if _trusted.get():
        return
    try:
        with zipfile.ZipFile(path) as archive:
            _check_names(archive, path)
            _check_members({name: _reading(archive, name) for name in archive.namelist()}, path)
        # PyTorch has a reader of its own, and sees what that one sees.
        _check_members(_members_of_torch(path), path)
    except _DAMAGE as error:
        raise ModelError(
            f"{path}: not a program saved by torch.export.save ({first_line(error)})",
            hint="save it with torch.export.save, with a PyTorch no newer than this one",
            file=path,
        ) from error


def _reading(archive: zipfile.ZipFile, name: str) -> Callable[[], bytes]:
    return lambda: archive.read(name)


def _members_of_torch(path: Path) -> Members:
    import torch

    try:
        reader = torch._C.PyTorchFileReader(str(path))
    except RuntimeError:
        return {}  # of PyTorch before 2.8: `torch.export.load` then takes Python's reader

    def reading(name: str) -> Callable[[], bytes]:
        return lambda: bytes(reader.get_record(name))

    return {name: reading(name) for name in reader.get_all_records()}


def _check_names(archive: zipfile.ZipFile, path: Path) -> None:
    names = Counter(member.orig_filename for member in archive.infolist())
    for name, count in names.items():
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if ".." in parts or name.startswith(("/", "\\")) or "\0" in name:
            raise ModelError(f"{path}: member {name!r} lies outside of the archive", file=path)
        if count > 1:
            raise ModelError(f"{path}: holds member {name!r} more than once", file=path)


def _check_members(members: Members, path: Path) -> None:
    pickled = _pickled_by_configuration(members)
    for name, read in members.items():
        last = PurePosixPath(name).name
        if "aotinductor/" in name:
            code = "native code"
        elif last.startswith(_OBJECTS):
            code = "a pickled object"
        elif name.endswith(".pt") or last in _OLD_PICKLES or last in pickled:
            code = _unsafe(read())
        elif name.endswith(".json") and ("models/" in name or last == "serialized_exported_program.json"):
            code = foreign_code(_json(read()))
        else:
            continue
        if code:
            raise ModelError(
                f"{path}: member {name!r} holds {code}, which runs code when it is loaded; "
                "weights and operators alone are required",
                hint="if you know where the file comes from, give `trust`",
                file=path,
                member=name,
            )


def _pickled_by_configuration(members: Members) -> set[str]:
    """Names of the files of tensors that are pickled: subclasses of Tensor."""
    names: set[str] = set()
    for name, read in members.items():
        if name.endswith("_config.json"):
            config = _json(read())
            entries = config.get("config", {}) if isinstance(config, dict) else {}
            for entry in entries.values() if isinstance(entries, dict) else ():
                if isinstance(entry, dict) and entry.get("use_pickle"):
                    names.add(PurePosixPath(str(entry.get("path_name"))).name)
    return names


def _json(content: bytes) -> Any:
    return json.loads(content.decode("utf-8"))


def _unsafe(content: bytes) -> str:
    """What a pickle holds beside tensors; empty where PyTorch's unpickler of weights takes it."""
    if not content:
        return ""
    import torch

    try:
        torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception as error:  # the unpickler's, the zip reader's, or of tensors that do not fit
        named = re.search(r"GLOBAL\s+`?([\w.]+)", str(error))
        return f"a pickle with {named.group(1)}" if named else f"a pickle ({first_line(error)[:120]})"
    return ""
