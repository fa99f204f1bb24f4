"""Run every verb under limits drawn at random, and report how each run ends.

    python benchmarks/reliability/limits.py --runs 120              # address space, 0.2 to 2.5 GB
    python benchmarks/reliability/limits.py --by memory --runs 60   # --untrusted, memory
    python benchmarks/reliability/limits.py --by time --runs 60     # --untrusted, ended at a random moment

| outcome   | what                                                                                    |
|-----------|-----------------------------------------------------------------------------------------|
| done      | exit code 0                                                                             |
| message   | exit code 1, and an error or a row that says why                                        |
| traceback | a traceback, or "a defect of qcompile"                                                  |
| crash     | another exit code: a signal, or a library that ends the process                         |
| hang      | no end within `--hang-s`                                                                |
| partial   | a file under a final name that is not whole, or (with --untrusted) an unfinished one    |

Each run is a process of its own with a folder of its own. The same seed draws the same verbs and limits.
Exit code 1 of this script: an outcome other than done or message. Linux.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from small_road import broken, carry_out, command, environment, leftovers, write_road

BY = {"address-space": (0.2, 2.5), "memory": (0.1, 0.35), "time": (0.1, 4.0)}
"""Kind of limit to its least and greatest: 10**9 bytes, or seconds."""
GOOD = ("done", "message")
_LIMITED = """
import os, resource, sys
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
os.execv(sys.argv[2], sys.argv[2:])
"""
_NET = """
import torch
def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1024, 16), torch.nn.ReLU()).eval()
"""


def verbs(f: Path, out: Path) -> dict[str, list[object]]:
    """Verb to its words, with outputs in a folder."""
    model, data, ranges = f / "model.onnx", f / "calibration.npz", f / "m.ranges"
    short = ["--max-time", "0.2", "--threads", "1"]
    return {
        "inspect": ["inspect", model],
        "export": ["export", f"{f}/net.py:build", "-i", "x:[batch,4,16,16]", "-o", out / "e.onnx"],
        "export timm": ["export", "timm:resnet10t", "--weights", "random", "-o", out / "e.onnx"],
        "simplify": ["simplify", model, "-o", out / "s.onnx"],
        "calibrate": ["calibrate", model, "--data", data, "-o", out / "c.ranges"],
        "quantize": ["quantize", model, "--ranges", ranges, "--target", "onnxruntime", "-o", out / "q.onnx"],
        "build": ["build", model, "--target", "onnxruntime", "-o", out / "b.onnx"],
        "openvino": ["build", model, "--target", "openvino", "-o", out / "o.onnx"],
        "rtx": ["build", model, "--target", "tensorrt-rtx", "--gpu", "sm86", "-o", out / "t.engine"],
        "bench": ["bench", f / "built.onnx", "--baseline", model, *short, "-o", out / "r.json"],
        "diff": ["diff", model, f / "built.onnx", "--layers", "-o", out / "d.json"],
        "report": ["report", f / "results.json", "-o", out / "report.html"],
        "ranges": ["ranges", "show", ranges],
        "run": ["run", f / "recipe.toml", "-o", out / "out"],
    }  # fmt: skip


def prepare(folder: Path, names: list[str]) -> None:
    """Write the files that the named verbs take."""
    write_road(folder)
    (folder / "net.py").write_text(_NET)
    made = verbs(folder, folder)
    for words, readers in (
        ([*made["calibrate"][:-1], folder / "m.ranges"], {"quantize", "ranges"}),
        ([*made["build"][:-1], folder / "built.onnx"], {"bench", "diff", "report"}),
        ([*made["bench"][:-1], folder / "results.json"], {"report"}),
    ):
        if readers & set(names):
            code, said = carry_out(command(*words))
            if code:
                raise SystemExit(said)


def attempt(words: list[str], place: Path, hang_s: float) -> tuple[str, str, float]:
    """Return the outcome, what was said, and the seconds."""
    place.mkdir()
    (place / "tmp").mkdir()
    began = time.monotonic()
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        errors="replace", env=environment(TMPDIR=str(place / "tmp")), start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=hang_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        return "hang", said, time.monotonic() - began
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return outcome(process.returncode, said, place, words), said, time.monotonic() - began


def outcome(code: int, said: str, place: Path, words: list[str]) -> str:
    """Name how a run ended."""
    if "Traceback (most recent" in said or "defect of qcompile" in said or "Exception ignored" in said:
        return "traceback"
    if code not in (0, 1):
        return f"crash ({code})"
    if broken(place) or ("--untrusted" in words and leftovers(place)):
        return "partial"
    if code == 0:
        return "done"
    return (
        "message"
        if any(word in said for word in ("error: ", "warning: ", "failed", "MISMATCH"))
        else "silent"
    )


def limited(by: str, limit: float, words: list[object]) -> list[str]:
    """The command line of a run under a limit."""
    if by == "address-space":
        return [sys.executable, "-c", _LIMITED, str(int(limit * 1e9)), *command(*words)]
    option = "--memory-limit-gb" if by == "memory" else "--time-limit-s"
    return command(*words, "--untrusted", option, f"{limit:.3f}")


def main() -> int:
    """Carry out the campaign."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--by", choices=list(BY), default="address-space", help="what is limited")
    parser.add_argument("--runs", type=int, default=60, help="how many runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=float, help="least limit: 10**9 bytes, or seconds")
    parser.add_argument("--most", type=float, help="greatest limit")
    parser.add_argument("--verbs", default="", help="names of this file's verbs, with commas; all by default")
    parser.add_argument("--hang-s", type=float, default=150.0, help="a run that takes longer hangs")
    parser.add_argument("--output", type=Path, help="one JSON object per run is appended here")
    parser.add_argument("--show", action="store_true", help="print what was said in every run")
    given = parser.parse_args()
    least, most = BY[given.by]
    least, most = given.least or least, given.most or most
    draw, counts, slowest_s = random.Random(given.seed), Counter[str](), 0.0
    with tempfile.TemporaryDirectory(prefix="qcompile-limits-") as work:
        files = Path(work) / "files"
        names = [name for name in given.verbs.split(",") if name] or list(verbs(files, files))
        prepare(files, names)
        for number in range(given.runs):
            name, place = names[number % len(names)], Path(work) / f"run{number}"
            limit = math.exp(draw.uniform(math.log(least), math.log(most)))
            words = limited(given.by, limit, verbs(files, place)[name])
            ended, said, seconds = attempt(words, place, given.hang_s)
            shutil.rmtree(place)
            counts[ended] += 1
            slowest_s = max(slowest_s, seconds)
            row = {
                "by": given.by,
                "verb": name,
                "limit": round(limit, 3),
                "outcome": ended,
                "seconds": seconds,
            }
            print(f"{number:4} {name:12} {limit:6.3f} {ended:10} {seconds:5.1f} s", flush=True)
            if given.show or ended not in GOOD:
                print("    " + said.strip()[-1500:].replace("\n", "\n    "), flush=True)
            if given.output:
                with given.output.open("a") as file:
                    file.write(json.dumps(row | {"said": said[-2000:]}) + "\n")
    print(f"{given.by}: {given.runs} runs, {dict(counts)}, slowest {slowest_s:.1f} s")
    return 0 if all(ended in GOOD for ended in counts) else 1


if __name__ == "__main__":
    sys.exit(main())
