"""`python -m qcompile.cluster.stage_process`: carry out stages for a worker, over standard streams.

One JSON object per line in, one out. What a stage prints goes to standard error, and what it reads from
standard input is empty, so it cannot disturb them. When the worker dies, so does this process (Linux).

| request                                      | answer                                          |
|----------------------------------------------|-------------------------------------------------|
| `{"do": "look"}`                             | `{"found"}`, a `facts.Found`                    |
| `{"do": "carry_out", "request", "folder"}`   | `{"answer"}`, a `messages.Answer`               |
| `{"do": "find"}`, and the same               | the same; its outcome is "none" if it is not done |

In front of an answer come lines `{"progress", "text", "total"}`, two a second at most.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from ..bench.worker import die_with_caller, leave_ending_to_caller
from .facts import look
from .messages import Request
from .stage_work import carry_out_request

_TOLD_EVERY_S = 0.5
Write = Callable[[Mapping[str, Any]], None]


def main() -> None:
    """Serve on the standard streams until the input ends."""
    die_with_caller()
    leave_ending_to_caller()
    with contextlib.suppress(OSError):  # where memory runs out, this process goes, not the worker (Linux)
        Path("/proc/self/oom_score_adj").write_text("1000")
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
            reply = {"ok": True, **_reply(json.loads(line), write)}
        except Exception as error:
            traceback.print_exc()
            reply = {"ok": False, "type": type(error).__name__, "message": str(error), "hint": ""}
        write(reply)


def _reply(request: dict[str, Any], write: Write) -> dict[str, Any]:
    if request["do"] == "look":
        return {"found": msgspec.to_builtins(look())}
    last_s = 0.0

    def tell(text: str, done: int = 0, total: int | None = None, /) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s >= _TOLD_EVERY_S:
            last_s = now_s
            write({"progress": done, "text": text, "total": total})

    answer = carry_out_request(
        msgspec.convert(request["request"], Request),
        Path(request["folder"]),
        tell,
        find_only=request["do"] == "find",
    )
    return {"answer": msgspec.to_builtins(answer)}


if __name__ == "__main__":
    main()
