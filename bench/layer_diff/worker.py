"""`python -m qcompile.bench.layer_diff.worker JOB.json`: one run of one side, in a process of its own.

A job names the artifact, the feeds and the taps. The reference's taps are written to files, one a batch;
the artifact's are compared with them as they come, piece by piece, and only sums remain. The process ends
with the run: what it took is given back, its peak is that of this run, and a crash is nobody else's.

Standard output has one line a batch, then `ANSWER.json` is there. When the caller dies, its end of standard
input closes and so does this process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import QCompileError
from ..arrays import load_arrays
from ..worker import peak_memory_bytes
from .forms import Form
from .tally import PIECE, Tally


def run_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a job; its keys are those of `runs.Job`."""
    from ...shapes import ModelIO
    from .tapped import open_tapped

    taps = {tap["tensor"]: tap for tap in job["taps"]}
    io = ModelIO.from_json(job["io"]) if job["io"] else None
    work = _Work(job, taps)
    arguments = {"threads": job["threads"], "folder": Path(job["folder"]), "io": io}
    with open_tapped(Path(job["path"]), job["runtime"], list(taps), **arguments) as opened:
        for number in range(job["batches"]):
            feeds = _feeds(job, number)
            for name, array in opened.run(feeds, job["where"][number]):
                work.take(name, number, array)
                del array
            sys.stdout.write(f"{number + 1}\n")
            sys.stdout.flush()
    return {**work.answer(), "peak_bytes": peak_memory_bytes()}


class _Work:
    """What is done with each tensor of each batch."""

    def __init__(self, job: Mapping[str, Any], taps: Mapping[str, Any]) -> None:
        self.job, self.taps = job, taps
        self.tallies: dict[str, Tally] = {}
        self.changed: dict[str, Tally] = {}
        self.refused: dict[str, str] = {}

    def take(self, name: str, number: int, array: NDArray[Any]) -> None:
        job, tap = self.job, self.taps.get(name)
        if tap is not None and job["reference"]:
            self._compare(
                name, Form.from_json(tap["form"]), Path(job["reference"]) / tap["file"], number, array
            )
        elif tap is None and name in job["outputs"] and job["reference_outputs"]:
            folder = Path(job["reference_outputs"]) / job["outputs"][name]
            self._compare(name, Form(), folder, number, array)
        if tap is None and job["own_outputs"] and name in job["own"]:
            found = self.changed.setdefault(name, Tally())
            _compare_file(found, Path(job["own_outputs"]) / job["own"][name], number, array, Form())
        place = tap["file"] if tap is not None else job["own"].get(name)
        if job["write"] and place is not None:
            folder = Path(job["write"]) / place
            folder.mkdir(exist_ok=True)
            np.save(folder / f"{number}.npy", np.ascontiguousarray(array), allow_pickle=False)

    def answer(self) -> dict[str, Any]:
        return {
            "tallies": {name: tally.as_json() for name, tally in self.tallies.items()},
            "changed": {name: tally.as_json() for name, tally in self.changed.items()},
            "refused": self.refused,
        }

    def _compare(self, name: str, form: Form, folder: Path, number: int, array: NDArray[Any]) -> None:
        if name in self.refused:
            return
        reason = _compare_file(self.tallies.setdefault(name, Tally()), folder, number, array, form)
        if reason:
            self.refused[name] = reason
            del self.tallies[name]


def _compare_file(tally: Tally, folder: Path, number: int, array: NDArray[Any], form: Form) -> str:
    """Add a tensor and the reference's in a file to the tally; the reason why that cannot be, if any."""
    array = form.ordered(array)
    with (folder / f"{number}.npy").open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if shape != array.shape:
            return f"its shape is {array.shape}, the reference's {shape}"
        for piece in form.pieces(array, PIECE):
            # Read, not mapped: mapped pages would count as memory of this process.
            tally.add(np.fromfile(file, dtype, piece.size), piece)
    return ""


def _feeds(job: Mapping[str, Any], number: int) -> dict[str, Any]:
    arrays = load_arrays(Path(job["feeds"]) / f"{number}.npz")
    return {name: array.astype(job["cast"].get(name, array.dtype)) for name, array in arrays.items()}


def answers(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a job, or what went wrong in it."""
    try:
        return {"ok": True, **run_job(job)}
    except QCompileError as error:
        return {"ok": False, "type": type(error).__name__, "message": error.message, "hint": error.hint}
    except Exception as error:  # whatever a runtime raises is the caller's to report
        return {"ok": False, "type": type(error).__name__, "message": str(error), "hint": ""}


def main() -> None:
    """Carry out the job of the first argument; libraries print to standard error."""
    path = Path(sys.argv[1])
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = lines
    threading.Thread(target=_end_with_caller, daemon=True).start()
    answer = answers(json.loads(path.read_text(encoding="utf-8")))
    path.with_name("answer.json").write_text(json.dumps(answer), encoding="utf-8")


def _end_with_caller() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
