"""`python -m qcompile.bench.worker`: serve one artifact over standard streams.

One JSON object per line in, one out. A crash, a leak or a CUDA context stays in this process, memory is
measured per artifact, and the interpreter may be another one than the caller's. When the caller dies,
the input ends and so does the worker.

| request                                          | answer                                          |
|--------------------------------------------------|-------------------------------------------------|
| `{"do": "load", "artifact", "threads", "io"}`    | `{"load_ns", "io", "contains"}`                  |
| `{"do": "feed", "path"}`                         | `{}`; the feeds are kept for `time`              |
| `{"do": "time", "iterations", "discard"}`        | `{"ns": [...]}`                                  |
| `{"do": "infer", "path", "output"}`              | `{}`; outputs are written to `output` (`.npz`)   |
| `{"do": "memory"}`                               | `{"peak_bytes"}`                                 |

An answer has `"ok": true`, or `"ok": false` and the error's `type`, `message` and `hint`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import IO, Any

from ..errors import QCompileError


class Served:
    """The artifact being served, and the feeds it is timed on."""

    def __init__(self) -> None:
        self.runner: Any = None
        self.feeds: dict[str, Any] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request."""
        handler = getattr(self, f"do_{request['do']}")
        return handler(request) or {}

    def do_load(self, request: dict[str, Any]) -> dict[str, Any]:
        from ..engines import load
        from ..shapes import ModelIO

        io = ModelIO.from_json(request["io"]) if request.get("io") else None
        start = time.perf_counter_ns()
        # The caller has checked the digest; hashing here would count as load time.
        self.runner = load(request["artifact"], threads=request["threads"], io=io, trust=True)
        spent = time.perf_counter_ns() - start
        return {
            "load_ns": spent,
            "io": self.runner.io.as_json(),
            "contains": self.runner.contains,
        }

    def do_feed(self, request: dict[str, Any]) -> None:
        self.feeds = _read(request["path"])
        self.runner.infer(self.feeds)

    def do_time(self, request: dict[str, Any]) -> dict[str, Any]:
        discard = request.get("discard", 0)
        durations = self.runner.time(self.feeds, request["iterations"] + discard)
        return {"ns": durations[discard:].tolist()}

    def do_infer(self, request: dict[str, Any]) -> None:
        import numpy as np

        outputs = self.runner.infer(_read(request["path"]))
        np.savez(request["output"], **outputs)

    def do_memory(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"peak_bytes": peak_memory_bytes()}


def peak_memory_bytes() -> int:
    """Return the largest resident memory this process had.

    Not `ru_maxrss` where it can be avoided: a child inherits its parent's there.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until they end."""
    served = Served()
    for line in requests:
        try:
            reply = {"ok": True, **served.answer(json.loads(line))}
        except QCompileError as error:
            reply = {"ok": False, "type": type(error).__name__}
            reply |= {"message": error.message, "hint": error.hint}
        except Exception as error:  # whatever a runtime raises is the caller's to report
            reply = {"ok": False, "type": type(error).__name__, "message": str(error), "hint": ""}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def main() -> None:
    """Serve on the standard streams; whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


def _read(path: str) -> dict[str, Any]:
    import numpy as np

    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


if __name__ == "__main__":
    main()
