"""Let things go wrong on a real cluster, and look at what comes of it.

    python benchmarks/cluster/faults.py --count 10
    python benchmarks/cluster/faults.py --only "full disk" --count 3 --seed 7

Each trial has a scheduler, two workers and clients in processes of their own. The moment of the fault is
drawn from the seed. After it: the artifacts equal those of one process digest for digest; what the client
held is not carried out again, and nothing else but the stage that was struck; every file under a name is the
one that the name says, in the client's folder and in the workers'; no client prints a traceback; no process
is left. "full disk" mounts a small disk and needs root on Linux.

Results are added to `--output` line by line; trials that are in it are not run again. A table as Markdown is
printed at the end. Exit code 1: something did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fault_kinds import KINDS, recipe_of, scene

# After fault_kinds, which makes them importable.
from cluster_trials import run_words  # isort: skip
from clusters import end_on_sigterm  # isort: skip
from small_road import contents, environment  # isort: skip

_HEADER = "| fault | trials | held | what was seen |\n|---|---:|---:|---|"


def expected(work: Path) -> dict[str, str]:
    """Return what one process makes of the recipe: artifact to digest."""
    shutil.rmtree(work, ignore_errors=True)
    recipe = recipe_of(work)
    done = subprocess.run(
        run_words(recipe, work / "out"), env=environment(), capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise SystemExit(f"one process fails:\n{done.stdout}{done.stderr}")
    return contents(work / "out")


def trial(kind: str, seed: int, work: Path, made: dict[str, str]) -> dict[str, Any]:
    """Let one thing go wrong, and return what was seen."""
    strike, bench = KINDS[kind]
    began = time.monotonic()
    row: dict[str, Any] = {"kind": kind, "seed": seed}
    try:
        with scene(work, random.Random(f"{kind} {seed}"), made, bench=bench) as one:
            strike(one)
        row |= {"problems": one.problems, "seen": one.seen}
    except Exception as error:  # of whatever kind: the campaign goes on
        row |= {"problems": [f"{type(error).__name__}: {error}"[-3000:]], "seen": []}
    return row | {"seconds": round(time.monotonic() - began, 1)}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the trials as Markdown, a line for each fault."""
    lines = [_HEADER]
    for kind in KINDS:
        own = [row for row in rows if row["kind"] == kind]
        if not own:
            continue
        held = sum(not row["problems"] for row in own)
        seen = Counter(said for row in own for said in row["seen"])
        said = "; ".join(f"{text} ({count})" if count > 1 else text for text, count in seen.most_common(4))
        lines.append(f"| {kind} | {len(own)} | {held} | {said} |")
    return "\n".join(lines)


def main() -> int:
    """Run what is missing, print a line a trial and the table; 1 where something did not hold."""
    end_on_sigterm()
    given = _arguments()
    given.output.parent.mkdir(parents=True, exist_ok=True)
    lines = given.output.read_text(encoding="utf-8").splitlines() if given.output.is_file() else []
    rows = [json.loads(line) for line in lines]
    there = {(row["kind"], row["seed"]) for row in rows}
    work = Path(tempfile.mkdtemp(prefix="qcompile-faults-", dir=given.work))
    kinds = [kind for kind in KINDS if not given.only or kind in given.only]
    if os.name != "posix" or os.geteuid() != 0:
        kinds = [kind for kind in kinds if kind != "full disk"]
        print("full disk: skipped, since mounting a disk needs root", file=sys.stderr)
    try:
        made = expected(work / "one")
        for seed in range(given.seed, given.seed + given.count):
            for kind in kinds:
                if (kind, seed) in there:
                    continue
                row = trial(kind, seed, work / "trial", made)
                rows.append(row)
                with given.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    shown = [row for row in rows if row["kind"] in kinds]
    print(table(shown))
    return int(any(row["problems"] for row in shown))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1, help="trials of each fault")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--only", action="append", choices=list(KINDS), help="this fault; may be repeated")
    parser.add_argument("--output", type=Path, default=Path("build/reliability/cluster_faults.jsonl"))
    parser.add_argument("--work", type=Path, help="folder for the trials' folders; default: the system's")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
