"""A set of numbered samples: what is drawn from it, how batches are made, and what identifies its content.

A half holds the samples whose names hash to it. It depends on a sample's name and the seed alone, so the
halves are disjoint and complete, and a sample stays in its half when others are added or removed. The
halves are about equally large. Where one half of a small set would be empty, the samples are dealt out in
turn.

A draw takes one sample of each class at a time, in an order that the seed decides. Every beginning of a
draw is balanced too, so reading only its first samples is a smaller draw.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import EngineUnavailable, first_line
from ..files import digest_files
from ..tensors import TensorInfo
from .ordered import in_order
from .readers import Batch
from .spelling import PARTS, Query

_SETTLED_NS = 2_000_000_000
"""A file that was changed longer ago shows every further change in its times."""


@dataclass(frozen=True)
class Sample:
    """One sample, without the axis of samples.

    Attributes:
        feeds: Input name to array; what `Reader.join` takes, where inputs are made batch by batch.
        label: A number, a text or an array; None without.
        where: Where it came from, for messages: a file, or a file and a line.
    """

    feeds: dict[str, Any]
    label: Any
    where: str


class Reader(ABC):
    """Makes a model's inputs of samples.

    Attributes:
        notes: What a user should know of how it makes them.
        threads: How many read at once; None for as many as there are cores, at most 8.
    """

    notes: Sequence[str] = ()
    threads: int | None = None

    @abstractmethod
    def read(self, index: int) -> Sample:
        """Return one sample; called by several threads at once."""

    def join(self, samples: Sequence[Sample]) -> Batch:
        """Put samples of one shape together."""
        feeds = {name: np.stack([sample.feeds[name] for sample in samples]) for name in samples[0].feeds}
        return Batch(feeds, join_labels(samples), where_of(samples))

    def arrange(self, order: list[int], batch_size: int, *, fixed: bool) -> list[list[int]]:
        """Return the indices of each batch; `fixed` leaves out what fills none."""
        groups = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        return [group for group in groups if len(group) == batch_size] if fixed else groups

    def batches(self, groups: Sequence[Sequence[int]]) -> Iterator[Batch]:
        """Yield the batches of these samples, decoded ahead by threads."""
        samples = in_order(self.read, (index for group in groups for index in group), threads=self.threads)
        for group in groups:
            yield self.join([next(samples) for _ in group])

    def notes_of(self, groups: Sequence[Sequence[int]]) -> list[str]:
        """Return what a user should know of these batches."""
        del groups
        return []


class SampleSet(ABC):
    """The samples at a path, listed without being decoded."""

    names: Sequence[str]
    """What tells each sample from the others: its file, or its content; not its place in the set."""
    notes: Sequence[str] = ()
    """What a user should know of the set: what was left out."""

    def classes(self) -> Sequence[Hashable] | None:
        """Return the class of each sample, to draw them evenly; None where they have none."""
        return None

    @abstractmethod
    def digest(self, order: Callable[[], Sequence[int]]) -> str:
        """Return a digest of the content of the samples of `order`."""

    @abstractmethod
    def reader(self, inputs: Sequence[TensorInfo]) -> Reader:
        """Return what makes these inputs of the samples."""


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
        classes: Gives the class of each sample, called only where needed; None where they have none.
    """
    chosen = _half(names, query.part, query.seed) if query.part else list(range(len(names)))
    count = min((number for number in (query.samples, limit) if number is not None), default=None)
    if count is None:
        return chosen
    drawn = sorted(chosen, key=lambda index: _rank(names[index], index, query.seed))
    of_class = classes() if query.balanced else None
    if of_class is not None:  # the first of each class first, then the second of each, and so on
        seen: dict[Hashable, int] = {}
        turns: dict[int, int] = {}
        for index in drawn:
            turns[index] = seen[of_class[index]] = seen.get(of_class[index], -1) + 1
        drawn = sorted(drawn, key=turns.__getitem__)
    return drawn[:count]


def half_of(name: str, seed: int) -> str:
    """Return the half that a sample of this name belongs to."""
    first = hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogateescape")).digest()[0]
    return "calibration" if first & 1 else "evaluation"


def _half(names: Sequence[str], part: str, seed: int) -> list[int]:
    halves = [half_of(name, seed) for name in names]
    if len(set(halves)) == 1 and len(names) > 1:
        drawn = sorted(range(len(names)), key=lambda index: _rank(names[index], index, seed))
        return sorted(drawn[PARTS.index(part) :: 2])
    return [index for index, half in enumerate(halves) if half == part]


def _rank(name: str, index: int, seed: int) -> tuple[bytes, int]:
    return hashlib.sha256(f"draw:{seed}:{name}".encode("utf-8", "surrogateescape")).digest(), index


def join_labels(samples: Sequence[Sample]) -> NDArray[Any] | None:
    """Return labels as one array: classes int64 [n], scores float32 [n], texts [n], maps int64 [n, ...]."""
    values = [sample.label for sample in samples]
    if values[0] is None:
        return None
    array = np.asarray(values)
    kinds = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.int64}
    return array.astype(kinds[array.dtype.kind]) if array.dtype.kind in kinds else array


def where_of(samples: Sequence[Sample]) -> str:
    """Return where a batch came from: its first and last sample."""
    first, last = samples[0].where, samples[-1].where
    return first if len(samples) == 1 else f"{first} to {last}"


def digest_texts(texts: Iterable[str]) -> str:
    """Return a short digest of texts, in order."""
    total = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogateescape")
        total.update(len(content).to_bytes(8, "little") + content)
    return total.hexdigest()[:16]


def digest_contents(paths: Sequence[Path]) -> str:
    """Return a digest of the contents of many files, read in parallel.

    A file is read once in a process while its size and times stay: digests are needed often.
    """
    return digest_texts(in_order(_digest_once, paths))


def _digest_once(path: Path) -> str:
    state = path.stat()
    if max(state.st_mtime_ns, state.st_ctime_ns) > time.time_ns() - _SETTLED_NS:
        return digest_files([path])  # it may be written again within the clock's resolution
    return _digest_settled(path, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


@functools.lru_cache(maxsize=1 << 17)
def _digest_settled(path: Path, _size: int, _modified: int, _changed: int) -> str:
    return digest_files([path])


def require_package(module: str, package: str, use: str, *, extra: str = "data") -> None:
    """Make sure that a package can be imported."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise EngineUnavailable(
            f"{package} {use}, and cannot be imported ({first_line(error)})",
            hint=f"pip install 'qcompile[{extra}]'",
            engine=package,
            reason=first_line(error),
        ) from error
