"""The timing cache: TensorRT's kernel timings, kept per device and version for the next build.

Builds that run at once may share a file: it is read when a build begins, and when one ends, what others
wrote meanwhile is merged in under a lock.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ....errors import InvalidOption
from ....files import writing
from ....spec.tensorrt import AUTO, OFF
from ...gpu import Gpu
from ..adapter import Adapter
from ..log import plain


def cache_file(adapter: Adapter, gpu: Gpu | None, choice: str) -> Path | None:
    """Return where the timing cache of this device and version lies; None for none.

    Args:
        adapter: Which TensorRT.
        gpu: The device it builds on.
        choice: "auto", "off", or a file.

    Raises:
        InvalidOption: If a file is given to a TensorRT that keeps no timing cache.
    """
    if choice == OFF:
        return None
    if not adapter.keeps_timing_caches:
        if choice == AUTO:
            return None
        raise adapter.lacks(
            "`timing_cache`", "use for one: it chooses its kernels where the engine runs", "leave it out"
        )
    if choice != AUTO:
        return Path(choice)
    device = f"{gpu.name}-{gpu.architecture}" if gpu else "unknown"
    name = re.sub(r"[^\w.-]+", "_", f"{adapter.module.__name__}-{adapter.version}-{device}")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "qcompile" / "timing" / f"{name}.cache"


def use_cache(adapter: Adapter, config: Any, log: Any, path: Path | None) -> int:
    """Give a build what was measured before; return the size of it in bytes.

    Raises:
        InvalidOption: If the file was made on another device or by another version, or is damaged.
    """
    if path is None:
        return 0
    known = _read(path)
    _attach(adapter, config, log, path, known)
    return len(known)


def merge_cache(adapter: Adapter, config: Any, path: Path | None) -> int:
    """Write what a build measured, merged with what other builds wrote meanwhile; return the file's size."""
    if path is None:
        return 0
    ours = config.get_timing_cache()
    with _locked(path):
        theirs = _read(path)
        if theirs:
            other = config.create_timing_cache(theirs)
            if not ours.combine(other, False):
                raise _foreign(adapter, path, "it cannot be merged")
        content = bytes(ours.serialize())
        with writing(path) as temporary:
            temporary.write_bytes(content)
    return len(content)


def _attach(adapter: Adapter, config: Any, log: Any, path: Path, known: bytes) -> None:
    errors, warnings = len(log.errors), len(log.warnings)
    cache = config.create_timing_cache(known)
    accepted = cache is not None and config.set_timing_cache(cache, False)
    said = [text for text in (*log.errors[errors:], *log.warnings[warnings:]) if "cache" in text.lower()]
    if not accepted or (known and said):
        raise _foreign(adapter, path, plain(said[0]) if said else "TensorRT refuses it")


def _foreign(adapter: Adapter, path: Path, reason: str) -> InvalidOption:
    return InvalidOption(
        f"timing cache {path}: of another device or version than {adapter.name} here, or damaged ({reason})",
        hint="remove the file, name another with `timing_cache`, or give `timing_cache` off",
        option="timing_cache",
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise InvalidOption(f"timing cache {path}: {error.strerror}", option="timing_cache") from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the file's lock; waits for another build that holds it, which takes as long as writing a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f"{path.name}.lock").open("w")
    except OSError as error:
        raise InvalidOption(f"timing cache {path}: {error.strerror}", option="timing_cache") from error
    with lock:
        with contextlib.suppress(ImportError):  # not POSIX: the rename still keeps the file whole
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
