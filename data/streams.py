"""Arrays in files, read from front to back: `.npz`, `.npy`, folders of them, and Polygraphy's JSON.

Their samples have no names: where keys choose among them, a sample is told by its number.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from ..files import digest_files
from ..tensors import TensorInfo
from .archive import load_arrays, read_shapes
from .polygraphy_json import load_polygraphy, read_polygraphy
from .readers import (
    LABELS,
    Batch,
    Holds,
    Shapes,
    every,
    extent_of,
    npz_shapes,
    read_folder,
    read_npz,
    sample_files,
    samples_in_file,
    shapes_in_file,
)


@dataclass(frozen=True)
class Group:
    """Samples that make a batch.

    Attributes:
        row: The shapes of one of them.
        members: Of each, the number of a stored batch, and the row in it.
    """

    row: Shapes
    members: list[tuple[int, int]]

    @property
    def shapes(self) -> Shapes:
        """Of the batch."""
        count = len(self.members)
        return {name: (shape[0] * count, *shape[1:]) if shape else () for name, shape in self.row.items()}


class Stream(ABC):
    """Samples of a file or folder, in the order that they are stored."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def batches(self, inputs: Sequence[TensorInfo], batch_size: int, holds: Holds = every) -> Iterator[Batch]:
        """Yield the samples in batches, but for those whose number `holds` refuses.

        Files decide over the size where they hold whole batches.
        """

    @abstractmethod
    def shapes(self, inputs: Sequence[TensorInfo], batch_size: int) -> Iterator[Shapes]:
        """Yield the shapes of all batches without reading them."""

    @abstractmethod
    def count(self, inputs: Sequence[TensorInfo]) -> int:
        """Return the number of samples without reading them."""

    def classes(self) -> Sequence[int] | None:
        """Return the class of each sample, where all have one."""
        return None

    def digest(self) -> str:
        """Return a digest of the content."""
        return digest_files([self.path])


class _Npz(Stream):
    def batches(self, inputs: Sequence[TensorInfo], batch_size: int, holds: Holds = every) -> Iterator[Batch]:
        return read_npz(self.path, inputs, batch_size, holds)

    def shapes(self, inputs: Sequence[TensorInfo], batch_size: int) -> Iterator[Shapes]:
        shapes = {name: one for name, one in npz_shapes(self.path, inputs).items() if name != LABELS}
        return _of_rows(shapes, batch_size)

    def count(self, inputs: Sequence[TensorInfo]) -> int:
        return samples_in_file(self.path, inputs)

    def classes(self) -> Sequence[int] | None:
        return _classes_in([self.path])


class _Folder(Stream):
    def batches(self, inputs: Sequence[TensorInfo], batch_size: int, holds: Holds = every) -> Iterator[Batch]:
        del batch_size
        return read_folder(self.path, inputs, holds)

    def shapes(self, inputs: Sequence[TensorInfo], batch_size: int) -> Iterator[Shapes]:
        del batch_size
        return (shapes_in_file(path, inputs) for path in sample_files(self.path))

    def count(self, inputs: Sequence[TensorInfo]) -> int:
        return sum(samples_in_file(path, inputs) for path in sample_files(self.path))

    def classes(self) -> Sequence[int] | None:
        return _classes_in(sample_files(self.path))

    def digest(self) -> str:
        files = sample_files(self.path)
        names = hashlib.sha256("\n".join(path.name for path in files).encode()).hexdigest()
        return f"{digest_files(files)}:{names[:16]}"


class _Npy(Stream):
    def batches(self, inputs: Sequence[TensorInfo], batch_size: int, holds: Holds = every) -> Iterator[Batch]:
        if len(inputs) != 1:
            raise DataError(
                f"{self.path}: a .npy file has no input names, and the model takes {len(inputs)} inputs",
                hint="save an .npz file keyed by input name",
            )
        read_shapes(self.path)  # says what is wrong with a damaged head
        try:
            rows = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{self.path}: cannot be read as numpy data ({error})", file=self.path) from error
        for number, start in enumerate(range(0, self.count(inputs), batch_size)):
            if holds(number):
                part = np.array(rows[start : start + batch_size])
                yield Batch({inputs[0].name: part}, None, f"{self.path.name}[{start}:{start + batch_size}]")

    def shapes(self, inputs: Sequence[TensorInfo], batch_size: int) -> Iterator[Shapes]:
        self.count(inputs)  # says what is wrong with a scalar
        [shape] = read_shapes(self.path).values()
        return _of_rows({inputs[0].name: shape}, batch_size)

    def count(self, inputs: Sequence[TensorInfo]) -> int:
        del inputs
        [shape] = read_shapes(self.path).values()
        if not shape:
            raise DataError(f"{self.path}: is a scalar; a first axis of samples is required", file=self.path)
        return shape[0]


