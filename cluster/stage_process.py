"""`python -m qcompile.cluster.stage_process FOLDER`: carry out one stage for a worker.

It reads FOLDER/question.json and writes FOLDER/answer.json; lines of progress go to standard output as JSON,
what a stage prints to standard error. When the worker dies, so does this process (Linux).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from ..bench.worker import die_with_caller, leave_ending_to_caller
from ..files import write_text
from .facts import resources_here
from .messages import Request
from .stage_work import carry_out_request


def main() -> None:
    """Answer one question."""
    die_with_caller()
    leave_ending_to_caller()
    with contextlib.suppress(OSError):  # where memory runs out, this process goes, not the worker (Linux)
        Path("/proc/self/oom_score_adj").write_text("1000")
    folder = Path(sys.argv[1])
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(text: str, done: int = 0, total: int | None = None, /) -> None:
        lines.write(json.dumps([text, done, total]) + "\n")
        lines.flush()

    question = json.loads((folder / "question.json").read_bytes())
    if question["do"] == "look":
        answer: Any = resources_here()
    else:
        request = msgspec.convert(question["request"], Request)
        find_only = question["do"] == "find"
        answer = carry_out_request(request, Path(question["folder"]), tell, find_only=find_only)
    write_text(folder / "answer.json", msgspec.json.encode(answer).decode())


if __name__ == "__main__":
    main()
