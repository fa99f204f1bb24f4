"""What runs of recipes would take on a fleet, from the records of runs that were done.

    python benchmarks/cluster/cost_model.py out --workers 1,2,4 --slots 1 --link-mbit 1000 --price-per-hour P
    python benchmarks/cluster/cost_model.py out --workers 2 --measured-s 61.4 --measured-bytes 104857600

OUT is the output folder of `qcompile run` (several for a sweep): each finished stage has a record of its
seconds and files there, and its key names the files that it read. A stage that runs share counts once.
`docs/cluster.md` has the formulas; `fleet.py` computes them. `--given-bytes` is what the recipe reads (model,
data), which every worker gets once; the default is the size of the recipe's folder without OUT.

With `--measured-s` and `--measured-bytes`, what was seen with the last number of workers is compared with the
prediction. Exit code 1: it lies outside of the bounds by more than `--tolerance`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fleet import Estimate, Fleet, Task, estimate

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
HEADER = (
    "| workers x slots | work s | longest chain s | makespan s: bound, schedule, bound "
    "| fetched MB | made MB | dollars |\n|---|---:|---:|---:|---:|---:|---:|"
)


def tasks_of(outputs: Sequence[Path], given_bytes: int = 0) -> list[Task]:
    """Return the finished stages of runs, each once, in an order in which they can be done.

    Args:
        outputs: Folders that the runs published to.
        given_bytes: What the recipes read; one file of that size which every stage reads.

    Raises:
        SystemExit: If there are none.
    """
    records = {
        path.parent.name: json.loads(path.read_bytes())
        for output in outputs
        for path in sorted(output.glob(".qcompile/*/stage.json"))
    }
    sizes = {
        digest: int(record["stats"][name][0])
        for record in records.values()
        for name, digest in record["files"].items()
    }
    tasks = []
    for name, record in records.items():
        makes = {digest: sizes[digest] for digest in record["files"].values()}
        read = {*_DIGEST.findall(json.dumps(record["key"]))} & sizes.keys() - makes.keys()
        reads = {digest: sizes[digest] for digest in read} | ({"given": given_bytes} if given_bytes else {})
        tasks.append(Task(name, record.get("seconds") or 0.0, reads, makes, record.get("peak_bytes") or 0))
    if not tasks:
        raise SystemExit(f"{', '.join(map(str, outputs))}: no finished stage; give folders of `qcompile run`")
    return _ordered(tasks)


def _ordered(tasks: Sequence[Task]) -> list[Task]:
    """Put each task after those that make what it reads."""
    made = {digest for task in tasks for digest in task.makes}
    left, done, there = list(tasks), list[Task](), set[str]()
    while left:
        ready = [task for task in left if task.reads.keys() & made <= there]
        if not ready:  # two stages made the same file: take them as they come
            ready = left[:1]
        done += ready
        there |= {digest for task in ready for digest in task.makes}
        left = [task for task in left if task not in ready]
    return done


def as_row(fleet: Fleet, one: Estimate) -> str:
    """Return a line of the Markdown table."""
    makespan = f"{one.least_s:.1f}, {one.scheduled_s:.1f}, {one.most_s:.1f}"
    dollars = f"{one.dollars:.4f}" if fleet.price_per_hour or fleet.egress_per_gb else "–"
    return (
        f"| {fleet.workers} x {fleet.slots} | {one.work_s:.1f} | {one.longest_s:.1f} | {makespan} "
        f"| {one.fetched_bytes / 1e6:.2f} | {one.made_bytes / 1e6:.2f} | {dollars} |"
    )


def compared(one: Estimate, measured_s: float, measured_bytes: int, tolerance: float) -> list[str]:
    """Return what was measured beside the prediction; a line that begins with "outside" is a miss."""
    said = []
    if measured_s:
        inside = one.least_s * (1 - tolerance) <= measured_s <= one.most_s * (1 + tolerance)
        share = measured_s / one.scheduled_s - 1
        said.append(
            f"{'inside' if inside else 'outside'}: {measured_s:.1f} s measured, {one.scheduled_s:.1f} s "
            f"predicted ({share:+.0%}), bounds {one.least_s:.1f} to {one.most_s:.1f} s"
        )
    if measured_bytes:
        predicted = one.fetched_bytes + one.made_bytes
        share = measured_bytes / predicted - 1
        inside = abs(share) <= tolerance
        said.append(
            f"{'inside' if inside else 'outside'}: {measured_bytes / 1e6:.2f} MB measured, "
            f"{predicted / 1e6:.2f} MB predicted ({share:+.0%})"
        )
    return said


def main() -> int:
    """Print the table; 1 where a measurement lies outside of the bounds."""
    given = _arguments()
    folder = given.outputs[0].resolve().parent
    size = given.given_bytes
    if size is None:
        taken = {path.resolve() for path in given.outputs}
        size = sum(
            path.stat().st_size
            for path in folder.rglob("*")
            if path.is_file() and not any(parent in taken for parent in path.parents)
        )
    tasks = tasks_of(given.outputs, size)
    print(HEADER)
    for workers in [int(text) for text in given.workers.split(",")]:
        rate, price, egress = given.link_mbit * 1e6 / 8, given.price_per_hour, given.egress_per_gb
        fleet = Fleet(workers, given.slots, rate, given.overhead_s, price, egress)
        one = estimate(tasks, fleet)
        print(as_row(fleet, one))
    said = compared(one, given.measured_s, given.measured_bytes, given.tolerance)
    print("\n".join(said))
    return int(any(line.startswith("outside") for line in said))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("outputs", nargs="+", type=Path, metavar="OUT")
    parser.add_argument("--workers", default="1,2,4", help="numbers, separated by commas")
    parser.add_argument("--slots", type=int, default=1, help="stages at a time, of each worker")
    parser.add_argument("--link-mbit", type=float, default=1000.0, help="1e6 bits per second, of a worker")
    parser.add_argument("--overhead-s", type=float, default=0.05, help="of a task, as overhead.py measures")
    parser.add_argument("--price-per-hour", type=float, default=0.0, help="of a worker, in dollars")
    parser.add_argument(
        "--egress-per-gb", type=float, default=0.0, help="dollars for 1e9 bytes to the client"
    )
    parser.add_argument("--given-bytes", type=int, help="of model and data")
    parser.add_argument("--measured-s", type=float, default=0.0, help="of the last number of workers")
    parser.add_argument("--measured-bytes", type=int, default=0, help="received by workers and client")
    parser.add_argument("--tolerance", type=float, default=0.2, help="share by which a bound may be missed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
