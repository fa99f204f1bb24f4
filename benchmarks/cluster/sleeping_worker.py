"""A preload of `dask worker` that makes every stage a sleep; everything else of a worker is the real one.

    dask worker ADDRESS --preload benchmarks/cluster/sleeping_worker.py

A stage takes 10 ms and makes one file of 64 bytes that no other stage makes. The request, its way and that of
the file to the client stay as they are. `QCOMPILE_SLEEP_S` sets another time.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from qcompile.cluster.messages import FileRef, Request, Result
from qcompile.cluster.worker import task
from qcompile.cluster.worker.plugin import NAME, StagePlugin
from qcompile.cluster.worker.stage_work import step_name
from qcompile.files import digest_files
from qcompile.pipeline.store import Store

SLEEP_S = float(os.environ.get("QCOMPILE_SLEEP_S", "0.01"))
STORE = Path(os.environ.get("QCOMPILE_SLEEPING_STORE", tempfile.mkdtemp(prefix="qcompile-sleeping-")))


def sleep(service: Any, request: Request, _: str) -> Result:
    """Answer a request after a sleep, with a file of its own."""
    name = step_name(request.step)
    if request.step.kind in ("quantize", "simplify"):
        return Result("none", worker=service.name, address=str(service.worker.address))
    time.sleep(SLEEP_S)
    text = hashlib.sha256(f"{request.parcel.digest} {name} {sorted(request.given)}".encode()).hexdigest()
    file = f"{request.step.artifact or request.step.kind}.onnx"
    path = STORE / f"{text}.made"
    path.write_text(text)
    digest = digest_files([path])
    service.content.adopt(path, digest)
    path.unlink()
    made = {"slept": text, "file": file}
    return Result(
        "done",
        name=Store(STORE).name(name, made),
        key=made,
        files=(FileRef(file, digest, len(text)),),
        seconds=SLEEP_S,
        worker=service.name,
        address=str(service.worker.address),
    )


async def dask_setup(worker: Any) -> None:
    """Have a worker sleep in place of every stage."""
    STORE.mkdir(parents=True, exist_ok=True)
    task.carry_out = sleep
    await worker.plugin_add(StagePlugin(STORE / "store", slots=worker.state.nthreads), name=NAME)
