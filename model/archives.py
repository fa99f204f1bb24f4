"""Refuse a damaged archive, and code in an archive that loading would run, before its package reads it.

`torch.jit.load` and `torch.export.load` check no CRC-32. The sums find accidents; who changes a file on
purpose writes new ones. `torch.export.load` (PyTorch 2.13) unpickles members without restraint, evaluates the
expressions of sizes (`sympy.sympify`, which is `eval`), and looks the targets of nodes up by name in `torch`,
where `torch.os.system` is found, too. `torch.jit.load` runs `__setstate__` of classes.
"""

from __future__ import annotations

import builtins
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
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import ModelError, first_line, translated

_MOST_RATIO = 100
"""How many times its own size an archive may unpack to, from `FREE_BYTES` on."""
FREE_BYTES = 64 << 20
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, RuntimeError)
"""What readers of archives raise of damaged ones."""
PROGRAM = "a program saved by torch.export.save"
SAVE_PROGRAM = "save it with torch.export.save, with a PyTorch no newer than this one"


def is_archive(path: Path) -> bool:
    """Return whether a file begins as a zip archive does, whatever the state of its end."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def check_archive(path: Path, *, what: str, hint: str) -> None:
    """Read every member of a zip archive once, and compare it with its CRC-32."""
    member, problem = "", "its directory is damaged"
    try:
        with zipfile.ZipFile(path) as archive:
            _check_names(archive, path, hint)
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


def _check_names(archive: zipfile.ZipFile, path: Path, hint: str = "") -> None:
    """Refuse members outside of the archive, that come twice, or that unpack to too much."""
    members, problems = archive.infolist(), []
    for name, count in Counter(member.orig_filename for member in members).items():
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if ".." in parts or name.startswith(("/", "\\")) or "\0" in name:
            problems.append(f"member {name!r} lies outside of the archive")
        elif count > 1:
            problems.append(f"holds member {name!r} more than once")
    size, unpacked = path.stat().st_size, sum(member.file_size for member in members)
    if unpacked > max(_MOST_RATIO * size, FREE_BYTES):
        problems.append(
            f"its {size} bytes unpack to {unpacked}; at most {_MOST_RATIO} times that is supported"
        )
    if problems:
        raise ModelError(f"{path}: {problems[0]}", hint=hint, file=path)


_trusted: ContextVar[bool] = ContextVar("qcompile_trusted", default=False)

_OLD_PICKLES = ("serialized_state_dict.json", "serialized_constants.json")
_OBJECTS = ("custom_obj_", "opaque_obj_")
_WEIGHTS_ALONE, _ANYTHING = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"

_NAMES = r"from_file|load_tensor|rpc_async|rpc_sync|rpc_remote"
_IN_CODE = re.compile(rf"\b(?:{_NAMES})\b|\.\s*(?:save)\s*\(|getattr\s*\([^)]*\\")
"""`getattr` with an escape spells any name."""
_TOUCHES_FILES = re.compile(rf"torch\.ops\.\w+\.(?:{_NAMES}|save)(?:\.\w+)?")
_SYMBOL = re.compile(r"Symbol\('[A-Za-z_]\w*'(, \w+=(True|False))*\)")
_EXPRESSION = re.compile(r"[\w\s+\-*/%(),<>=&|~!]|(?<=\d)\.|\.(?=\d)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_TARGETS = (
    re.compile(r"torch\.ops\.(?!_)\w+\.(?!__)\w+(\.(?!__)\w+)?"),
    re.compile(r"torch\._?sym_\w+"),
    re.compile(r"torch\.fx\.experimental\.symbolic_shapes\.\w+"),
    re.compile(r"_operator\.(?!_|attrgetter|methodcaller|itemgetter|call)\w+"),
    re.compile(r"math\.(?!_)\w+"),
    re.compile(r"#.*", re.DOTALL),  # of a registry: what is loaded has registered it
)

_FUNCTIONS = frozenset(
    "Max Min Mod Eq Ne Lt Le Gt Ge And Or Not Pow Mul Add Abs Rational Integer Float Piecewise True False "
    "true false oo int_oo floor ceiling sqrt zoo nan".split()
)

Members = Mapping[str, Callable[[], bytes]]


@contextlib.contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Load programs whatever they hold, as long as this lasts; with False nothing changes."""
    before = _trusted.set(trust or _trusted.get())
    try:
        yield
    finally:
        _trusted.reset(before)


