"""Which samples of a set are read, and in which order: halves, and seeded draws balanced by class.

A half holds the samples whose names hash to it. It depends on a sample's own name and the seed alone, so
the halves are disjoint and complete, and a sample stays in its half when others are added or removed. They
are about equally large, not exactly. Of a few samples a half may be empty: then they are dealt out in turn.

A draw goes around the classes, one of each at a time, in an order that the seed decides. Every beginning of
a draw is balanced too, so that reading only the first of them is a smaller draw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence

from .query import PARTS, Part, Query


def half_of(name: str, seed: int) -> Part:
    """Return the half that a sample of this name belongs to."""
    first = hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogateescape")).digest()[0]
    return "calibration" if first & 1 else "evaluation"


def select(
    names: Sequence[str],
    query: Query,
    *,
    limit: int | None = None,
    classes: Callable[[], Sequence[Hashable] | None] = lambda: None,
) -> list[int]:
    """Return the indices of the samples to read, in the order of reading.

    Args:
        names: What tells each sample from the others; not its place.
        query: What the spelling says.
        limit: At most so many; drawn like `samples`.
        classes: Gives the class of each sample, asked only where needed; None where they have none.
    """
    chosen = list(range(len(names)))
    if query.part:
        chosen = _half(names, query.part, query.seed)
    count = min((one for one in (query.samples, limit) if one is not None), default=None)
    if count is None:
        return chosen
    drawn = sorted(chosen, key=lambda index: _rank(names[index], index, query.seed))
    of_class = classes() if query.balanced else None
    return (_around(drawn, of_class) if of_class is not None else drawn)[:count]


def _half(names: Sequence[str], part: Part, seed: int) -> list[int]:
    halves = [half_of(name, seed) for name in names]
    if len(set(halves)) == 1 and len(names) > 1:  # of a few samples, chance leaves one half nothing
        drawn = sorted(range(len(names)), key=lambda index: _rank(names[index], index, seed))
        return sorted(drawn[PARTS.index(part) :: 2])
    return [index for index, half in enumerate(halves) if half == part]


def _rank(name: str, index: int, seed: int) -> tuple[bytes, int]:
    return hashlib.sha256(f"draw:{seed}:{name}".encode("utf-8", "surrogateescape")).digest(), index


def _around(drawn: Sequence[int], classes: Sequence[Hashable]) -> list[int]:
    """Put the first of each class first, then the second of each, and so on."""
    seen: dict[Hashable, int] = {}
    turns = []
    for place, index in enumerate(drawn):
        turn = seen[classes[index]] = seen.get(classes[index], -1) + 1
        turns.append((turn, place, index))
    return [index for _, _, index in sorted(turns)]
