"""The one task that a client submits to Dask: a `Request` as JSON in, an `Answer` as JSON out.

It runs on a thread of the Dask worker: the files are brought, a measurement waits until it is alone on its
machine, and a process of its own does the work: a crash, a leak or a hang ends that, never the worker.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ..errors import ClusterError, QCompileError, StorageError, WorkerError, first_line
from ..model.session import CORES, usable_cores
from ..processes.worker import Worker, thread_variables
from ..progress import Progress, silent
from .bundle import Answer, MissingChunk, Request, StageKilled, StoreCarrier, WorkerCarrier, bundle_of_stage
from .service import Cancelled, Service, service_of
from .stage_work import STAGES

_LEASES = 16
"""Stages of one machine at a time, of all its workers; a measurement takes all of these leases."""
_WAIT_S = 1.0
_TELL_EVERY_S = 0.5
_Check = Callable[[], None]


def carry_out_request(text: bytes) -> bytes:
    """Carry out a `Request` on the worker that this thread belongs to, and return its `Answer`."""
    from distributed import get_worker

    worker = get_worker()
    service = service_of(worker)
    assert service is not None, "it has announced what it has"
    request, task = msgspec.json.decode(text, type=Request), str(worker.get_current_task())
    answer = _carry_out(service, request, lambda: service.check(task))
    answer = msgspec.structs.replace(answer, worker=str(worker.name), address=worker.address)
    return msgspec.json.encode(answer)


def look(service: Service) -> dict[str, float]:
    """Return what the worker's machine has."""
    resources: dict[str, float] = _in_process(service, {"do": "look"}, lambda: None, silent)
    return resources


def _carry_out(service: Service, request: Request, check: _Check) -> Answer:
    def tell(text: str, done: int = 0, total: int | None = None, /) -> None:
        event = {"stage": [request.recipe, request.name], "text": text, "done": done, "total": total}
        with contextlib.suppress(Exception):  # the connection is closing: nobody listens
            service.worker.log_event(f"qcompile-{request.client}", {**event, "name": service.name})

    try:
        carrier = (
            StoreCarrier(request.store)
            if request.store
            else WorkerCarrier(service.worker, request.client, lambda work: service.on_loop(work, check))
        )
        missing = []
        for digest in dict.fromkeys([request.recipe, *request.inputs.values()]):
            try:
                service.bring(digest, carrier)
            except MissingChunk:
                missing.append(digest)
        if missing:
            return Answer("missing", missing=tuple(missing))
        question = {"request": msgspec.to_builtins(request), "folder": str(service.folder)}
        answer = Answer("none")
        if request.look or (request.alone and request.known):  # known without waiting for all others
            answer = msgspec.convert(_in_process(service, {"do": "find", **question}, check, tell), Answer)
        if answer.outcome == "none" and not request.look:
            with _machine_turn(service, request.alone, check, tell):
                cores = service.cores if request.alone else max(1, service.cores // service.slots)
                done = _in_process(service, {"do": "carry_out", **question}, check, tell, cores=cores)
                answer = msgspec.convert(done, Answer)
        if answer.bundle is not None:
            main, folder = answer.bundle.files[0].name, service.folder / STAGES / answer.name
            digests = {ref.name: ref.digest for ref in answer.bundle.files}
            for key, chunk in bundle_of_stage(folder, main, digests).items():
                carrier.put(key, chunk)
        return answer
    except Cancelled:
        error: QCompileError = ClusterError(f"worker {service.name}: {request.name} was cancelled")
    except QCompileError as failure:
        error = failure
    except OSError as failure:
        error = StorageError(f"worker {service.name}: {first_line(failure)}")
    return Answer("failed", error=error.as_json())


@contextlib.contextmanager
def _machine_turn(service: Service, alone: bool, check: _Check, progress: Progress) -> Iterator[None]:
    """Hold one lease of a machine's Dask semaphore, or all of them, so that nothing runs beside.

    One at a time collects all leases, so that two measurements never hold half of them each. A worker that
    is killed holds its leases until Dask lets them run out, 30 s later.
    """
    stages, gate = service.semaphore("stages", _LEASES), service.semaphore("measurement", 1)
    with contextlib.ExitStack() as held:
        for semaphore in [gate, *[stages] * _LEASES] if alone else [stages]:
            while not semaphore.acquire(timeout=_WAIT_S):
                progress(f"wait until {'nothing else runs' if alone else 'a measurement ends'} here")
                check()
            held.callback(semaphore.release)
        yield


def _in_process(
    service: Service, question: dict[str, Any], check: _Check, tell: Progress, *, cores: int = 0
) -> Any:
    """Have `stage_work` answer a question."""
    last_s = 0.0

    def on_progress(text: str, done: int = 0, total: int | None = None) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > _TELL_EVERY_S:
            last_s = time.monotonic()
            tell(text, done, total)

    with Worker(
        "a stage",
        threads=0,
        timeout_s=math.inf,
        module="qcompile.cluster.stage_work",
        variables=_variables(service, cores or service.cores),
    ) as worker:
        try:
            return worker.ask(**question, check=check, on_progress=on_progress)["answer"]
        except WorkerError as error:
            ended = f"the process of a stage ended ({worker.cause()}); it said: {worker.last_output()}"
            raise StageKilled(f"worker {service.name}: {ended}") from error


def _variables(service: Service, cores: int) -> dict[str, str | None]:
    """What a stage's libraries read when they load."""
    variables: dict[str, str | None] = {}
    if service.worker.nanny is not None:  # Dask's nanny limits libraries to one thread
        variables = dict.fromkeys(thread_variables(1))
    # Bytecode beside a recipe's code would be a file of the recipe that nobody sent.
    variables |= {"PYTHONDONTWRITEBYTECODE": "1", CORES: str(cores)}
    return variables | (thread_variables(cores) if cores < usable_cores() else {})
