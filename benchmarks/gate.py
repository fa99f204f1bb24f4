"""The claims about `qcompile gate`: one file against itself does not fail, and 5% slower is caught.

    python benchmarks/gate.py ratio    # the true slowdown of two versions: four minutes, nothing beside it
    python benchmarks/gate.py busy     # 40 gates of one file against itself, 40 against 5% slower, in turn,
                                       # while another process keeps the last core busy
    python benchmarks/gate.py quiet    # the same with nothing beside it

The slower version has more of the same convolutions, so its true slowdown is measured first. Each gate is one
call of `qcompile.gate` with its defaults and one thread, but for size and outputs, which differ on purpose.
Every finished gate is kept in `--work`, and the script goes on from there. It prints a Markdown table, and
exits with 1 where one file failed against itself, or the slower version passed too often. 80 gates take about
20 minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_harness import busy_neighbour, convolutions, table

import qcompile

COUNT = 100
SLOWER = (105, 106)
TRUE_SLOWDOWN = 1.05
RATIO_TIME_S = 240.0
CAUGHT_SHARE = 0.9


def main() -> int:
    """Run one of the three."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("ratio", "busy", "quiet"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "qcompile-gate")
    parser.add_argument("--gates", type=int, default=40, help="of each kind")
    parser.add_argument("--max-time", type=float, default=30.0, help="of a gate, in seconds")
    parser.add_argument("--unpinned", action="store_true", help="let the busy process run on any core")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.what == "ratio":
        ratio(options.work)
        return 0
    beside = (
        busy_neighbour(pinned=not options.unpinned) if options.what == "busy" else contextlib.nullcontext()
    )
    with beside:
        runs = gates(options)
    return summarize(runs)


def ratio(work: Path) -> None:
    """Measure the true slowdown of several versions in one long bench, and keep the one nearest 5%."""
    models = {str(count): str(convolutions(work, count)) for count in (COUNT, *SLOWER)}
    results = qcompile.benchmark(
        models, baseline=str(COUNT), batch_size=1, threads=1, max_time_s=RATIO_TIME_S, precision_target=0.002
    )
    rows = []
    found = {}
    for count in SLOWER:
        one = results.row(str(count)).speedup
        assert one is not None
        found[count] = 1.0 / one.value
        rows.append(
            [f"{count} convolutions", f"{1 / one.value:.4f}", f"[{1 / one.high:.4f}, {1 / one.low:.4f}]"]
        )
    table([f"against {COUNT} convolutions", "true slowdown", "99% interval"], rows)
    chosen = min(found, key=lambda count: abs(found[count] - TRUE_SLOWDOWN))
    noise = results.environment["noise"]["reasons"]
    (work / "ratio.json").write_text(json.dumps({"count": chosen, "ratio": found[chosen], "noise": noise}))
    print(
        f"\nThe slower version: {chosen} convolutions, {found[chosen] - 1:+.2%}. Disturbed: {noise or 'no'}"
    )


def gates(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the gates of both kinds, in turn: those in the file, and new ones."""
    chosen = options.work / "ratio.json"
    slower = json.loads(chosen.read_text()) if chosen.is_file() else {"count": 105, "ratio": None}
    old = convolutions(options.work, COUNT)
    news = {"same": old, "slower": convolutions(options.work, slower["count"])}
    path = options.work / f"{options.what}-{slower['count']}-{options.max_time:g}.jsonl"
    runs = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    while len(runs) < 2 * options.gates:
        kind = ("same", "slower", "slower", "same")[len(runs) % 4]
        runs.append({"kind": kind, "true": slower["ratio"], **one_gate(old, news[kind], options.max_time)})
        with path.open("a") as file:
            file.write(json.dumps(runs[-1]) + "\n")
        told = f"{path.name}: {len(runs)} of {2 * options.gates}, {kind}: {runs[-1]['state']}"
        print(f"\r{told:70}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return runs[: 2 * options.gates]


def one_gate(old: Path, new: Path, max_time_s: float) -> dict[str, Any]:
    """Return what one gate says of the latency, and what led to it."""
    began = time.monotonic()
    result = qcompile.gate(
        str(old), str(new), max_larger=100.0, outputs="any", threads=1, batch_size=1, max_time_s=max_time_s
    )
    [pair] = result.pairs
    state = pair.checks[0].state
    assert pair.slowdown is not None
    assert bool(result) == (state != "failed"), "latency alone decides here"
    return {
        "state": state, **vars(pair.slowdown), "seconds": time.monotonic() - began, "passed": bool(result),
        "disturbed": list(pair.disturbed),
    }  # fmt: skip


def summarize(runs: list[dict[str, Any]]) -> int:
    """Print a row for each kind; returns the exit code."""
    rows = []
    names = {"same": "against itself", "slower": "against 5% slower"}
    for kind, name in names.items():
        some = [run for run in runs if run["kind"] == kind]
        states = [sum(run["state"] == state for run in some) for state in ("failed", "passed", "undecided")]
        values = sorted(run["value"] for run in some)
        seconds = [run["seconds"] for run in some]
        true = some[0]["true"] if kind == "slower" else 1.0
        rows.append(
            [
                name, f"{true:.4f}" if true else "not measured", str(len(some)), *map(str, states),
                f"{statistics.median(values):.4f}", f"{values[0]:.4f}, {values[-1]:.4f}",
                f"{statistics.median(run['launches'] for run in some):g}",
                f"{statistics.median(seconds):.1f}, {max(seconds):.1f}",
            ]
        )  # fmt: skip
    table(
        ["gates", "true slowdown", "number", "failed", "passed", "undecided", "median slowdown",
         "smallest, largest", "median launches", "seconds: median, largest"],
        rows,
    )  # fmt: skip
    failed = {kind: [run["state"] == "failed" for run in runs if run["kind"] == kind] for kind in names}
    return int(any(failed["same"]) or sum(failed["slower"]) < CAUGHT_SHARE * len(failed["slower"]))


if __name__ == "__main__":
    sys.exit(main())
