"""The one task that a client submits to Dask: a request as JSON in, a result as JSON out.

It runs on a thread of the Dask worker: the files are brought, the turn is waited for, a child does the work.
Whatever goes wrong is an outcome, not an exception, which Dask would pickle.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...errors import ClusterError, QCompileError, first_line
from ...files.storage import storage_error
from ...progress import Progress
from ..facts import why_refused
from ..files.parcel import read_parcel
from ..files.transfer import fetch
from ..messages import FileRef, Request, Result, encode
from .children import KILLED
from .service import Cancelled, StageService, all_digests
from .stage_work import Job, failed
from .turns import turn


def carry_out_request(request: bytes) -> bytes:
    """Carry out a `Request` on the worker that this thread belongs to, and return its `Result`."""
    from distributed import get_worker

    from .plugin import service_of

    worker = get_worker()
    service = service_of(worker)
    asked = msgspec.json.decode(request, type=Request)
    if service is None:
        reason = f"worker {worker.name} ({worker.address}) carries out no stages: `qcompile worker` does"
        return encode(Result("refused", reason=reason, worker=str(worker.name), address=worker.address))
    return encode(carry_out(service, asked, str(worker.get_current_task())))


@dataclass
class _Task:
    """A request in work.

    Attributes:
        waited_s: Seconds for files and turns.
    """

    service: StageService
    request: Request
    check: Callable[[], None]
    progress: Progress
    waited_s: float = field(default=0.0)

    def job(self) -> Job:
        service = self.service
        return Job(self.request, service.store, service.name, str(service.worker.address))


def carry_out(service: StageService, request: Request, key: str) -> Result:
    """Carry out a request.

    Args:
        service: Of the worker.
        request: What is asked.
        key: Of the Dask task: when it is cancelled, so is the stage. Empty for none.
    """
    task = _Task(service, request, lambda: service.check(request, key), service.teller(request))
    job = task.job()
    try:
        assert service.facts is not None, "the worker is not there before"
        if reason := why_refused(service.facts, request.versions):
            return Result("refused", reason=reason, worker=job.worker, address=job.address)
        with service.at_work():
            return _with_files(task)
    except Cancelled:
        return _failed(job, "was cancelled")
    except QCompileError as error:
        if service.is_over(request.run):
            return _failed(job, "was cancelled")
        answer = failed(job, error)
        if answer.outcome == "failed" and str(error.data.get("cause", "")).startswith(KILLED):
            return msgspec.structs.replace(answer, outcome="killed")
        return answer
    except OSError as error:
        said = storage_error(error)
        if said is None:
            traceback.print_exc()
            return _failed(job, f"failed ({type(error).__name__}: {first_line(error)})")
        said.__cause__ = error
        return failed(job, said)
    except Exception as error:  # a defect of ours; the worker goes on
        traceback.print_exc()
        return _failed(job, f"failed ({type(error).__name__}: {first_line(error)}): a defect of qcompile")


def _with_files(task: _Task) -> Result:
    """Bring what is missing, then take turns."""
    service, request, began = task.service, task.request, time.monotonic()
    with service.content.using(all_digests(request)):
        missing = _brought(task)
        task.waited_s += time.monotonic() - began
        if missing:
            job = task.job()
            return Result("missing", missing=tuple(missing), worker=job.worker, address=job.address)
        if request.alone or request.look:  # what is done is told without waiting for all others
            found = _in_turn(task, "find", alone=False)
            if found is not None:
                return found
            if request.look:
                job = task.job()
                return Result("none", worker=job.worker, address=job.address)
        result = _in_turn(task, "carry_out", alone=request.alone)
    assert result is not None, "only `find` finds nothing"
    return msgspec.structs.replace(result, waited_s=round(task.waited_s, 3))


def _in_turn(task: _Task, do: str, *, alone: bool) -> Result | None:
    """Have a child do it, alone on this host or among others."""
    with turn(alone=alone, progress=task.progress, check=task.check) as waited_s:
        task.waited_s += waited_s
        return _ask(task, do, alone=alone)


def _brought(task: _Task) -> list[str]:
    """Bring the files of a request here; the digests that nobody has."""
    request, content = task.request, task.service.content
    missing = _fetched(task, [request.parcel], request.parcel_holders)
    if missing:
        return missing
    missing = _fetched(task, read_parcel(content, request.parcel).files, request.parcel_holders)
    for given in request.given.values():
        missing += _fetched(task, given.files, given.holders)
    return list(dict.fromkeys(missing))


def _fetched(task: _Task, refs: Any, holders: tuple[str, ...]) -> list[str]:
    service = task.service
    files: dict[str, FileRef] = {one.digest: one for one in refs}
    absent = service.content.missing(files)
    if not absent:
        return []
    task.progress("bring files")
    left = [files[digest] for digest in absent]
    return service.on_loop(
        fetch(service.worker, service.content, left, holders, progress=task.progress), task.check
    )


def _ask(task: _Task, do: str, *, alone: bool) -> Result | None:
    """Have a child do it; None where `find` finds nothing."""
    service, request = task.service, task.request
    parcel = request.parcel.digest
    job = task.job()
    with service.children.taken(run=request.run, parcel=parcel, alone=alone) as child:
        answer = child.carry_out(
            do,
            check=task.check,
            progress=task.progress,
            memory_bytes=service.children.memory_bytes,
            request=msgspec.to_builtins(request),
            store=str(job.store),
            worker=job.worker,
            address=job.address,
        )
        service.children.done(child, parcel, answer)
    found = answer["result"]
    return None if found is None else msgspec.convert(found, Result)


def _failed(job: Job, what: str) -> Result:
    error = ClusterError(f"worker {job.worker}: {job.request.step.kind} {what}", worker=job.worker)
    return Result("failed", error=error.as_json(), worker=job.worker, address=job.address)
