"""Read DATA batch by batch, and check it against the model's inputs.

`spelling` says how DATA is spelled. A function yields dicts, tuples or arrays (numpy or torch), or returns a
DataLoader; a tuple one longer than the model's inputs ends with the labels, and a dict may hold `labels`.
Arrays must have the model's dtype: nothing is converted silently.

Samples of arrays and functions come as they lie, and a limit takes the first. Samples of every other kind,
and of arrays where a key asks for it, are drawn: `selection` says how.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..errors import DataError, InvalidOption
from ..model.source import Source, digest_source, parse_source
from ..tensors import Feeds, TensorInfo, check_feeds
from .kinds import find_kind, open_set
from .ordered import in_order
from .query import read_query
from .readers import Batch, Holds, Shapes, every, extent_of, read_function, samples_of
from .sample_set import Reader, SampleSet, digest_texts
from .selection import select
from .spelling import FUNCTION, Spelling, parse_spelling
from .streams import Group, group_samples, open_stream, read_groups

DEFAULT_BATCH = 8

Value = TypeVar("Value")


class Data:
    """Samples that can be read again and again.

    Args:
        spec: A spelling, see `spelling`.
        inputs: The inputs of the model that will be fed.
        batch_size: Samples fed at once; a fixed first axis of the model decides over it.
        limit: Stop after this many samples; None reads all.
        base: Folder that relative paths start from.
        depends: Files elsewhere that a function reads, for the digest.

    Raises:
        MissingFile, InvalidOption: If the spelling leads nowhere.
    """

    def __init__(
        self,
        spec: str,
        inputs: Sequence[TensorInfo],
        *,
        batch_size: int | None = None,
        limit: int | None = None,
        base: Path | None = None,
        depends: Sequence[Path] = (),
    ) -> None:
        if limit is not None and limit < 1:
            raise InvalidOption(f"samples: {limit}; at least 1 is required")
        if batch_size is not None and batch_size < 1:
            raise InvalidOption(f"batch size: {batch_size}; at least 1 is required")
        self.spec, self.inputs, self.limit = spec, tuple(inputs), limit
        self.batch_size = _batch_size(self.inputs, batch_size)
        self._depends = tuple(depends)
        folder = base or Path.cwd()
        # A recipe without data asks for the digest of none.
        parsed = parse_spelling(spec) if spec else Spelling("", "arrays", str(folder))
        self._function: Source | None = None
        if parsed.kind == FUNCTION:
            self._function = parse_source(parsed.path, base=base)
        elif spec:
            parsed = parsed.located(folder)
            parsed = parsed.with_kind(find_kind(parsed))
        self.spelling = parsed
        self._stream = open_stream(parsed.kind, Path(parsed.path))
        self.query = read_query(parsed.query, spec)

    def __iter__(self) -> Iterator[Batch]:
        """Yield checked batches.

        Raises:
            DataError: If the data does not fit, raises while it is read, or is empty.
        """
        if self._is_streamed:
            yield from self._in_stream()
            return
        yield from self._from_set(self._groups)

    def first_batches(self, samples: int) -> list[Feeds]:
        """Return the first batches, one at least, up to so many samples."""
        batches: list[Feeds] = []
        for batch in self:
            samples -= batch.samples
            if batches and samples < 0:
                break
            batches.append(batch.feeds)
            if samples <= 0:
                break
        return batches

    def at(self, holds: Holds) -> Iterator[Batch]:
        """Yield the batches whose number, from 0, `holds` says, as `__iter__` has them.

        No other is decoded; but a function is iterated, and a JSON file of Polygraphy decoded as a whole.

        Raises:
            DataError: As `__iter__`, of these batches.
        """
        if self._function is not None or not self.extents():
            yield from (batch for number, batch in enumerate(self) if holds(number))
        elif self._stream is None:
            yield from self._from_set([group for number, group in enumerate(self._groups) if holds(number)])
        else:
            kept = [one for number, one in enumerate(self._stored) if holds(number)]
            numbers = frozenset(one.number for one in kept)
            for one, batch in zip(kept, self._unlimited(numbers.__contains__), strict=self.limit is None):
                yield self._checked(batch if one.head is None else batch.head(one.head))

    def extents(self) -> Sequence[int] | None:
        """Return into how many samples each batch can be split, which are not read for it.

        Returns:
            None where only reading tells: of a function, and of what is empty.

        Raises:
            DataError: If a file is damaged, or the data does not fit.
        """
        if self._function is not None:
            return None
        if self._stream is None:
            return [len(group) for group in self._groups]
        return [one.extent for one in self._stored] or None

    @functools.cached_property
    def _stored(self) -> Sequence[_Stored]:
        """The batches of stored arrays that `_in_stream` yields."""
        assert self._stream is not None
        if self._is_drawn:
            batches: Iterable[Shapes] = (group.shapes for group in self._drawn)
        else:
            batches = map(self._ordered, self._stream.shapes(self.inputs, self.batch_size))
        found: list[_Stored] = []
        seen = 0
        for number, shapes in enumerate(batches):
            extent, samples = extent_of(shapes), samples_of(shapes)
            head = None
            if self.is_fixed and samples:
                samples = self.batch_size
            if self.limit is not None and seen + samples > self.limit:
                if self.is_fixed or extent == 1:
                    break
                head = extent = samples = self.limit - seen
            seen += samples
            if samples or self.is_fixed:  # one without samples is refused by a fixed batch, when it is read
                found.append(_Stored(number, extent, head))
            if self.limit is not None and seen >= self.limit:
                break
        return found

    @functools.cached_property
    def _groups(self) -> list[list[int]]:
        """The indices of each batch of a set of samples."""
        if not self._order:
            raise DataError(
                f"{self.spec}: holds no samples; at least one is required",
                hint="check the path, or what the keys leave out",
            )
        groups = self._reader.arrange(self._order, self.batch_size)
        if self.is_fixed:
            groups = [group for group in groups if len(group) == self.batch_size]
        if not groups:
            raise self._too_few(len(self._order))
        return groups

    @functools.cached_property
    def _drawn(self) -> Sequence[Group]:
        """The batches of what keys choose among stored arrays."""
        assert self._stream is not None
        shapes = map(self._ordered, self._stream.shapes(self.inputs, self.batch_size))
        return group_samples(shapes, frozenset(self._order), self.batch_size)

    def _from_set(self, groups: Sequence[Sequence[int]]) -> Iterator[Batch]:
        reader = self._reader
        samples = in_order(
            reader.read, (index for group in groups for index in group), threads=reader.threads
        )
        for group in groups:
            yield self._checked(reader.join([next(samples) for _ in group]))

    def _checked(self, unordered: Batch) -> Batch:
        batch = Batch(self._ordered(unordered.feeds), unordered.labels, unordered.where)
        check_feeds(self.inputs, batch.feeds, batch.where)
        return batch

    def _in_stream(self) -> Iterator[Batch]:
        seen = 0
        for unordered in self._unlimited():
            batch = Batch(self._ordered(unordered.feeds), unordered.labels, unordered.where)
            # Where one input has an axis of samples of a fixed extent, another's first axis is time.
            samples = self.batch_size if self.is_fixed and batch.samples else batch.samples
            if self.limit is not None and seen + samples > self.limit:
                if self.is_fixed or not batch.can_be_split():
                    break
                batch, samples = batch.head(self.limit - seen), self.limit - seen
            check_feeds(self.inputs, batch.feeds, batch.where)
            seen += samples
            if samples:
                yield batch
            if self.limit is not None and seen >= self.limit:
                break
        if not seen and self.limit is not None and self.is_fixed:
            raise self._too_few(self.limit)
        if not seen:
            raise DataError(
                f"{self.spec}: holds no samples; at least one is required",
                hint="check the path, or what the function yields",
            )

    def _too_few(self, samples: int) -> DataError:
        return DataError(
            f"{self.spec}: the model takes {self.batch_size} samples at a time; "
            f"at most {samples} were asked for",
            hint="raise the limit, or export the model with a dynamic batch",
        )

    @property
    def is_fixed(self) -> bool:
        """Whether the model takes batches of one size only, which are not taken apart."""
        return any(tensor.shape and isinstance(tensor.shape[0], int) for tensor in self.inputs)

    @property
    def total(self) -> int | None:
        """Number of samples; None where only reading a function's data would tell.

        Raises:
            DataError: If a file is damaged.
        """
        if self._function is not None:
            return self.limit
        if self._stream is not None and not self._is_drawn:
            count = self._stream.count(self.inputs)
            return count if self.limit is None else min(count, self.limit)
        count = len(self._order)
        return count - count % self.batch_size if self.is_fixed else count

    def digest(self) -> str:
        """Return a digest that changes when the samples that are read may have changed."""
        if self._function is not None:
            return digest_source(self._function, depends=self._depends)
        if self._stream is None:
            return f"{self._samples.digest(self._order)}:{digest_texts(self.spelling.keyed())}"
        keys = f":{digest_texts(self.spelling.keyed())}" if self._is_drawn else ""
        return self._stream.digest() + keys

    def notes(self) -> list[str]:
        """Return what a user should know of the data: files that were left out, how labels were found.

        Raises:
            QCompileError: If it cannot be read.
        """
        if self._is_streamed:
            return []
        if not self.inputs:
            return self._samples.notes()
        of_batches = self._reader.notes_of(self._order, self.batch_size)
        left = len(self._order) % self.batch_size if self.is_fixed else 0
        rest = (
            [f"the last {left} samples fill no batch of {self.batch_size}, and are left out"] if left else []
        )
        return [*self._samples.notes(), *self._reader.notes, *of_batches, *rest]

    @property
    def _is_streamed(self) -> bool:
        return self._function is not None or self._stream is not None

    @property
    def _is_drawn(self) -> bool:
        """Whether keys choose among the samples; arrays and functions give all of them otherwise."""
        return bool(self.spelling.query)

    @functools.cached_property
    def _samples(self) -> SampleSet:
        return open_set(self.spelling)

    @functools.cached_property
    def _reader(self) -> Reader:
        return self._samples.reader(self.inputs)

    @functools.cached_property
    def _order(self) -> list[int]:
        names: Sequence[str]
        classes: Callable[[], Sequence[Hashable] | None]
        if self._stream is not None:
            names = [str(number) for number in range(self._stream.count(self.inputs))]
            classes = self._stream.classes
        else:
            names, classes = self._samples.names, self._samples.classes
        order = select(names, self.query, limit=self.limit, classes=classes)
        if not order and self.query.part and names:
            raise DataError(
                f"{self.spec}: none of {len(names)} samples is in this half",
                hint="give another seed, or a set of its own for each half",
            )
        return order

    def _ordered(self, of_inputs: Mapping[str, Value]) -> dict[str, Value]:
        """By name, in the order of the model's inputs: the first of them counts samples."""
        names = [tensor.name for tensor in self.inputs if tensor.name in of_inputs]
        return {name: of_inputs[name] for name in (*names, *of_inputs)}

    def _unlimited(self, holds: Holds = every) -> Iterator[Batch]:
        if self._function is not None:
            return read_function(self._function, self.inputs)
        assert self._stream is not None
        if self._is_drawn:
            groups = [group for number, group in enumerate(self._drawn) if holds(number)]
            return read_groups(self._stream, self.inputs, self.batch_size, groups)
        return self._stream.batches(self.inputs, self.batch_size, holds)


