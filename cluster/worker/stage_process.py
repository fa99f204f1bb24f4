"""`python -m qcompile.cluster.worker.stage_process`: carry out stages for a worker, over standard streams.

One JSON object per line in, one out. What a stage prints goes to standard error, and what it reads from
standard input is empty, so it cannot disturb them. When the worker dies, so does this process (Linux), and
elsewhere its input ends.

| request                                                   | answer                                     |
|-----------------------------------------------------------|--------------------------------------------|
| `{"do": "look"}`                                          | `{"found"}`, a `facts.Found`               |
| `{"do": "carry_out", "request", "store", "worker",        | `{"result"}`, a `messages.Result`          |
|   "address"}`                                             |                                            |
| `{"do": "find"}`, and the same                            | the same; null where it is not done        |

An answer has `"ok": true`, the memory that the process holds, and whether it ran code of the recipe; or
`"ok": false` with `type` and `message` for a defect of this program. In front of it come lines
`{"progress", "text", "total"}`, two a second at most.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from ...bench.worker import die_with_caller, leave_ending_to_caller
from ...errors import QCompileError
from ...files.storage import storage_error
from ..facts import look
from ..messages import Request
from .stage_work import Job, carry_out_job, failed

_TOLD_EVERY_S = 0.5

Write = Callable[[Mapping[str, Any]], None]


def main() -> None:
    """Serve on the standard streams until the input ends."""
    die_with_caller()
    leave_ending_to_caller()
    _be_the_first_to_go()
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    serve(requests, answers)


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until they end."""

    def write(line: Mapping[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    for line in requests:
        try:
            reply = {"ok": True, **_answer(json.loads(line), write)}
        except Exception as error:
            traceback.print_exc()
            reply = {"ok": False, "type": type(error).__name__, "message": str(error), "hint": ""}
        write(reply)


def _answer(request: dict[str, Any], write: Write) -> dict[str, Any]:
    if request["do"] == "look":
        return {"found": msgspec.to_builtins(look())}
    store = Path(request["store"])
    job = Job(
        request=msgspec.convert(request["request"], Request),
        store=store,
        worker=request["worker"],
        address=request["address"],
        find_only=request["do"] == "find",
    )
    try:
        result = carry_out_job(job, Teller(write))
    except QCompileError as error:
        result = failed(job, error)
    except OSError as error:
        said = storage_error(error)
        if said is None:
            raise
        said.__cause__ = error
        result = failed(job, said)
    return {
        "result": msgspec.to_builtins(result),
        "resident_bytes": _resident_bytes(),
        "ran_code": _ran_code(store),
    }


class Teller:
    """A `Progress` that writes a line at most twice a second."""

    def __init__(self, write: Write) -> None:
        self._write, self._told_s = write, 0.0

    def __call__(self, text: str, done: int = 0, total: int | None = None, /) -> None:
        """As `Progress`."""
        now_s = time.monotonic()
        if now_s - self._told_s >= _TOLD_EVERY_S:
            self._told_s = now_s
            self._write({"progress": done, "text": text, "total": total})


def _ran_code(store: Path) -> bool:
    """Whether a module of a recipe was imported: what it has done to this interpreter stays."""
    folder = f"{store.resolve()}{os.sep}"
    return any(str(getattr(module, "__file__", None) or "").startswith(folder) for module in _modules())


def _modules() -> list[object]:
    return list(sys.modules.values())


def _resident_bytes() -> int:
    """Memory that this process holds; 0 where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _be_the_first_to_go() -> None:
    """Where the system runs out of memory, it ends this process, not the worker (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()
