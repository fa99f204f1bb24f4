"""Run a verb (a command of `qcompile`) on untrusted files in a child process with limits on memory and time.

An environment variable holds the process id of the watching parent. The child's descendants inherit the
variable, but ignore it, because the id is not that of their parent.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import EngineUnavailable, InvalidOption, WorkerError
from ..files import remove_stale, temporary_folder
from ..files.temporary import PLACES
from .child import Child, MemoryExceeded, TimeExceeded, module_command, read_proc
from .serve import die_with_caller, end_first_without_memory

MEMORY_GB, TIME_S = 8.0, 1800.0
WATCHED = "QCOMPILE_UNTRUSTED"
"""Environment variable with the id of the watching process and the time limit: PID:SECONDS."""
OPEN_FILES = 4096
_CPU_SLACK_S = 60
_GRACE_S = 15.0
_VERB_CODES = (0, 1, 2, 129, 130, 143)
"""Exit codes of a verb that ends by itself."""
_HARM_HINT = "the file may be damaged or malicious; no unfinished file was left"


@dataclass(frozen=True)
class Limits:
    """Limits of a verb: memory of all its processes together, in 10**9 bytes, and wall-clock seconds."""

    memory_gb: float = MEMORY_GB
    time_s: float = TIME_S

    def __post_init__(self) -> None:
        for name, value, is_valid, required in (
            ("memory_limit_gb", self.memory_gb, self.memory_gb >= 0.1, "a number from 0.1 on"),
            ("time_limit_s", self.time_s, self.time_s > 0, "a positive number"),
        ):
            if not is_valid or value == math.inf:
                raise InvalidOption(f"`{name}` {value}: {required} is required", option=name)


@dataclass(frozen=True)
class Finished:
    """Exit code (0 done, 1 failed or mismatch, 2 usage, 129, 130, 143 interrupted) and output of a verb."""

    code: int
    output: str = ""


def run_untrusted(
    arguments: Sequence[str], limits: Limits | None = None, *, capture: bool = True
) -> Finished:
    """Run a verb as the command line does, in a child process with limits.

    The limits include processes that the child starts; temporary files are always removed. Limits are not a
    sandbox: the child may read and write everything that this process may.

    Args:
        arguments: As typed after `qcompile`, such as `["simplify", "model.onnx", "-o", "simple.onnx"]`.
        limits: 8 GB and half an hour by default.
        capture: Whether to return standard output; it is lost if the verb does not end by itself.

    Returns:
        Exit code and output. If the verb fails, it has printed its error to standard error.

    Raises:
        WorkerError: If the child crashed or exceeded a limit.
        EngineUnavailable: If the system cannot report the memory of processes.
    """
    limits = limits or Limits()
    if "RssAnon:" not in read_proc(os.getpid(), "status"):
        reason = "/proc does not report the memory of processes"
        if not sys.platform.startswith("linux"):
            reason = f"Linux is required, this is {sys.platform}"
        raise EngineUnavailable(f"`untrusted` cannot work here: {reason}", reason=reason)
    with temporary_folder("untrusted") as folder, tempfile.TemporaryFile() as output:
        places, temporary = folder / "places", folder / "files"
        temporary.mkdir()
        child = Child(
            module_command("qcompile.__main__", *arguments),
            variables={
                WATCHED: f"{os.getpid()}:{limits.time_s}",
                "TMPDIR": str(temporary),
                PLACES: str(places),
            },
            stdin=None,
            stdout=output if capture else None,
        )
        try:
            problem = _watch(child, limits)
        except BaseException as stop:
            # Interrupt the child as this process was interrupted, so that it can save its results.
            with contextlib.suppress(ProcessLookupError):
                interrupted = type(stop) is KeyboardInterrupt
                child.process.send_signal(signal.SIGINT if interrupted else signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # second Ctrl-C: no wait
                child.process.wait(_GRACE_S)
            if child.process.returncode not in _VERB_CODES:
                raise
            problem = None  # the verb has reported its end
        finally:
            child.close()
            with contextlib.suppress(OSError):  # remove leftovers from all folders with temporary files
                text = places.read_text(encoding="utf-8", errors="surrogateescape")
                for place in set(filter(None, text.split("\0"))):
                    remove_stale(Path(place))
        if problem:
            verb = arguments[0] if arguments else "qcompile"
            raise WorkerError(f"{verb}: {problem[0]}", hint=problem[1], output="")
        output.seek(0)
        return Finished(child.process.returncode, output.read().decode(errors="replace"))


def _watch(child: Child, limits: Limits) -> tuple[str, str] | None:
    """Wait for the end; return problem and hint, or None if the verb ended by itself."""
    try:
        code = child.wait(time_s=limits.time_s, memory_gb=limits.memory_gb)
    except MemoryExceeded as error:
        return (
            f"ended: its processes held {error.args[0]:.3g} GB of memory; "
            f"at most {limits.memory_gb:g} GB are allowed",
            "raise `memory_limit_gb` if you know why it needs more",
        )
    except TimeExceeded:
        code = -signal.SIGXCPU
    if code == -signal.SIGXCPU:
        return (
            f"ended: it took more than {limits.time_s:g} s",
            "raise `time_limit_s` if you know why it needs longer",
        )
    if code in _VERB_CODES:
        return None
    if code >= 0:
        return f"its process ended with exit code {code}", _HARM_HINT
    name = signal.Signals(-code).name
    if code == -signal.SIGKILL:
        return f"its process was killed ({name}) for lack of memory or by a user", _HARM_HINT
    return f"its process crashed ({name}) in native code that read the files", _HARM_HINT


def is_child() -> bool:
    """Return whether the parent of this process watches it."""
    return os.environ.get(WATCHED, "").partition(":")[0] == str(os.getppid())


def limit_self() -> None:
    """Limit this process and its descendants further.

    Forbid core dumps, and limit open files and, as a backup, processor time. The kernel ends this process
    when the watching process dies; when memory runs out, it ends this process first. Limits that the system
    refuses are skipped.
    """
    import resource

    die_with_caller()
    time_limit_s = float(os.environ[WATCHED].partition(":")[2])
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CPU, int(time_limit_s * (os.cpu_count() or 1)) + _CPU_SLACK_S),
    ):
        with contextlib.suppress(OSError, ValueError, OverflowError):
            soft, hard = resource.getrlimit(kind)
            allowed = [value for value in (soft, hard, limit) if value != resource.RLIM_INFINITY]
            resource.setrlimit(kind, (min(allowed), hard if kind != resource.RLIMIT_CORE else 0))
    end_first_without_memory()
