"""Decode in parallel, in order, and not further ahead than a bound."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ..model.session import granted_cores

Item = TypeVar("Item")
Result = TypeVar("Result")
MOST_THREADS = 8
AHEAD = 2
"""Samples that are decoded, or being decoded, per thread, before the first of them is taken."""


def threads_for_reading() -> int:
    """Return how many threads decode."""
    return max(1, min(MOST_THREADS, granted_cores() or os.cpu_count() or 1))


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int | None = None
) -> Iterator[Result]:
    """Yield `function(item)` of each item in order, computed by threads.

    At most `AHEAD` results per thread exist beside those taken. An exception is raised in its place. When
    the reader stops, by Ctrl-C too, what has not begun is never begun.
    """
    count = threads or threads_for_reading()
    if count == 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(count, thread_name_prefix="qcompile-read")
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= AHEAD * count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
