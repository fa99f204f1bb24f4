"""The one task that a client submits to Dask: a `Request` as JSON in, an `Answer` as JSON out.

It runs on a thread of the Dask worker: the files are brought, a measurement waits until it is alone on its
machine, and a process of its own does the work. What goes wrong in a stage is an answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import msgspec

from ..errors import ClusterError, QCompileError, StorageError, first_line
from ..progress import Progress
from .bundle import LocalBundle
from .carriers import Carrier, MissingChunk, StoreCarrier, WorkerCarrier
from .facts import why_refused
from .folders import STAGES
from .messages import Answer, Request
from .plugin import Cancelled, Service, service_of

_LEASES = 16
"""Stages of one machine at a time, of all its workers; a measurement takes all of these leases."""
_WAIT_S = 1.0


def carry_out_request(text: bytes) -> bytes:
    """Carry out a `Request` on the worker that this thread belongs to, and return its `Answer`.

    Raises:
        StageKilled: If the process that did it was killed: Dask tries again.
    """
    from distributed import get_worker

    worker = get_worker()
    service = service_of(worker)
    request = msgspec.json.decode(text, type=Request)
    if service is None:
        reason = f"worker {worker.name} ({worker.address}) carries out no stages: `qcompile worker` does"
        answer = Answer("refused", reason=reason)
    else:
        answer = _carry_out(service, request, str(worker.get_current_task()))
    answer = msgspec.structs.replace(answer, worker=str(worker.name), address=worker.address)
    return msgspec.json.encode(answer)


def _carry_out(service: Service, request: Request, task: str) -> Answer:
    def check() -> None:
        service.check(task)

    tell = service.teller(request)
    try:
        if reason := why_refused(service.facts, request.versions):
            return Answer("refused", reason=reason)
        carrier = carrier_of(service, request, check)
        missing = _bring(service, request, carrier, tell)
        if missing:
            return Answer("missing", missing=missing)
        if request.alone or request.look:  # what is done is told without waiting for all others
            found = _ask(service, request, "find", check, tell)
            if request.look or found.outcome != "none":
                return _given_out(service, found, carrier)
        with machine_turn(service, alone=request.alone, check=check, progress=tell):
            answer = _ask(service, request, "carry_out", check, tell)
        return _given_out(service, answer, carrier)
    except Cancelled:
        error: QCompileError = ClusterError(f"worker {service.name}: {request.name} was cancelled")
    except QCompileError as failure:
        error = failure
    except OSError as failure:
        error = StorageError(f"worker {service.name}: {first_line(failure)}")
    return Answer("failed", error=error.as_json())


def carrier_of(service: Service, request: Request, check: Callable[[], None]) -> Carrier:
    """Return what carries the chunks of a request."""
    if request.store:
        return StoreCarrier(request.store)
    return WorkerCarrier(service.worker, request.client, lambda work: service.on_loop(work, check))


@contextlib.contextmanager
def machine_turn(
    service: Service, *, alone: bool, check: Callable[[], None], progress: Progress
) -> Iterator[None]:
    """Hold one lease of a machine's Dask semaphore, or all of them, so that nothing runs beside.

    One at a time collects all leases, so that two measurements never hold half of them each. A worker that
    is killed holds its leases until Dask lets them run out, 30 s later.
    """
    leases = service.semaphore("stages", _LEASES)
    gate = service.semaphore("measurement", 1)
    with contextlib.ExitStack() as held:
        for semaphore in [gate, *[leases] * _LEASES] if alone else [leases]:
            while not semaphore.acquire(timeout=_WAIT_S):
                progress(f"wait until {'nothing else runs' if alone else 'a measurement ends'} here")
                check()
            held.callback(semaphore.release)
        yield


def _bring(service: Service, request: Request, carrier: Carrier, tell: Progress) -> tuple[str, ...]:
    """Have the files of a request here; return the bundles that nobody has."""
    missing = []
    for digest in dict.fromkeys([request.recipe, *request.inputs.values()]):
        try:
            tell("bring files")
            service.bring(digest, carrier)
        except MissingChunk:
            missing.append(digest)
    return tuple(missing)


def _ask(service: Service, request: Request, do: str, check: Callable[[], None], tell: Progress) -> Answer:
    """Have a process of the worker find a finished stage, or carry it out."""
    with service.children.taken(recipe=request.recipe, alone=request.alone) as child:
        answer = child.ask(
            do,
            check=check,
            progress=tell,
            request=msgspec.to_builtins(request),
            folder=str(service.folder),
        )
        child.recipe = request.recipe
    return msgspec.convert(answer["answer"], Answer)


def _given_out(service: Service, answer: Answer, carrier: Carrier) -> Answer:
    """Keep what a stage wrote as chunks that client and other workers can have."""
    if answer.bundle is None:
        return answer
    folder = service.folder / STAGES / answer.name
    service.adopt(answer.bundle, folder)
    for key, chunk in LocalBundle(answer.bundle, [folder / ref.name for ref in answer.bundle.files]).items():
        carrier.put(key, chunk)
    return answer
