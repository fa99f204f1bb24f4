"""Long runs: whether memory, descriptors, threads, processes or temporary files grow.

    python benchmarks/reliability/long_run.py                     # all subjects, each as often as in `--list`
    python benchmarks/reliability/long_run.py onnxruntime worker --count 1000000
    python benchmarks/reliability/long_run.py --list

A subject is one way to use qcompile again and again. Each runs in a process of its own, on a model of two
small matrix products. Two hundred times what the process (and its worker) holds is read from /proc. Before
and after, it is compared with nothing open: what is left is counted exactly. Memory is *flat* where the 99%
interval of its growth after the first fifth lies below 1% of it (1 MiB at least), *growing* where the
interval lies above zero and its middle above that limit, else *undecided*.

Results are added to `--output` line by line; subjects that are in it already are not run again. Exit code 1:
one grows, or leaves something behind.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from long_run_subjects import SUBJECTS, write_inputs
from process_use import Sample, growth_of, sample

HEADER = (
    "| subject | iterations | memory at the end | growth [99% interval] | memory "
    "| descriptors, threads, children while running | left at the end |\n|---|---|---|---|---|---|---|"
)


def main() -> int:
    """Run subjects, each in a process of its own, and print a table."""
    arguments = _arguments()
    if arguments.list:
        for name, subject in SUBJECTS.items():
            print(f"{name:20} {subject.count:>9,} x {subject.says}")
        return 0
    if arguments.one:
        print(json.dumps(run_one(arguments.subjects[0], arguments.count, arguments.samples, Path.cwd())))
        return 0
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    done = _finished(arguments.output)
    print(HEADER)
    failed = False
    for name in arguments.subjects or list(SUBJECTS):
        count = arguments.count or SUBJECTS[name].count
        row = done.get(f"{name} {count}")
        if row is None:
            row = _in_process(name, count, arguments.samples)
            with arguments.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        print(as_table_row(row), flush=True)
        failed |= row["verdict"] == "growing" or any(count > 0 for count in row["left"].values())
    return int(failed)


def run_one(name: str, count: int, samples: int, folder: Path) -> dict[str, Any]:
    """Run a subject in this process, and return what it held and left.

    Args:
        name: Of the subject.
        count: Iterations.
        samples: How often it is looked at.
        folder: For its files; `tmp` in it is the temporary folder.
    """
    subject = SUBJECTS[name]
    temporary = Path(tempfile.gettempdir())
    own = os.getpid()
    inputs = write_inputs(folder)
    every = max(1, count // samples)
    with subject.open(inputs) as once:  # libraries keep what their first use makes: threads, open files
        once.step(1)
    gc.collect()
    before = sample(0, [own], temporary)
    seen: list[Sample] = []
    began = time.monotonic()
    with subject.open(inputs) as use:
        done = 0
        while done < count:
            use.step(every)
            done += every
            seen.append(sample(done, [own, *use.pids], temporary))
    seconds = time.monotonic() - began
    del use, once
    gc.collect()
    after = sample(done, [own], temporary)
    growth = growth_of(seen)
    steady = seen[len(seen) // 5 :]
    return {
        "subject": name,
        "iterations": done,
        "asked": count,
        "seconds": round(seconds, 1),
        "verdict": growth.verdict,
        "growth": asdict(growth),
        "held": {
            kind: [min(values), max(values)]
            for kind in ("rss_bytes", "descriptors", "threads", "children", "temporary")
            for values in [[getattr(one, kind) for one in steady]]
        },
        "left": {
            kind: getattr(after, kind) - getattr(before, kind)
            for kind in ("descriptors", "threads", "children", "temporary")
        },
        "rss_bytes_after": after.rss_bytes,
        "rss_kib": [one.rss_bytes >> 10 for one in seen],
    }


def as_table_row(row: dict[str, Any]) -> str:
    """Return a line of the Markdown table."""
    growth, held, left = row["growth"], row["held"], row["left"]
    span = ", ".join(
        str(low) if low == high else f"{low} to {high}"
        for low, high in (held[kind] for kind in ("descriptors", "threads", "children"))
    )
    behind = ", ".join(f"{count} {kind}" for kind, count in left.items() if count > 0) or "nothing"
    kib = [f"{growth[bound] / 1024:+.0f}" for bound in ("middle", "low", "high")]
    return (
        f"| {row['subject']} | {row['iterations']:,} | {held['rss_bytes'][1] / 2**20:.1f} MiB "
        f"| {kib[0]} KiB [{kib[1]}, {kib[2]}] | {row['verdict']} | {span} | {behind} |"
    )


def _in_process(name: str, count: int, samples: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="long-run-") as text:
        folder = Path(text)
        (folder / "tmp").mkdir()
        environment = os.environ | {
            "TMPDIR": str(folder / "tmp"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),  # qcompile may come from a checkout
        }
        command = [sys.executable, str(Path(__file__).resolve()), name, "--one", "--count", str(count)]
        command += ["--samples", str(samples)]
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return row


def _finished(output: Path) -> dict[str, dict[str, Any]]:
    if not output.is_file():
        return {}
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    return {f"{row['subject']} {row['asked']}": row for row in rows}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subjects", nargs="*", help="default: all")
    parser.add_argument("--count", type=int, default=0, help="iterations; default: each subject's own")
    parser.add_argument("--samples", type=int, default=200, help="how often it is looked at; 30 at least")
    parser.add_argument("--output", type=Path, default=Path("build/reliability/long_run.jsonl"))
    parser.add_argument("--list", action="store_true", help="print the subjects")
    parser.add_argument("--one", action="store_true", help="in this process, in this folder; prints JSON")
    arguments = parser.parse_args()
    unknown = set(arguments.subjects) - set(SUBJECTS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: {', '.join(SUBJECTS)} are known")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
