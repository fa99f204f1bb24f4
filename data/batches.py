"""Read DATA batch by batch, and check each batch against the model's inputs. docs/data.md: rules of drawing.

A sample's half (calibration or evaluation) depends only on its name and the seed, so adding or removing other
samples does not move it. If one half of a small set would be empty, samples alternate between the halves.
Every prefix of a draw is balanced over the classes, so the first samples of a draw are a smaller draw.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from ..errors import DataError, InvalidOption
from ..model.sources.source import Source, digest_source, parse_source
from ..spec.tensors import Feeds, TensorInfo, check_feeds, samples_in
from .kinds import ARRAYS, find_kind, open_set
from .readers import Batch, Reader, SampleSet, digest_texts, read_function
from .spelling import FUNCTION, PARTS, Query, Spelling, parse_spelling, read_query

DEFAULT_BATCH = 8


MOST_READ = 2048
"""Most samples that `spread` reads from a function, which may be infinite."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Spread:
    """`samples` samples, taken evenly from the first `total`; with `is_all`, `total` is all of the data."""

    batches: list[Feeds]
    samples: int
    total: int
    is_all: bool = True

    def __str__(self) -> str:
        if self.samples >= self.total:
            return f"{self.samples} samples"
        return f"{self.samples} of {'' if self.is_all else 'the first '}{self.total} samples, spread"


