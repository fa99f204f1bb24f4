"""Runs of either side: jobs written, processes started, watched and ended, answers read."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from ... import errors
from ...errors import QCompileError, WorkerError
from ...progress import Progress
from ..worker_command import worker_command

SILENCE_S = 600.0
"""Longest wait for one batch."""

_LAST_LINES, _GRACE_S = 5, 2.0


@dataclass(frozen=True)
class Job:
    """One run of one side; paths as text, as it travels as JSON.

    Attributes:
        path, runtime, threads, io: The artifact and how it is loaded.
        feeds, batches, where: Folder of `N.npz`, their number, and what each is called in errors.
        taps: `{"tensor", "file", "form"}` each: a tensor of the artifact, the folder of its reference's
            values and how it is read; none for a run of the artifact as it is.
        own: Output of the artifact to the folder it is written to, or checked against.
        outputs: Output of the artifact to the folder of its reference's values.
        write: Folder that taps and outputs are written into.
        reference: Folder that the taps are compared with.
        reference_outputs: Folder that the outputs are compared with.
        own_outputs: Folder of the artifact's own outputs without taps, to see whether they changed.
        cast: Input to the type that it is rounded to.
    """

    path: str
    runtime: str
    threads: int
    io: Mapping[str, Any] | None
    feeds: str
    batches: int
    where: Sequence[str]
    taps: Sequence[Mapping[str, Any]] = ()
    own: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    write: str = ""
    reference: str = ""
    reference_outputs: str = ""
    own_outputs: str = ""
    cast: Mapping[str, str] = field(default_factory=dict)


def run(job: Job, name: str, text: str, progress: Progress) -> dict[str, Any]:
    """Carry out a job in a process of its own and return its answer.

    Args:
        job: What to do.
        name: Of the artifact, for errors.
        text: What is being done, for the progress.
        progress: Told of each batch.

    Raises:
        WorkerError: If the process died or hung, with its last output.
        QCompileError: The error that the artifact's runtime raised.
    """
    with tempfile.TemporaryDirectory(prefix="run-", dir=Path(job.feeds).parent) as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps({**asdict(job), "folder": folder}), encoding="utf-8")
        with tempfile.TemporaryFile() as log:
            code = _watch(path, job, log, name, text, progress)
            answer_path = path.with_name("answer.json")
            if not answer_path.is_file():
                raise _error(name, f"died during {text!r} ({_cause(code)})", log)
        answer = json.loads(answer_path.read_text(encoding="utf-8"))
    if not answer["ok"]:
        raise _as_error(answer, name)
    return answer  # type: ignore[no-any-return]


def _watch(path: Path, job: Job, log: IO[bytes], name: str, text: str, progress: Progress) -> int:
    environment = dict(os.environ)
    if job.threads:
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(job.threads))
    process = subprocess.Popen(
        worker_command("qcompile.bench.layer_diff.worker", str(path)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        start_new_session=True,  # Ctrl-C reaches the caller alone, which then ends the run
    )
    assert process.stdout is not None
    assert process.stdin is not None
    lines: queue.Queue[bytes] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        while line := lines.get(timeout=SILENCE_S):
            with contextlib.suppress(ValueError):  # a library's own words
                progress(text, int(line), job.batches)
        return process.wait()
    except queue.Empty:
        raise _error(name, f"was silent for {SILENCE_S:.0f} s during {text!r}", log) from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        reader.join()
        process.stdin.close()


def _read(stream: IO[bytes], lines: queue.Queue[bytes]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(b"")


def _cause(code: int) -> str:
    if code < 0:
        killed = signal.Signals(-code).name
        return f"{killed}, out of memory?" if killed == "SIGKILL" else killed
    return f"exit code {code}"


def _error(name: str, what: str, log: IO[bytes]) -> WorkerError:
    log.seek(0)
    said = log.read().decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
    shown = "; it said:\n    " + "\n    ".join(said) if said else ""
    return WorkerError(f"run of {name} {what}{shown}", artifact=name, output="\n".join(said))


def _as_error(answer: Mapping[str, Any], name: str) -> QCompileError:
    kind = getattr(errors, answer["type"], None)
    message = answer["message"] if name in answer["message"] else f"{name}: {answer['message']}"
    if isinstance(kind, type) and issubclass(kind, QCompileError):
        return kind(message, hint=answer["hint"], artifact=name)
    return WorkerError(f"{name}: {answer['type']}: {answer['message']}", artifact=name)