@contextlib.contextmanager
def program_checked(path: Path) -> Iterator[None]:
    """Check a program; in the block PyTorch unpickles nothing but weights."""
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
    """Refuse a `.pt2` that runs code when it is loaded; nothing of it is run."""
    if _trusted.get():
        return
    with translated(f"{path}: not {PROGRAM}", ModelError, errors=_DAMAGE, hint=SAVE_PROGRAM, file=path):
        for members in _as_both_readers_see(path):
            _check_members(members, path)


def _as_both_readers_see(path: Path) -> Iterator[Members]:
    """Yield the members of an archive as Python's reader of zips has them, and as PyTorch's own has them."""
    import torch

    with zipfile.ZipFile(path) as archive:
        _check_names(archive, path)
        yield {name: partial(archive.read, name) for name in archive.namelist()}
    try:
        reader = torch._C.PyTorchFileReader(str(path))
    except RuntimeError:
        return  # of PyTorch before 2.8: `torch.export.load` then takes Python's reader
    yield {name: partial(reader.get_record, name) for name in reader.get_all_records()}


def _check_members(members: Members, path: Path) -> None:
    entries: list[dict[str, Any]] = []
    for name, read in members.items():
        if name.endswith("_config.json"):
            json.loads(read().decode("utf-8"), object_hook=entries.append)
    # Files of tensors that are pickled: subclasses of Tensor.
    pickled = {
        PurePosixPath(str(entry.get("path_name"))).name for entry in entries if entry.get("use_pickle")
    }
    for name, read in members.items():
        last = PurePosixPath(name).name
        if "aotinductor/" in name:
            code = "native code"
        elif last.startswith(_OBJECTS):
            code = "a pickled object"
        elif name.endswith(".pt") or last in _OLD_PICKLES or last in pickled:
            code = _unsafe(read())
        elif name.endswith(".json") and ("models/" in name or last == "serialized_exported_program.json"):
            code = _foreign_code(read())
        else:
            continue
        if code:
            finding = f"holds {code}, which runs code when it is loaded; weights and operators alone"
            raise _untrusted(path, name, finding)


def _untrusted(path: Path, member: str, finding: str) -> ModelError:
    message = f"{path}: member {member!r} {finding} are required"
    hint = "if you know where the file comes from, give `trust`"
    return ModelError(message, hint=hint, file=path, member=member)


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


def check_torchscript(path: Path) -> None:
    """Refuse a TorchScript archive whose code touches files; nothing of it is run."""
    if _trusted.get():
        return
    if not is_archive(path):  # another format that PyTorch takes, with a zip behind it
        raise ModelError(f"{path}: does not begin as a TorchScript archive", file=path)
    for members in _as_both_readers_see(path):
        for name, read in members.items():
            if not (name.endswith(".py") and "code/" in name):
                continue
            call = _IN_CODE.search(read().decode("utf-8", "replace"))
            if call:
                finding = f"calls {call[0].strip()!r}, which reads or writes files; operators that compute"
                raise _untrusted(path, name, finding)


def _foreign_code(program: bytes) -> str:
    """What in a program's JSON is no operator and no size; empty where all is."""
    entries: list[tuple[str, Any]] = []
    json.loads(program.decode("utf-8"), object_pairs_hook=entries.extend)
    for key, value in entries:
        if key == "expr_str" and isinstance(value, str) and not _is_size(value):
            return f"the expression {value[:80]!r}"
        if key != "target" or not isinstance(value, str):
            continue
        # Names that PyTorch does not look up are those of inputs and parameters.
        looked_up = value.startswith(("#", "torch.", "_operator.", "math."))
        is_operator = not looked_up or any(pattern.fullmatch(value) for pattern in _TARGETS)
        if not is_operator or _TOUCHES_FILES.fullmatch(value):
            return f"a call of {value[:80]!r}"
    return ""


def _is_size(expression: str) -> bool:
    expression = _SYMBOL.sub("1", expression)
    if _EXPRESSION.sub("", expression):
        return False
    import sympy
    from torch.utils._sympy import functions

    types = {name for name, item in vars(functions).items() if isinstance(item, type)}
    return all(
        name in _FUNCTIONS
        or name in types
        or not (hasattr(sympy, name) or hasattr(builtins, name) or "__" in name)
        for name in _NAME.findall(expression)
    )
