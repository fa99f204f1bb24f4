"""Run verbs of the command line on many models, each model in a forked child with limits.

The parent imports everything once; a child costs some hundredths of a second. A child that crashes, hangs or
grows too large ends its verb alone: another child runs the verbs that remain.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SECONDS = 60.0
"""A verb that takes longer hangs."""
RESIDENT_BYTES = 4 << 30
"""A child that grows larger is killed."""
_ADDRESS_BYTES = 8 << 30
"""Address space beyond what the parent has: the net below the watched limit, between two looks."""
_LOOK_S = 0.1


@dataclass(frozen=True)
class Outcome:
    """What a verb did.

    Attributes:
        verb: Its name.
        kind: "ok", "refused", "traceback", "crash", "hang" or "memory".
        said: The last line of its error; the signal of a crash.
        seconds: Wall time.
        peak_bytes: Largest resident memory that was seen, of the whole child.
    """

    verb: str
    kind: str
    said: str
    seconds: float
    peak_bytes: int = 0


Step = tuple[str, Callable[[], Sequence[str]]]
"""Name of a verb, and what gives its words when its turn has come."""


def prepare(model: Callable[[Path], Sequence[Step]]) -> None:
    """Import what the verbs need, and load what is compiled, without a thread.

    A first child runs the verbs of a whole model and tells what it imported; importing that again in every
    child would take longer than the verbs.

    Args:
        model: Writes a model to a folder, and returns its verbs.
    """
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    import qcompile  # noqa: F401
    from qcompile.calibration.counting import make_count

    make_count()
    with scratch() as folder:
        names = folder / "modules"
        steps = [*model(folder), ("modules", lambda: _told_modules(names))]
        run_steps(steps, folder)
        for module in names.read_text().split():
            with contextlib.suppress(Exception):
                importlib.import_module(module)
    gc.collect()
    gc.freeze()  # or every child copies all pages of Python objects when it collects
    threads = len(os.listdir("/proc/self/task"))
    print(f"{threads} threads before the fork", file=sys.stderr)


def _told_modules(names: Path) -> list[str]:
    """Write what this child imported; the verb that follows is to do nothing."""
    names.write_text("\n".join(name for name in sys.modules if not name.startswith("__")))
    return ["--version"]


def run_steps(steps: Sequence[Step], folder: Path) -> list[Outcome]:
    """Return what each verb does; their files go to `folder`, which is the children's current one."""
    outcomes: list[Outcome] = []
    while len(outcomes) < len(steps):
        outcomes += _one_child(steps[len(outcomes) :], folder)
    return outcomes


