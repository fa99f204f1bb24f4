"""How often the upper end of a drop's interval holds the true drop, over simulated releases.

    python tests/performance/accuracy_bounds.py        prints the table of docs/measuring.md
    python tests/performance/accuracy_bounds.py --releases 1000

A release is `k` candidates that all lose the same share of samples, judged on the same `n` samples. The
candidate with the smallest measured drop is chosen. `changed` is how often an answer changes without a loss
on balance, half to right and half to wrong. Where answers are only lost, the smallest possible bound lies
above small drops, so it always holds them.
"""

from __future__ import annotations

import argparse
import functools

import numpy as np

from qcompile.bench.metrics.bounds import right_or_wrong_interval, tail_of

SAMPLES = (10, 50, 500, 5000)
CANDIDATES = (1, 6)
DROPS = (0.0, 0.002, 0.01, 0.05)
CHANGED = (0.0, 0.04)


@functools.cache
def upper_end(lost: int, gained: int, samples: int, candidates: int) -> float:
    return right_or_wrong_interval(lost, gained, samples, tail_of(candidates))[1]


def coverage(samples: int, candidates: int, drop: float, changed: float, releases: int) -> float:
    """Return the share of releases whose chosen candidate's bound holds the true drop."""
    generator = np.random.default_rng(20261129)
    gained = changed / 2.0
    shares = (gained + drop, gained, 1.0 - 2.0 * gained - drop)
    counts = generator.multinomial(samples, shares, size=(releases, candidates))
    best = np.argmin(counts[:, :, 0] - counts[:, :, 1], axis=1)
    chosen = counts[np.arange(releases), best]
    held = [upper_end(int(lost), int(won), samples, candidates) >= drop for lost, won, _ in chosen]
    return float(np.mean(held))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--releases", type=int, default=10_000)
    releases = parser.parse_args().releases
    heads = [f"n = {samples:,}, k = {candidates}" for samples in SAMPLES for candidates in CANDIDATES]
    print("| drop, points | changed | " + " | ".join(heads) + " |")
    print("|---|---|" + "---|" * len(heads))
    for changed in CHANGED:
        for drop in DROPS:
            cells = [
                f"{coverage(samples, candidates, drop, changed, releases):.1%}"
                for samples in SAMPLES
                for candidates in CANDIDATES
            ]
            print(f"| {100 * drop:g} | {changed:.0%} | " + " | ".join(cells) + " |", flush=True)
    bounds = [
        f"{100 * upper_end(0, 0, samples, candidates):.2f}"
        for samples in SAMPLES
        for candidates in CANDIDATES
    ]
    print("| none changed: at most, points | | " + " | ".join(bounds) + " |")


if __name__ == "__main__":
    main()