class _Polygraphy(Stream):
    def batches(self, inputs: Sequence[TensorInfo], batch_size: int, holds: Holds = every) -> Iterator[Batch]:
        del inputs, batch_size
        # One JSON text: it is decoded as a whole.
        return (batch for number, batch in enumerate(read_polygraphy(self.path)) if holds(number))

    def shapes(self, inputs: Sequence[TensorInfo], batch_size: int) -> Iterator[Shapes]:
        del batch_size
        names = [one.name for one in inputs]
        for feeds in load_polygraphy(self.path):
            yield {name: feeds[name].shape for name in (*names, *feeds) if name in feeds and name != LABELS}

    def count(self, inputs: Sequence[TensorInfo]) -> int:
        shapes = (next(iter(one.values())) for one in self.shapes(inputs, 1) if one)
        return sum(shape[0] if shape else 1 for shape in shapes)


def open_stream(kind: str, path: Path) -> Stream | None:
    """Return the reader of a kind of arrays; None for another kind."""
    kinds: dict[str, type[_Npz | _Folder | _Npy | _Polygraphy]] = {
        "npz": _Npz,
        "arrays": _Folder,
        "npy": _Npy,
        "polygraphy": _Polygraphy,
    }
    return kinds[kind](path) if kind in kinds else None


def group_samples(shapes: Iterable[Shapes], numbers: Collection[int], batch_size: int) -> list[Group]:
    """Return the batches, of a size, of the samples with these numbers.

    Samples of other shapes than those before them begin a batch of their own.
    """
    groups: list[Group] = []
    seen = 0
    for number, batch in enumerate(shapes):
        extent = extent_of(batch)
        row = {name: (1, *shape[1:]) for name, shape in batch.items()} if extent > 1 else dict(batch)
        for index in range(extent):
            if seen in numbers:
                if not groups or groups[-1].row != row or len(groups[-1].members) == batch_size:
                    groups.append(Group(row, []))
                groups[-1].members.append((number, index))
            seen += 1
    return groups


def read_groups(
    stream: Stream, inputs: Sequence[TensorInfo], batch_size: int, groups: Sequence[Group]
) -> Iterator[Batch]:
    """Yield the batches of `group_samples`, which are in the order of the samples."""
    numbers = sorted({number for group in groups for number, _ in group.members})
    held = frozenset(numbers)
    stored = zip(numbers, stream.batches(inputs, batch_size, held.__contains__), strict=False)
    at, parts = -1, list[Batch]()
    for group in groups:
        kept = []
        for number, row in group.members:
            if number != at:
                at, batch = next(stored)
                parts = list(batch.split()) if batch.can_be_split() else [batch]
            kept.append(parts[row])
        yield _joined(kept)


def _of_rows(shapes: Shapes, batch_size: int) -> Iterator[Shapes]:
    """The shapes of batches of so many rows."""
    count = min((shape[0] if shape else 0 for shape in shapes.values()), default=0)
    for start in range(0, count, batch_size):
        yield {name: (min(batch_size, count - start), *shape[1:]) for name, shape in shapes.items()}


def _joined(parts: Sequence[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    names = parts[0].feeds
    feeds = {name: np.concatenate([one.feeds[name] for one in parts]) for name in names}
    labels = [one.labels for one in parts if one.labels is not None]
    joined = np.concatenate(labels) if len(labels) == len(parts) else None
    return Batch(feeds, joined, f"{parts[0].where} to {parts[-1].where}")


def _classes_in(files: Sequence[Path]) -> Sequence[int] | None:
    found: list[int] = []
    for path in files:
        if path.suffix != ".npz" or LABELS not in (shapes := read_shapes(path)) or len(shapes[LABELS]) != 1:
            return None
        labels = load_labels(path)
        if labels.dtype.kind not in "iu":
            return None
        found += labels.tolist()
    return found


def load_labels(path: Path) -> Any:
    """Return the labels of an `.npz` alone.

    Raises:
        DataError: If they are damaged.
    """
    return load_arrays(path, only=LABELS)[LABELS]