def _one_child(steps: Sequence[Step], folder: Path) -> list[Outcome]:
    """Outcomes of the first verbs: of all, or up to the one that the child did not survive."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.close(read_end)
        _child(steps, folder, write_end)
    os.close(write_end)
    try:
        return _watch(child, read_end, steps)
    finally:
        os.close(read_end)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # whatever it started
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def _watch(child: int, read_end: int, steps: Sequence[Step]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    pending, began, peak = b"", time.monotonic(), 0
    while True:
        ready, _, _ = select.select([read_end], [], [], _LOOK_S)
        peak = max(peak, _resident(child))
        verb, seconds = steps[len(outcomes)][0], time.monotonic() - began
        if peak > RESIDENT_BYTES or seconds > SECONDS:
            kind = "memory" if peak > RESIDENT_BYTES else "hang"
            return [*outcomes, Outcome(verb, kind, "", seconds, peak)]
        if not ready:
            continue
        chunk = os.read(read_end, 1 << 16)
        pending += chunk
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            outcomes.append(Outcome(**{**json.loads(line), "peak_bytes": peak}))
            began = time.monotonic()
        if len(outcomes) == len(steps):
            return outcomes
        if not chunk:
            _, status = os.waitpid(child, 0)
            said = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {status >> 8}"
            return [*outcomes, Outcome(steps[len(outcomes)][0], "crash", said, seconds, peak)]


def _resident(process: int) -> int:
    try:
        with open(f"/proc/{process}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _child(steps: Sequence[Step], folder: Path, write_end: int) -> None:
    """Run the verbs and never return."""
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open("/proc/self/statm") as file:
            limit = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + _ADDRESS_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for verb, words in steps:
            result = _run(verb, [str(word) for word in words()], folder / f"{verb}.said")
            os.write(write_end, (json.dumps(result) + "\n").encode())
    except BaseException:  # a defect of this script
        traceback.print_exc()
    finally:
        os._exit(0)


def _run(verb: str, words: list[str], log: Path) -> dict[str, Any]:
    from qcompile.cli import main

    began = time.monotonic()
    file = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    code: object = 0
    failed = ""
    try:
        main(words)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        failed = traceback.format_exc()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os.close(file)
    said = failed or log.read_text(errors="replace")
    return {
        "verb": verb,
        "kind": _kind(code, said, bool(failed)),
        "said": _last_error(said) if code or failed else "",
        "seconds": round(time.monotonic() - began, 3),
    }


def _kind(code: object, said: str, failed: bool) -> str:
    if failed or "Traceback (most recent" in said or "error: unexpected" in said:
        return "traceback"
    if code in (0, None):
        return "ok"
    return "refused" if code in (1, 2) and ("error: " in said or "Error: " in said) else "traceback"


def _last_error(said: str) -> str:
    lines = said.strip().splitlines()
    errors = [line for line in lines if line.lower().startswith("error: ")]
    return (errors or lines or [""])[-1][:400]


class Journal:
    """One JSON line per model; what is there already is not run again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.done = {row["model"] for row in self.rows}

    def add(self, model: str, outcomes: Sequence[Outcome], **more: object) -> None:
        """Write the outcomes of one model."""
        row = {"model": model, **more, "outcomes": [asdict(one) for one in outcomes]}
        self.rows.append(row)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return verb by kind of outcome, as Markdown."""
    kinds = ("ok", "refused", "traceback", "crash", "hang", "memory")
    verbs = list(dict.fromkeys(one["verb"] for row in rows for one in row["outcomes"]))
    lines = ["| verb | runs | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 2) + "|"]
    for verb in verbs:
        found = [one["kind"] for row in rows for one in row["outcomes"] if one["verb"] == verb]
        cells = " | ".join(str(found.count(kind)) for kind in kinds)
        lines.append(f"| {verb} | {len(found)} | {cells} |")
    return "\n".join(lines)


def findings(rows: Sequence[dict[str, Any]]) -> str:
    """Return every outcome that must not be, alike ones together, the most frequent first."""
    alike: dict[str, list[str]] = {}
    for row in rows:
        for one in row["outcomes"]:
            if one["kind"] in ("traceback", "crash", "hang", "memory"):
                text = re.sub(r"0x[0-9a-f]+|\d+|'[^']*'", "_", one["said"])[:160]
                alike.setdefault(f"{one['verb']}: {one['kind']}: {text}", []).append(row["model"])
    ordered = sorted(alike.items(), key=lambda item: -len(item[1]))
    return "\n".join(f"{len(names)} x {text} (such as {names[0]})" for text, names in ordered)


def report(journals: Sequence[Path], what: str) -> int:
    """Print what the journals hold; return 1 where something must not be."""
    rows = [row for path in journals for row in Journal(path).rows]
    runs = [one for row in rows for one in row["outcomes"]]
    slowest = max(runs, key=lambda one: one["seconds"])
    largest = max(one["peak_bytes"] for one in runs)
    print(f"{len(rows)} {what}, {len(runs)} runs\n{table(rows)}")
    print(f"slowest {slowest['seconds']:.1f} s ({slowest['verb']}); largest {largest / (1 << 30):.2f} GiB")
    found = findings(rows)
    print(found or "nothing that must not be")
    return 1 if found else 0


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder for one model, and remove it."""
    folder = Path(tempfile.mkdtemp(prefix="qcompile-reliability-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def verbs_of(data: Path | None, targets: Sequence[str]) -> list[Step]:
    """Return the verbs for `m.onnx` in the current folder."""

    def calibrated() -> list[str]:
        more = ["--ranges", "m.ranges"] if Path("m.ranges").is_file() else ["--mode", "dynamic"]
        return ["quantize", "m.onnx", "-o", "q.onnx", *more]

    steps: list[Step] = [
        ("inspect", lambda: ["inspect", "m.onnx"]),
        ("simplify", lambda: ["simplify", "m.onnx", "-o", "s.onnx"]),
    ]
    if data is not None:
        steps.append(
            (
                "calibrate",
                lambda: ["calibrate", "m.onnx", "--data", str(data), "-o", "m.ranges", "--threads", "1"],
            )
        )
    steps.append(("quantize", calibrated))
    for target in targets:
        suffix = ".engine" if target.startswith("tensorrt") else ".onnx"
        words = ["build", "m.onnx", "--target", target, "-o", f"b{suffix}"]
        words += ["--gpu", "sm86"] if target.startswith("tensorrt") else []
        steps.append((f"build {target}", lambda words=words: words))  # type: ignore[misc]
    return steps
