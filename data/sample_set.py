"""What every kind of data with numbered samples is: a list, and a reader that makes inputs of them."""

from __future__ import annotations

import functools
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ..files import digest_files
from ..tensors import TensorInfo
from .readers import Batch

_SETTLED_NS = 2_000_000_000
"""A file that was changed since so long ago shows every further change in its times."""


@dataclass(frozen=True)
class Sample:
    """One sample, without the axis of samples.

    Attributes:
        feeds: Input name to array.
        label: Its label, if it has one: a number, a text or an array.
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

    @abstractmethod
    def join(self, samples: Sequence[Sample]) -> Batch:
        """Put samples together."""

    def arrange(self, order: list[int], batch_size: int) -> list[list[int]]:
        """Return the indices of each batch."""
        return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]

    def notes_of(self, order: list[int], batch_size: int) -> list[str]:
        """Return what a user should know of these batches: the shapes that occur, where they differ."""
        del order, batch_size
        return []


class SampleSet(ABC):
    """The samples at a path, listed without being decoded."""

    names: Sequence[str]
    """What tells each sample from the others: its file, or its content; not its place in the set."""

    def classes(self) -> Sequence[Hashable] | None:
        """Return the class of each sample, to draw them evenly; None where they have none."""
        return None

    @abstractmethod
    def digest(self, order: Sequence[int]) -> str:
        """Return a digest of the content of these samples."""

    @abstractmethod
    def reader(self, inputs: Sequence[TensorInfo]) -> Reader:
        """Return what makes these inputs of the samples.

        Raises:
            QCompileError: If nothing says how, or a package is missing.
        """

    def notes(self) -> list[str]:
        """Return what a user should know of the set: what was left out, how labels were found."""
        return []


class LazyNames(Sequence[str]):
    """Names that are made where they are asked for: most reading asks for none."""

    def __init__(self, count: int, name: Callable[[int], str]) -> None:
        self._count, self._name = count, name

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self._name(row) for row in range(self._count)[index]]
        return self._name(range(self._count)[index])


def stacked(samples: Sequence[Sample]) -> Batch:
    """Put samples of one shape together, with labels that are numbers, texts, or arrays of one shape."""
    feeds = {name: np.stack([one.feeds[name] for one in samples]) for name in samples[0].feeds}
    return Batch(feeds, join_labels(samples), where_of(samples))


def join_labels(samples: Sequence[Sample]) -> NDArray[Any] | None:
    """Return labels as one array: classes int64 [n], scores float32 [n], texts [n], maps int64 [n, ...]."""
    values = [one.label for one in samples]
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

    A file that has the size and times of modification and change it had before in this process is not read
    again: a recipe asks for the digest of one folder many times.
    """
    from .ordered import in_order

    return digest_texts(in_order(_digest_once, paths))


def _digest_once(path: Path) -> str:
    state = path.stat()
    if max(state.st_mtime_ns, state.st_ctime_ns) > time.time_ns() - _SETTLED_NS:
        return digest_files([path])  # it may be written again within the clock's resolution
    return _digest_known(path, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


@functools.lru_cache(maxsize=1 << 17)
def _digest_known(path: Path, _size: int, _modified: int, _changed: int) -> str:
    return digest_files([path])
