"""What processes hold, read from /proc, and whether it grows: the rule of `long_run.py`.

Linux alone tells all of it.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qcompile.bench.statistics.launches import student_quantile

WARM_UP = 0.2
"""Share of the samples at the start that do not count: allocators and caches fill."""
BLOCKS = 12
CONFIDENCE = 0.99
LEAST_GROWTH_BYTES = 1 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Sample:
    """What the watched processes held together.

    Attributes:
        done: Iterations until then.
        rss_bytes: Resident memory.
        descriptors, threads, children: How many; a child that is watched itself counts as one.
        temporary: Files and folders in the temporary folder, at any depth.
    """

    done: int
    rss_bytes: int
    descriptors: int
    threads: int
    children: int
    temporary: int

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """All that is exact."""
        return self.descriptors, self.threads, self.children, self.temporary


@dataclass(frozen=True)
class Growth:
    """Growth of memory between warm-up and end.

    Attributes:
        iterations: Between the first and the last sample that counts.
        low, middle, high: Bytes over all of them, a 99% interval.
        allowed: Bytes that count as none.
    """

    iterations: int
    low: float
    middle: float
    high: float
    allowed: float

    @property
    def verdict(self) -> str:
        """Say "flat", "growing" or "undecided".

        Growing: the whole interval is above zero, and its middle above what is allowed. Flat: the whole
        interval is below what is allowed. Undecided: neither.
        """
        if self.low > 0 and self.middle > self.allowed:
            return "growing"
        return "flat" if self.high < self.allowed else "undecided"


def sample(done: int, pids: Sequence[int], temporary: Path) -> Sample:
    """Return what processes hold now."""
    folders = [Path(f"/proc/{pid}") for pid in pids]
    return Sample(
        done,
        sum(int((folder / "statm").read_text().split()[1]) * _PAGE for folder in folders),
        sum(_descriptors(folder) for folder in folders),
        sum(len(list((folder / "task").iterdir())) for folder in folders),
        sum(_children(folder) for folder in folders),
        sum(1 for _ in temporary.rglob("*")),
    )


def growth_of(samples: Sequence[Sample], allowed: float = 0.0) -> Growth:
    """Fit a line through the medians of twelve blocks of samples.

    Neighbouring samples depend on each other, blocks hardly.

    Args:
        samples: In order; the first fifth is left out. 30 at least.
        allowed: Bytes that count as none; by default 1% of the memory, and 1 MiB at least.
    """
    counted = samples[int(len(samples) * WARM_UP) :]
    if len(counted) < 2 * BLOCKS:
        raise ValueError(f"{len(samples)} samples; 30 are required")
    edges = [round(len(counted) * block / BLOCKS) for block in range(BLOCKS + 1)]
    blocks = [counted[first:last] for first, last in itertools.pairwise(edges)]
    x = [statistics.fmean(one.done for one in block) for block in blocks]
    y = [statistics.median(one.rss_bytes for one in block) for block in blocks]
    line = statistics.linear_regression(x, y)
    squares = sum((there - line.intercept - line.slope * here) ** 2 for here, there in zip(x, y, strict=True))
    middle_x = statistics.fmean(x)
    error = math.sqrt(squares / (BLOCKS - 2) / sum((here - middle_x) ** 2 for here in x))
    iterations = counted[-1].done - counted[0].done
    spread = student_quantile(CONFIDENCE, BLOCKS - 2) * error * iterations
    middle = line.slope * iterations
    allowed = allowed or max(LEAST_GROWTH_BYTES, 0.01 * statistics.median(y))
    return Growth(iterations, middle - spread, middle, middle + spread, allowed)


def _descriptors(folder: Path) -> int:
    """Without the one that reading the folder opens itself."""
    own = folder.name == str(os.getpid())
    return len(list((folder / "fd").iterdir())) - own


def _children(folder: Path) -> int:
    """Read from every thread: a child belongs to the one that started it."""
    count = 0
    for thread in (folder / "task").iterdir():
        try:
            count += len((thread / "children").read_text().split())
        except OSError:  # the thread has ended meanwhile
            continue
    return count
