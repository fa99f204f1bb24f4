"""What is fuzzed: a parser that takes bytes, and inputs that it accepts."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from qcompile.errors import QCompileError


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


@cache
def folder() -> Path:
    """Return a folder in memory, for parsers that open a file themselves."""
    memory = Path("/dev/shm")
    made = tempfile.mkdtemp(prefix="qcompile-fuzz-", dir=memory if os.access(memory, os.W_OK) else None)
    return Path(made)


def file_of(content: bytes, name: str) -> Path:
    """Return a file of this content."""
    path = folder() / name
    path.write_bytes(content)
    return path
