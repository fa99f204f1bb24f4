"""What is fuzzed: a parser that takes bytes, and inputs that it accepts."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qcompile.errors import QCompileError

_NAME = "qcompile-fuzz-"


@dataclass(frozen=True)
class Target:
    """One parser.

    Attributes:
        name: Of its corpus.
        parse: Takes an input; returns, raises a `QCompileError`, or has a defect.
        seeds: Inputs that it accepts, or nearly.
        is_json: Whether mutations follow the structure of JSON.
        words: Parts of inputs that random bytes seldom hit.
        longest: Bytes of the longest input.
    """

    name: str
    parse: Callable[[bytes], object]
    seeds: Sequence[bytes]
    is_json: bool = False
    words: Sequence[str] = field(default=())
    longest: int = 4096


def defect(target: Target, content: bytes) -> BaseException | None:
    """Return what a parser raises that is no error of qcompile; None where it does as it should."""
    try:
        target.parse(content)
    except QCompileError:
        return None
    except Exception as error:
        return error
    return None


def place_of(error: BaseException) -> str:
    """Return the kind of an exception and the line of qcompile that it came through last."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "qcompile" in frame.filename and "reliability" not in frame.filename]
    last = ours[-1] if ours else frames[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.name}"


def text_of(content: bytes) -> str:
    """Return bytes as Python has them from a command line: what is no UTF-8 becomes lone surrogates."""
    return content.decode("utf-8", "surrogateescape")


_folder: list[Path] = []


def folder() -> Path:
    """Return the folder for parsers that open a file themselves: in memory, where that can be."""
    if not _folder:
        place = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())
        for left in place.glob(f"{_NAME}*"):  # libFuzzer ends a process without a farewell
            if not Path("/proc", left.name.removeprefix(_NAME)).exists():
                shutil.rmtree(left, ignore_errors=True)
        _folder.append(place / f"{_NAME}{os.getpid()}")
        _folder[0].mkdir(exist_ok=True)
        atexit.register(shutil.rmtree, _folder[0], ignore_errors=True)
    return _folder[0]


def use_folder(path: Path) -> None:
    """Take another folder from now on."""
    _folder[:] = [path]


def file_of(content: bytes, name: str) -> Path:
    """Return a file of this content."""
    path = folder() / name
    path.write_bytes(content)
    return path
