"""Send SIGTERM or SIGHUP to every verb at random moments, and see how soon and how it ends.

    python benchmarks/reliability/stops.py --count 4

Each must end with exit code 143 (129 for SIGHUP), or 0 where its work was done already, without a traceback;
no process and no temporary folder may be left, and what lies under a final name is whole. The seconds from
the signal to the end are printed: a native call is not cut short.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from disk import Road, fresh
from small_road import broken, command, environment, leftovers


def stop(words: list[object], work: Path, after_s: float, number: signal.Signals) -> dict[str, object]:
    """Start a verb, send the signal after some seconds of its work, and look at what is left."""
    out, temporary = work / "out", fresh(work / "temporary")
    with (work / "said").open("w+b") as said:
        process = subprocess.Popen(
            command(*words), stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
            env=environment(TMPDIR=str(temporary)), start_new_session=True,
        )  # fmt: skip
        children: list[psutil.Process] = []
        try:
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            children = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
        began = time.monotonic()
        try:
            code = process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        reaction_s = time.monotonic() - began
        _, alive = psutil.wait_procs(children, timeout=10)
        said.seek(0)
        text = said.read().decode(errors="replace")
    problems = broken(out) + [f"left process {one}" for one in alive if one.status() != psutil.STATUS_ZOMBIE]
    if code not in (0, 128 + number, -number):
        problems.append(f"exit code {code}: {text[-1000:]}")
    if code != -number:  # else the system ended it before any code of ours ran, or after it
        problems += [f"left {path}" for path in leftovers(temporary, out)]
    if "Traceback" in text or "defect" in text:
        problems.append(text[-1000:])
    return {"code": code, "reaction_s": round(reaction_s, 1), "problems": problems}


def main() -> None:
    """Print what was seen, as JSON; exit 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=4, help="moments for each verb")
    parser.add_argument("--signal", choices=["TERM", "HUP"], default="TERM")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="qcompile-stops-"))
    road, moments = Road(work / "road"), random.Random(given.seed)
    failed = False
    for name in road.verbs(Path()):
        began = time.monotonic()
        out = fresh(work / "out")
        stop(road.verbs(out)[name], work, 600, signal.SIGTERM)
        took_s = time.monotonic() - began
        for _ in range(given.count):
            out = fresh(work / "out")
            after_s = moments.uniform(0, took_s)
            seen = stop(road.verbs(out)[name], work, after_s, signal.Signals[f"SIG{given.signal}"])
            print(json.dumps({"verb": name, "after_s": round(after_s, 1), **seen}), flush=True)
            failed = failed or bool(seen["problems"])
    shutil.rmtree(work, ignore_errors=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
