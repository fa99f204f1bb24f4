"""How a client learns what a worker is, and makes a worker of another tool's take stages.

What is sent refers to nothing of qcompile but by names inside of it: a scheduler needs no qcompile, and a
worker without it says so. Dask's own `client.run` and `client.submit` carry it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ..messages import Facts, encode

MOST_NAMES = 1000
"""Finished stages of a worker that it tells of, the latest."""


class Introduction(msgspec.Struct, frozen=True):
    """What a worker says of itself.

    Attributes:
        facts: What it has; None where it cannot take stages.
        finished: Names of its finished stages, the latest first.
        problem: Why it cannot take stages.
    """

    facts: Facts | None = None
    finished: tuple[str, ...] = ()
    problem: str = ""


def asking() -> Callable[..., Awaitable[bytes]]:
    """Return what `client.run` has workers do: an `Introduction` as JSON."""

    async def ask(dask_worker: Any) -> bytes:
        try:
            from qcompile.cluster.client.introduction import introduce
        except ImportError as error:
            import json

            return json.dumps({"problem": f"cannot import qcompile ({error})"}).encode()
        return await introduce(dask_worker)

    return ask


def carrying_out() -> Callable[[bytes], bytes]:
    """Return what `client.submit` has a worker do: a `Request` to a `Result`."""

    def qcompile_stage(request: bytes) -> bytes:
        from qcompile.cluster.worker.task import carry_out_request

        return carry_out_request(request)

    return qcompile_stage


async def introduce(worker: Any) -> bytes:
    """Return what a worker is; one that another tool started is made to take stages."""
    from ...errors import QCompileError, first_line
    from ..worker.plugin import NAME, StagePlugin, service_of

    if service_of(worker) is None:
        try:
            await worker.plugin_add(StagePlugin(), name=NAME, catch_errors=False)
        except (QCompileError, OSError) as error:
            return encode(Introduction(problem=f"cannot take stages ({first_line(error)})"))
    service = service_of(worker)
    if service is None or service.facts is None:
        return encode(Introduction(problem="is ending"))
    return encode(Introduction(service.facts, tuple(await asyncio.to_thread(service.finished, MOST_NAMES))))
