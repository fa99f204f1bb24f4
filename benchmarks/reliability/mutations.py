"""Run damaged ONNX files through five verbs, `inspect` to `build`, each file in a child process of its own.

Expected of every run: success or one clear message; no crash, none over 60 s, none over 4 GB. Number I of the
files depends on I alone. What is in the journal already is not run again; `--shard 1/2` is for two processes.

Example: nice python benchmarks/reliability/mutations.py --count 5000 --journal mutations.jsonl
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import forked_verbs
import onnx
from model_mutations import mutate
from mutation_seeds import EXTERNAL, SEEDS, write_data, write_seed

_KINDS = [*SEEDS, EXTERNAL]


def write_mutant(number: int, folder: Path) -> tuple[str, list[str]]:
    """Write a damaged file as `m.onnx`; return the seed's name and what was done."""
    seed = _KINDS[number % len(_KINDS)]
    path = write_seed(seed, folder)
    content, done = mutate(onnx.load(path, load_external_data=False), random.Random(f"mutant {number}"))
    path.write_bytes(content)
    return seed, done


def targets_of(number: int, more: bool) -> list[str]:
    """ONNX Runtime always; OpenVINO for every fifth, TensorRT-RTX for every tenth file."""
    targets = ["onnxruntime"]
    if more and number % 5 == 0:
        targets.append("openvino")
    if more and number % 10 == 0:
        targets.append("tensorrt-rtx")
    return targets


def main() -> int:
    """Run them, and print the table and what must not be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--shard", default="1/1", help="PART/PARTS of the numbers")
    parser.add_argument("--journal", type=Path, default=Path("mutations.jsonl"))
    parser.add_argument("--only-onnxruntime", action="store_true", help="build for ONNX Runtime alone")
    parser.add_argument("--report", type=Path, nargs="*", help="print their table, run nothing")
    parser.add_argument("--write", type=int, help="write this file here, run nothing")
    options = parser.parse_args()
    if options.report is not None:
        return forked_verbs.report(options.report, "files")
    if options.write is not None:
        print(*write_mutant(options.write, Path.cwd()))
        return 0
    journal = forked_verbs.Journal(options.journal)
    part, parts = map(int, options.shard.split("/"))
    with tempfile.TemporaryDirectory(prefix="qcompile-reliability-") as place:
        for name in _KINDS:
            write_data(name, Path(place) / f"{name}.npz")

        def whole(folder: Path) -> Sequence[forked_verbs.Step]:
            write_seed("conv_net", folder)
            targets = targets_of(0, not options.only_onnxruntime)
            return forked_verbs.verbs_of(Path(place) / "conv_net.npz", targets)

        forked_verbs.prepare(whole)
        last = time.monotonic()
        for number in range(options.start, options.start + options.count):
            if number % parts != part - 1 or str(number) in journal.done:
                continue
            with forked_verbs.scratch() as folder:
                seed, done = write_mutant(number, folder)
                targets = targets_of(number, not options.only_onnxruntime)
                steps = forked_verbs.verbs_of(Path(place) / f"{seed}.npz", targets)
                journal.add(str(number), forked_verbs.run_steps(steps, folder), seed=seed, done=done)
            if time.monotonic() - last > 10:
                last = time.monotonic()
                print(f"{number} of {options.start + options.count}", file=sys.stderr, flush=True)
    return forked_verbs.report([options.journal], "files")


if __name__ == "__main__":
    sys.exit(main())
