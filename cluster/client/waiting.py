"""One task of Dask: submitted, waited for, and let go, whatever comes between."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import msgspec

from ...errors import ClusterError, first_line
from ..messages import Request, Result, encode
from .introduction import carrying_out
from .needs import Place
from .roster import lost_scheduler

_LOOK_S = 1.0
_GATHER_S = 60.0


class Lost(Exception):
    """The workers that a step could go to are gone."""


def carry_out_there(
    client: Any, request: Request, place: Place, check: Callable[[], bool], *, priority: int = 0
) -> Result:
    """Have a worker carry a request out.

    Args:
        client: A synchronous `distributed.Client`.
        request: What is asked.
        place: Which workers, and what it takes of one.
        check: Called now and then; raises to give up, and tells whether one of the workers is still there.
        priority: The larger, the earlier.

    Raises:
        Lost: If no worker of the place is there any more.
        ClusterError: If the scheduler is lost, or the task fails in a way that no step does.
    """
    over = threading.Event()
    future = client.submit(
        carrying_out(),
        encode(request),
        key=f"qcompile-{request.step.kind}-{uuid.uuid4().hex}",
        workers=list(place.workers),
        resources=dict(place.resources),
        priority=priority,
        pure=False,
    )
    try:
        future.add_done_callback(lambda _: over.set())
        while not over.wait(_LOOK_S) and not future.done():
            if client.status in ("closed", "closing"):
                raise lost_scheduler(client)
            if not check() and not future.done():
                raise Lost
        return _outcome(client, future)
    except BaseException:
        with contextlib.suppress(Exception):  # the scheduler may be gone: then so is the task
            future.cancel()
        raise
    finally:
        future.release()


def _outcome(client: Any, future: Any) -> Result:
    from distributed.comm.core import CommClosedError
    from distributed.scheduler import KilledWorker, NoValidWorkerError

    try:
        return msgspec.json.decode(future.result(timeout=_GATHER_S), type=Result)
    except (CommClosedError, TimeoutError, NoValidWorkerError) as error:
        raise Lost from error
    except KilledWorker as error:
        raise ClusterError(
            f"{error.allowed_failures + 1} workers ended while they did it; the last was "
            f"{error.last_worker.address}",
            hint="see what ended them, such as memory; what was finished is kept: run again to go on",
            worker=error.last_worker.address,
        ) from error
    except CancelledError as error:
        if getattr(error, "reason", "") == "scheduler-connection-lost" or client.status != "running":
            raise lost_scheduler(client) from error
        raise Lost from error
    except Exception as error:  # of Dask, or of a worker whose qcompile is another one
        raise ClusterError(
            f"a worker failed: {type(error).__name__}: {first_line(error)}",
            hint="see the worker's log; what was finished is kept: run again to go on",
        ) from error