@dataclass(frozen=True)
class _Stored:
    """A batch of stored arrays: its number, into how many samples it can be split, and where it is cut."""

    number: int
    extent: int
    head: int | None


def located(spec: str, base: Path) -> str:
    """Return a spelling that does not depend on the working folder.

    Raises:
        InvalidOption: If it is no spelling.
        MissingFile: If it names a function's file that is not there.
    """
    parsed = parse_spelling(spec)
    if parsed.kind == FUNCTION:
        return parse_source(parsed.path, base=base).absolute
    return str(parsed.located(base))


def seen_from(spec: str, folder: Path) -> str:
    """Return a spelling of the working folder as a file in another folder names it.

    Raises:
        InvalidOption, MissingFile: As `located`.
    """
    parsed = parse_spelling(spec)
    if parsed.kind == FUNCTION:
        source = parse_source(parsed.path)
        path = os.path.relpath(source.path, folder) if source.path else source.module
        return f"{path}:{source.function}"
    return str(parsed.located(Path.cwd()).seen_from(folder.resolve()))


def _batch_size(inputs: Sequence[TensorInfo], asked: int | None) -> int:
    fixed = {tensor.shape[0] for tensor in inputs if tensor.shape and isinstance(tensor.shape[0], int)}
    if len(fixed) == 1:
        return int(next(iter(fixed)))
    return asked or DEFAULT_BATCH
