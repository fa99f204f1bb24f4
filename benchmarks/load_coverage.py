"""The claim about the interval of p99 under load: how often it holds the true one, on simulated queues.

    python benchmarks/load_coverage.py

Prints a Markdown table: M/D/1 and M/M/1 at several loads, 300 simulations of 2400 requests each, beside what
intervals hold that take the requests as independent. Nothing is timed: any machine will do.
"""

from __future__ import annotations

import math
import statistics

import numpy as np
from numpy.typing import NDArray

from qcompile.bench.statistics.tail import tail_interval

SIMULATIONS = 300
REQUESTS = 2400


def main() -> None:
    """Print how often the interval holds p99 of M/D/1 and M/M/1, and how often that of requests in a random
    order would, as if they were independent."""
    rng = np.random.default_rng(0)
    print("| busy | calls | requests taken as independent | as here | no upper end |\n|---|---|---|---|---|")
    for busy in (0.3, 0.5, 0.7, 0.8):
        for name in ("M/D/1", "M/M/1"):
            truth = statistics.fmean(
                np.quantile(queue_latencies(rng, busy, 400_000, name), 0.99) for _ in range(5)
            )
            hits = alone = open_ended = 0
            for _ in range(SIMULATIONS):
                latencies = queue_latencies(rng, busy, REQUESTS, name)
                low, high = tail_interval(latencies)
                hits += (low or 0.0) <= truth <= (high or math.inf)
                open_ended += high is None
                low, high = tail_interval(rng.permutation(latencies))
                alone += (low or 0.0) <= truth <= (high or math.inf)
            shares = " | ".join(f"{count / SIMULATIONS:.0%}" for count in (alone, hits, open_ended))
            print(f"| {busy:.0%} | {name} | {shares} |", flush=True)


def queue_latencies(rng: np.random.Generator, busy: float, count: int, name: str) -> NDArray[np.int64]:
    """Latencies of one server whose calls take 1 ms on average."""
    arrivals = np.cumsum(rng.exponential(1e6 / busy, count))
    services = np.full(count, 1e6) if name == "M/D/1" else rng.exponential(1e6, count)
    work = np.cumsum(services)
    return (work + np.maximum.accumulate(arrivals - (work - services)) - arrivals).astype(np.int64)


if __name__ == "__main__":
    main()
