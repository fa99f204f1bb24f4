"""Arrays in files, read from front to back: `.npz`, `.npy`, folders of them, and Polygraphy's JSON.

Their samples have no names: where keys choose among them, a sample is told by its number.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from ..files import digest_files
from ..tensors import TensorInfo
from .archive import load_arrays, read_shapes
from .polygraphy_json import load_polygraphy, read_polygraphy
from .readers import LABELS, Batch, read_folder, read_npz, sample_files, samples_in_file


class Stream(ABC):
    """Samples of a file or folder, in the order that they are stored."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def batches(self, inputs: Sequence[TensorInfo], batch_size: int) -> Iterator[Batch]:
        """Yield the samples; files decide over the size where they hold whole batches."""

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
    def batches(self, inputs: Sequence[TensorInfo], batch_size: int) -> Iterator[Batch]:
        return read_npz(self.path, inputs, batch_size)

    def count(self, inputs: Sequence[TensorInfo]) -> int:
        return samples_in_file(self.path, inputs)

    def classes(self) -> Sequence[int] | None:
        return _classes_in([self.path])


class _Folder(Stream):
    def batches(self, inputs: Sequence[TensorInfo], batch_size: int) -> Iterator[Batch]:
        del batch_size
        return read_folder(self.path, inputs)

    def count(self, inputs: Sequence[TensorInfo]) -> int:
        return sum(samples_in_file(path, inputs) for path in sample_files(self.path))

    def classes(self) -> Sequence[int] | None:
        return _classes_in(sample_files(self.path))

    def digest(self) -> str:
        files = sample_files(self.path)
        names = hashlib.sha256("\n".join(path.name for path in files).encode()).hexdigest()
        return f"{digest_files(files)}:{names[:16]}"


class _Npy(Stream):
    def batches(self, inputs: Sequence[TensorInfo], batch_size: int) -> Iterator[Batch]:
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
        for start in range(0, self.count(inputs), batch_size):
            part = np.array(rows[start : start + batch_size])
            yield Batch({inputs[0].name: part}, None, f"{self.path.name}[{start}:{start + batch_size}]")

    def count(self, inputs: Sequence[TensorInfo]) -> int:
        del inputs
        [shape] = read_shapes(self.path).values()
        if not shape:
            raise DataError(f"{self.path}: is a scalar; a first axis of samples is required", file=self.path)
        return shape[0]


class _Polygraphy(Stream):
    def batches(self, inputs: Sequence[TensorInfo], batch_size: int) -> Iterator[Batch]:
        del inputs, batch_size
        return read_polygraphy(self.path)

    def count(self, inputs: Sequence[TensorInfo]) -> int:
        names = [one.name for one in inputs]
        total = 0
        for feeds in load_polygraphy(self.path):
            ordered = {name: feeds[name] for name in (*names, *feeds) if name in feeds and name != LABELS}
            total += Batch(ordered, None, "").samples if ordered else 0
        return total


def open_stream(kind: str, path: Path) -> Stream | None:
    """Return the reader of a kind of arrays; None for another kind."""
    kinds: dict[str, type[_Npz | _Folder | _Npy | _Polygraphy]] = {
        "npz": _Npz,
        "arrays": _Folder,
        "npy": _Npy,
        "polygraphy": _Polygraphy,
    }
    return kinds[kind](path) if kind in kinds else None


def only(batches: Iterator[Batch], numbers: Collection[int], batch_size: int) -> Iterator[Batch]:
    """Yield the samples with these numbers, in batches of a size.

    Samples of other shapes than those before them begin a batch of their own.
    """
    kept: list[Batch] = []
    seen = 0
    for batch in batches:
        parts = batch.split() if batch.can_be_split() else iter([batch])
        for part in parts:
            chosen = seen in numbers
            seen += 1
            if not chosen:
                continue
            if kept and (len(kept) == batch_size or _shapes(kept[-1]) != _shapes(part)):
                yield _joined(kept)
                kept = []
            kept.append(part)
    if kept:
        yield _joined(kept)


def _shapes(batch: Batch) -> dict[str, Any]:
    return {name: array.shape for name, array in batch.feeds.items()}


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
