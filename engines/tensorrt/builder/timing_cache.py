"""The timing cache: TensorRT's kernel timings, kept per device and version for the next build.

Builds that run at once may share a file: it is read when a build begins, and when one ends, what others
wrote meanwhile is merged in under a lock.

Where TensorRT does not take a cache, a warning says so, and the kernels are timed anew: TensorRT 8.5 without
cuDNN cannot read what it wrote itself (KataGo issue 739). It makes an empty cache of such bytes, which
`set_timing_cache` may take: TensorRT's log decides, as neither trtexec 8.5 (samples/common/sampleEngines.cpp,
`networkToSerializedEngine`) nor Polygraphy (backend/trt/config.py) asks what it returns.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import InvalidOption
from ....files import open_lock, writing
from ....spec.tensorrt import AUTO, OFF
from ...gpu import Gpu
from ..adapter import Adapter
from ..log import Log, listening, plain


@dataclass(frozen=True)
class CacheFile:
    """A file of kernel timings. One that `is_ours`, named by device and version, is replaced where it cannot
    be read; one that the user named may be another device's, and is left as it is."""

    path: Path
    is_ours: bool

    def __str__(self) -> str:
        return f"timing cache {self.path}"


def cache_file(adapter: Adapter, gpu: Gpu | None, choice: str) -> CacheFile | None:
    """Return where the timing cache of this device and version lies; None for none."""
    if choice == OFF or (choice == AUTO and not adapter.keeps_timing_caches):
        return None
    if not adapter.keeps_timing_caches:
        lacking = "use for one: it chooses its kernels where the engine runs"
        raise adapter.lacks("`timing_cache`", lacking, "leave it out")
    if choice != AUTO:
        return CacheFile(Path(choice), is_ours=False)
    device = f"{gpu.name}-{gpu.architecture}" if gpu else "unknown"
    name = re.sub(r"[^\w.-]+", "_", f"{adapter.module.__name__}-{adapter.version}-{device}")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return CacheFile(Path(base) / "qcompile" / "timing" / f"{name}.cache", is_ours=True)


def use_cache(config: Any, log: Log, file: CacheFile | None) -> tuple[str, ...]:
    """Give a build what was measured before; return warnings of what it was not given."""
    if file is None:
        return ()
    try:
        refusal = _attach(config, log, _read(file.path))
    except OSError as error:
        if not file.is_ours:
            raise InvalidOption(f"{file}: {error.strerror}", option="timing_cache") from error
        refusal = str(error.strerror)
    if not refusal:
        return ()
    fate = "it will be replaced" if file.is_ours else "it is of another device or version, or damaged"
    _attach(config, log, b"")
    return (f"{file} is not used, kernels are timed anew: {refusal}; {fate}",)


def keep_timings(config: Any, log: Log) -> None:
    """Give a build a cache in memory where it has none: a second build then chooses the same kernels."""
    if config.get_timing_cache() is None:
        _attach(config, log, b"")


def merge_cache(config: Any, log: Log, file: CacheFile | None) -> tuple[str, ...]:
    """Write what a build measured, merged with what others wrote meanwhile; returns why nothing was kept.

    The engine is on the disk by now, and whatever happens here leaves it there.
    """
    if file is None:
        return ()
    try:
        refusal = _merge(config, log, file)
    except Exception as error:  # of the disk, or of a binding that was given nothing
        why = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error)
        refusal = why or type(error).__name__
    return (f"{file}: what was measured is not kept: {refusal}",) if refusal else ()


def _merge(config: Any, log: Log, file: CacheFile) -> str:
    measured = config.get_timing_cache()
    if measured is None:
        return "TensorRT has no timing cache of this build"
    file.path.parent.mkdir(parents=True, exist_ok=True)
    with open_lock(file.path.with_name(f"{file.path.name}.lock")) as lock:
        with contextlib.suppress(ImportError):  # not POSIX: the rename still keeps the file whole
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)  # another build holds it as long as writing a file takes
        theirs = _read(file.path)
        if theirs:
            with listening(log) as heard:
                other = config.create_timing_cache(theirs)
                combined = other is not None and measured.combine(other, False)
            refusal = _complaint(heard) or ("" if combined else "it cannot be merged with the file's")
            if refusal and not file.is_ours:
                return f"{refusal}; remove the file, or name another with `timing_cache`"
        serialized = measured.serialize()
        if serialized is None:
            return "TensorRT does not serialize it"
        with writing(file.path) as temporary:
            temporary.write_bytes(memoryview(serialized))
    return ""


def _attach(config: Any, log: Log, known: bytes) -> str:
    """Make a cache of what is known and give it to a build; returns why TensorRT does not take it."""
    with listening(log) as heard:
        cache = config.create_timing_cache(known)
        taken = cache is not None and config.set_timing_cache(cache, False)
    return _complaint(heard) or ("" if taken else "TensorRT refuses it")


def _complaint(heard: Log) -> str:
    """What TensorRT said of a cache, its cause first."""
    said = [*heard.errors, *(text for text in heard.warnings if "cache" in text.lower())]
    return plain(said[0]) if said else ""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