def _evenly(items: Sequence[Item], count: int) -> list[Item]:
    """Return `count` items, each from the middle of an equal part of `items`; all if there are fewer."""
    count = min(count, len(items))
    return [items[(2 * number + 1) * len(items) // (2 * count)] for number in range(count)]


class Data:
    """Samples of a DATA spelling; every iteration reads them anew.

    Args:
        batch_size: Samples per batch; a fixed first axis of the model overrides it.
        limit: Most samples to read; None reads all. A first batch that cannot be split is read whole.
        is_spread: Whether the limited samples are taken evenly from all of the data instead of its beginning.
        depends: Further files that a function reads; they are part of the digest.
    """

    def __init__(
        self,
        spec: str,
        inputs: Sequence[TensorInfo],
        *,
        batch_size: int | None = None,
        limit: int | None = None,
        is_spread: bool = False,
        base: Path | None = None,
        depends: Sequence[Path] = (),
    ) -> None:
        if limit is not None and limit < 1:
            raise InvalidOption(f"samples: {limit}; at least 1 is required")
        if batch_size is not None and batch_size < 1:
            raise InvalidOption(f"batch size: {batch_size}; at least 1 is required")
        self.spec, self.inputs, self.limit = spec, tuple(inputs), limit
        fixed = {tensor.shape[0] for tensor in inputs if tensor.shape and isinstance(tensor.shape[0], int)}
        self.is_fixed = bool(fixed)
        """Whether the model takes batches of one fixed size only; these are never split."""
        self.batch_size = int(fixed.pop()) if len(fixed) == 1 else batch_size or DEFAULT_BATCH
        if self.is_fixed and limit is not None:
            self.limit = max(limit, self.batch_size)
        self._depends, self._is_spread = tuple(depends), is_spread
        folder = base or Path.cwd()
        # A recipe without data also computes a digest.
        spelling = parse_spelling(spec) if spec else Spelling("", "arrays", str(folder))
        self._function: Source | None = None
        if spelling.kind == FUNCTION:
            self._function = parse_source(spelling.path, base=base)
        elif spec:
            spelling = spelling.located(folder)
            spelling = spelling.with_kind(find_kind(spelling))
        self.spelling, self.query = spelling, read_query(spelling.query, spec)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches, each checked against the model's inputs."""
        if self._function is not None and self._is_spread and self.limit is not None:
            batches = self._spread_of_function(self.limit, 0, None).batches
            yield from (Batch(feeds, None, f"{self.spec} batch {n}") for n, feeds in enumerate(batches))
        elif self._function is not None:
            yield from self._from_function(self.limit)
        else:
            yield from map(self._checked, self._reader.batches(self._groups))

    def spread(self, samples: int, *, behind: int = 0) -> Spread:
        """Return `samples` samples, or whole batches that cannot be split, taken evenly from all of the data.

        The first `behind` samples are skipped if enough samples follow. A function is iterated once, for at
        most `MOST_READ` samples, with at most twice the requested samples in memory.
        """
        if self._function is not None:
            return self._spread_of_function(samples, behind, self.limit)
        order = [index for group in self._groups for index in group]
        if len(order) - behind < samples:
            behind = 0
        size = self.batch_size if self.is_fixed else 1
        indices = _evenly(order[behind:], -(-samples // size) * size)
        groups = self._reader.arrange(indices, self.batch_size, fixed=self.is_fixed)
        batches = [self._checked(batch).feeds for batch in self._reader.batches(groups)]
        return Spread(batches, sum(map(len, groups)), len(order))

    def _spread_of_function(self, samples: int, behind: int, limit: int | None) -> Spread:
        parts: list[tuple[int, Batch, int]] = []  # first sample's number, a sample or batch, sample count
        total, step, size, number = 0, 1, 0, 0
        for batch in self._from_function(limit):
            size = size or batch.samples
            is_whole = self.is_fixed or not batch.can_be_split()
            weight = (self.batch_size if self.is_fixed else batch.samples) if is_whole else 1
            for part in [batch] if is_whole else batch.split():
                if number % step == 0:
                    feeds = {name: array.copy() for name, array in part.feeds.items()}
                    parts.append((total, Batch(feeds, None, part.where), weight))
                if len(parts) > 2 * (samples + behind):
                    parts, step = parts[::2], 2 * step
                total, number = total + weight, number + 1
            if total >= MOST_READ:
                break
        parts_behind = [part for part in parts if part[0] >= behind]
        parts = parts_behind if sum(part[2] for part in parts_behind) >= samples else parts
        parts = _evenly(parts, max(samples // max(part[2] for part in parts), 1))
        batches: list[Feeds] = []
        for _, part, weight in parts:
            last = batches[-1] if batches and weight == 1 and part.samples == 1 else {}
            shapes = [{n: a.shape[1:] for n, a in feeds.items() if a.ndim} for feeds in (last, part.feeds)]
            if (
                last
                and shapes[0] == shapes[1]
                and all(a.ndim for a in part.feeds.values())
                and samples_in(last) < size
            ):
                batches[-1] = {
                    name: np.concatenate([last[name], array]) for name, array in part.feeds.items()
                }
            else:
                batches.append(part.feeds)
        return Spread(batches, sum(part[2] for part in parts), total, is_all=total < MOST_READ)

    def first_batch_unchecked(self) -> Feeds:
        """Return the first batch without checks of dtype and shape: the inputs only provide names."""
        stored = self._function is None
        batches = self._reader.batches(self._groups[:1]) if stored else self._read_function()
        first = next(batches, None)
        if first is None:
            raise self._empty("what the function yields")
        return first.feeds

    def select_batches(self, holds: Callable[[int], bool]) -> Iterator[Batch]:
        """Yield the batches of `__iter__` for which `holds(number)` is true, numbered from 0.

        Other batches are not decoded, but a function is iterated, and Polygraphy's JSON is decoded whole.
        """
        if self._function is not None:
            yield from (batch for number, batch in enumerate(self) if holds(number))
        else:
            groups = [group for number, group in enumerate(self._groups) if holds(number)]
            yield from map(self._checked, self._reader.batches(groups))

    def extents(self) -> Sequence[int] | None:
        """Return the number of samples in each batch without reading the data, or None for a function."""
        return None if self._function is not None else [len(group) for group in self._groups]

    @property
    def total(self) -> int | None:
        """Number of samples; for a function the limit or None, because counting would read its data."""
        if self._function is not None:
            return self.limit
        return sum(map(len, self._all_groups))

    def digest(self) -> str:
        """Return a digest that changes if the samples may have changed."""
        if self._function is not None:
            return digest_source(self._function, depends=self._depends)
        content = self._samples.digest(lambda: self._order)
        if self.spelling.kind in ARRAYS and not self.spelling.query:
            return content
        return f"{content}:{digest_texts(self.spelling.digest_parts())}"

    def notes(self) -> list[str]:
        """Return notes for the user: files left out, numbering of labels."""
        if self._function is not None:
            return []
        if not self.inputs:
            return list(self._samples.notes)
        reader = self._reader
        notes = [*self._samples.notes, *reader.notes, *reader.notes_of(self._groups)]
        if missing := len(self._order) - sum(map(len, self._groups)):
            notes.append(f"the last {missing} samples fill no batch of {self.batch_size}, and are left out")
        return notes

    @functools.cached_property
    def _groups(self) -> list[list[int]]:
        """The sample indices of each batch."""
        if not self._order:
            raise self._empty("what the keys leave out")
        if not self._all_groups:
            raise DataError(
                f"{self.spec}: at most {len(self._order)} samples; "
                f"the model requires batches of {self.batch_size}",
                hint="raise the limit, or export the model with a dynamic batch",
            )
        return self._all_groups

    @functools.cached_property
    def _all_groups(self) -> list[list[int]]:
        return self._reader.arrange(self._order, self.batch_size, fixed=self.is_fixed)

    @functools.cached_property
    def _samples(self) -> SampleSet:
        return open_set(self.spelling, self.inputs)

    @functools.cached_property
    def _reader(self) -> Reader:
        return self._samples.reader(self.inputs)

    @functools.cached_property
    def _order(self) -> list[int]:
        names, is_stored = self._samples.names, self.spelling.kind in ARRAYS
        if is_stored and not self.spelling.query:
            every = range(len(names))
            return _evenly(every, self.limit) if self._is_spread and self.limit else list(every[: self.limit])
        order = select(names, self.query, limit=self.limit, classes=self._samples.classes)
        if is_stored:
            return sorted(order)
        if not order and self.query.part and names:
            raise DataError(
                f"{self.spec}: none of {len(names)} samples is in this half",
                hint="use another seed, or a separate set for each half",
            )
        return order

    def _checked(self, batch: Batch) -> Batch:
        """Return the checked batch with feeds in the model's input order: the first one counts samples."""
        names = [tensor.name for tensor in self.inputs if tensor.name in batch.feeds]
        feeds = {name: batch.feeds[name] for name in (*names, *batch.feeds)}
        check_feeds(self.inputs, feeds, batch.where)
        return Batch(feeds, batch.labels, batch.where)

    def _read_function(self) -> Iterator[Batch]:
        assert self._function is not None, "DATA is a function"
        return read_function(self._function, self.inputs, limit=self.limit)

    def _from_function(self, limit: int | None) -> Iterator[Batch]:
        seen = 0
        for batch in map(self._checked, self._read_function()):
            # With a fixed batch size, the first axis of the first input may be time instead of samples.
            samples = self.batch_size if self.is_fixed and batch.samples else batch.samples
            is_whole = not batch.can_be_split()
            if limit is not None and seen + samples > limit and (seen or not is_whole):
                if self.is_fixed or is_whole:
                    break
                batch, samples = batch.head(limit - seen), limit - seen
            seen += samples
            if samples:
                yield batch
            if limit is not None and seen >= limit:
                break
        if not seen:
            raise self._empty("what the function yields")

    def _empty(self, cause: str) -> DataError:
        message = f"{self.spec}: holds no samples; at least one is required"
        return DataError(message, hint=f"check the path, or {cause}")


def select(
    names: Sequence[str],
    query: Query,
    *,
    limit: int | None = None,
    classes: Callable[[], Sequence[Hashable] | None] = lambda: None,
) -> list[int]:
    """Return the indices of the samples to read, in the order of reading.

    `names` identify the samples. At most `limit` are drawn, like `samples`. `classes` returns the class of
    each sample, or None without classes; only a balanced draw calls it.
    """
    indices = _half(names, query.part, query.seed) if query.part else list(range(len(names)))
    count = min((number for number in (query.samples, limit) if number is not None), default=None)
    if count is None:
        return indices
    drawn = _shuffle(names, indices, query.seed)
    of_class = classes() if query.balanced else None
    if of_class is not None:  # round robin: the first sample of each class, then the second of each, …
        seen: dict[Hashable, int] = {}
        turns: dict[int, int] = {}
        for index in drawn:
            turns[index] = seen[of_class[index]] = seen.get(of_class[index], -1) + 1
        drawn = sorted(drawn, key=turns.__getitem__)
    return drawn[:count]


def half_of(name: str, seed: int) -> str:
    """Return the half, "calibration" or "evaluation", of the sample `name`."""
    return "calibration" if _hash(f"{seed}:{name}")[0] & 1 else "evaluation"


def _half(names: Sequence[str], part: str, seed: int) -> list[int]:
    halves = [half_of(name, seed) for name in names]
    if len(set(halves)) == 1 and len(names) > 1:
        return sorted(_shuffle(names, range(len(names)), seed)[PARTS.index(part) :: 2])
    return [index for index, half in enumerate(halves) if half == part]


def _shuffle(names: Sequence[str], indices: Sequence[int], seed: int) -> list[int]:
    return sorted(indices, key=lambda index: (_hash(f"draw:{seed}:{names[index]}"), index))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
