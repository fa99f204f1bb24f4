"""Readers of DATA: rows of an archive, files of a folder, the values a function yields."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, QCompileError
from ..model.source import Source
from ..model.user_code import beside, call, load_function, where_raised
from ..tensors import Feeds, TensorInfo, samples_in
from .archive import load_arrays, read_rows, read_shapes

LABELS = "labels"

Shapes = Mapping[str, tuple[int, ...]]
"""Input name to the shape of a batch."""

Holds = Callable[[int], bool]
"""Whether the batch of a number, counted from 0, is to be read; no other is decoded."""


def every(_: int) -> bool:
    """Hold every batch."""
    return True


@dataclass(frozen=True)
class Batch:
    """Feeds of one inference.

    Attributes:
        feeds: Input name to array.
        labels: One label per sample, if the data has them.
        where: Where it came from, for messages: "data.npz[8:16]", "folder/0003.npy", "f batch 3".
    """

    feeds: Feeds
    labels: NDArray[Any] | None
    where: str

    @property
    def samples(self) -> int:
        """Extent of the first axis of the first input (1 for a scalar)."""
        return samples_in(self.feeds)

    def can_be_split(self) -> bool:
        """Whether there are several samples, which are the first axis of every input."""
        return extent_of({name: array.shape for name, array in self.feeds.items()}) > 1

    def head(self, samples: int) -> Batch:
        """Return the first samples of a batch that can be split."""
        return self._part(slice(samples), self.where)

    def split(self) -> Iterator[Batch]:
        """Yield the samples of a batch that can be split, one by one."""
        for index in range(self.samples):
            yield self._part(slice(index, index + 1), f"{self.where} sample {index}")

    def _part(self, part: slice, where: str) -> Batch:
        feeds = {name: array[part] for name, array in self.feeds.items()}
        return Batch(feeds, None if self.labels is None else self.labels[part], where)


def extent_of(shapes: Shapes) -> int:
    """Return into how many samples a batch can be split: 1 unless they are the first axis of every input."""
    extents = [shape[0] if shape else 0 for shape in shapes.values()]
    return extents[0] if len(set(extents)) == 1 and extents[0] > 1 else 1


def samples_of(shapes: Shapes) -> int:
    """Return the extent of the first axis of the first input (1 for a scalar), as `Batch.samples` has it."""
    first = next(iter(shapes.values()), ())
    return first[0] if first else 1


def npz_shapes(path: Path, inputs: Sequence[TensorInfo]) -> Shapes:
    """Return the shapes of all arrays of an `.npz`.

    Raises:
        DataError: If it is damaged, lacks an input, or its arrays differ in their number of samples.
    """
    shapes = read_shapes(path)
    _require_inputs(shapes, inputs, str(path))
    extents = {name: shape[0] if shape else 0 for name, shape in shapes.items()}
    if len(set(extents.values())) > 1:
        counts = ", ".join(f"{name} {extent}" for name, extent in extents.items())
        raise DataError(f"{path}: arrays differ in their number of samples ({counts})")
    return shapes


def read_npz(
    path: Path, inputs: Sequence[TensorInfo], batch_size: int, holds: Holds = every
) -> Iterator[Batch]:
    """Yield the rows of an `.npz`, so many at a time.

    Raises:
        DataError: As `npz_shapes`.
    """
    npz_shapes(path, inputs)
    for arrays, number in zip(
        read_rows(path, batch_size, holds), filter(holds, itertools.count()), strict=False
    ):
        start = number * batch_size
        labels = arrays.pop(LABELS, None)
        yield Batch(arrays, labels, f"{path.name}[{start}:{start + batch_size}]")


def read_folder(folder: Path, inputs: Sequence[TensorInfo], holds: Holds = every) -> Iterator[Batch]:
    """Yield one batch per file of a folder, in the order of their names.

    Raises:
        DataError: If a file is damaged or lacks an input.
    """
    for number, path in enumerate(sample_files(folder)):
        if not holds(number):
            continue
        arrays = load_arrays(path)
        labels = arrays.pop(LABELS, None)
        arrays = _by_input(path, arrays, inputs)
        feeds = {
            t.name: arrays[t.name][None] if _lacks_batch_axis(arrays[t.name].ndim, t) else arrays[t.name]
            for t in inputs
        }
        yield Batch(feeds, labels, f"{folder.name}/{path.name}")


def shapes_in_file(path: Path, inputs: Sequence[TensorInfo]) -> Shapes:
    """Return the shapes of the batch that a file of a folder holds, without reading it.

    Raises:
        DataError: As `read_folder`.
    """
    shapes = _by_input(path, read_shapes(path), inputs)
    return {
        t.name: (1, *shapes[t.name]) if _lacks_batch_axis(len(shapes[t.name]), t) else shapes[t.name]
        for t in inputs
    }


def _by_input(path: Path, values: dict[str, Any], inputs: Sequence[TensorInfo]) -> dict[str, Any]:
    """The values of a file by input name: a `.npy` file has no names."""
    if path.suffix == ".npy":
        if len(inputs) != 1:
            raise DataError(
                f"{path}: a .npy file has no input names, and the model takes {len(inputs)} inputs",
                hint="save .npz files keyed by input name",
            )
        values = {inputs[0].name: next(iter(values.values()))}
    _require_inputs(values, inputs, str(path))
    return values


def read_function(source: Source, inputs: Sequence[TensorInfo]) -> Iterator[Batch]:
    """Yield what a function yields, or what the iterable it returns holds.

    Raises:
        DataError: If it raises, naming the batch, or gives what is no batch.
    """
    result = call(load_function(source), source)
    if not isinstance(result, Iterable):
        raise DataError(
            f"{source.spec}: returned {type(result).__name__}; an iterable of samples is required"
        )
    iterator, index = iter(result), 0
    while True:
        try:
            with beside(source):  # a generator runs, and imports, when it is asked for the next
                item = next(iterator)
        except StopIteration:
            return
        except QCompileError:
            raise
        except Exception as error:
            # Ending here instead would calibrate on part of the data without a word.
            raise DataError(
                f"{source.spec}: raised {type(error).__name__} at batch {index}: {error}"
                f"{where_raised(error, source.path)}",
                sample=index,
            ) from error
        yield _as_batch(item, inputs, f"{source.function} batch {index}")
        index += 1


def _as_batch(item: Any, inputs: Sequence[TensorInfo], where: str) -> Batch:
    labels = None
    if isinstance(item, Mapping):
        arrays = {str(name): _array(value, where) for name, value in item.items()}
        labels = arrays.pop(LABELS, None)
        _require_inputs(arrays, inputs, where)
        return Batch(arrays, labels, where)
    values = list(item) if isinstance(item, tuple | list) else [item]
    if len(values) == len(inputs) + 1:
        labels = _array(values.pop(), where)
    if len(values) != len(inputs):
        raise DataError(
            f"{where}: {len(values)} arrays; the model takes {len(inputs)} "
            f"({', '.join(tensor.name for tensor in inputs)}), and labels may follow"
        )
    names = [tensor.name for tensor in inputs]
    return Batch(
        {name: _array(value, where) for name, value in zip(names, values, strict=True)},
        labels,
        where,
    )


def sample_files(folder: Path) -> list[Path]:
    """Return the `.npy` and `.npz` files of a folder, in the order of their names.

    Raises:
        DataError: If there is none.
    """
    files = sorted(path for path in folder.iterdir() if path.suffix in (".npy", ".npz") and path.is_file())
    if not files:
        raise DataError(f"{folder}: holds no .npy or .npz file; at least one is required")
    return files


def _require_inputs(names: Collection[str], inputs: Sequence[TensorInfo], where: str) -> None:
    """Refuse data that lacks an input; a stray array is refused by `check_feeds`."""
    missing = [tensor.name for tensor in inputs if tensor.name not in names]
    if missing:
        raise DataError(
            f"{where}: input {missing[0]!r} is missing; found {', '.join(names) or 'nothing'}",
            hint="key the arrays by the model's input names",
            tensor=missing[0],
        )


def samples_in_file(path: Path, inputs: Sequence[TensorInfo]) -> int:
    """Return the number of samples in a file without reading them.

    Raises:
        DataError: If it is damaged.
    """
    shapes = read_shapes(path)
    first = shapes.get(inputs[0].name if inputs else "", next(iter(shapes.values()), ()))
    has_batch_axis = not inputs or len(first) == len(inputs[0].shape)
    return first[0] if first and has_batch_axis else 1


def _lacks_batch_axis(axes: int, tensor: TensorInfo) -> bool:
    """A file holds one sample or a batch; a single sample gets the first axis."""
    return axes == len(tensor.shape) - 1


def _array(value: Any, where: str) -> NDArray[Any]:
    if hasattr(value, "detach"):  # a torch tensor, without importing torch
        value = value.detach().cpu().numpy()
    if not isinstance(value, np.ndarray | np.generic | int | float | list):
        raise DataError(
            f"{where}: holds {type(value).__name__}; arrays or tensors are required",
            hint="yield a dict of arrays, a tuple of arrays, or (inputs, labels)",
        )
    return np.asarray(value)
