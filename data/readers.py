"""A batch of samples, and the batches that a function yields."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, QCompileError
from ..model.source import Source
from ..model.user_code import beside, call, load_function, where_raised
from ..tensors import Feeds, TensorInfo, samples_in

LABELS = "labels"

Shapes = Mapping[str, tuple[int, ...]]
"""Input name to the shape of a batch."""


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
            yield self.sample(index)

    def sample(self, index: int) -> Batch:
        """Return one sample of a batch that can be split, with the axis of samples."""
        return self._part(slice(index, index + 1), f"{self.where} sample {index}")

    def _part(self, part: slice, where: str) -> Batch:
        feeds = {name: array[part] for name, array in self.feeds.items()}
        return Batch(feeds, None if self.labels is None else self.labels[part], where)


def extent_of(shapes: Shapes) -> int:
    """Return into how many samples a batch can be split: 1 unless they are the first axis of every input."""
    extents = {shape[0] if shape else 0 for shape in shapes.values()}
    return max(1, *extents) if len(extents) == 1 else 1


def read_function(source: Source, inputs: Sequence[TensorInfo]) -> Iterator[Batch]:
    """Yield what a function yields, or what the iterable it returns holds."""
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
        require_inputs(arrays, inputs, where)
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


def require_inputs(names: Collection[str], inputs: Sequence[TensorInfo], where: str) -> None:
    """Refuse data that lacks an input; a stray array is refused by `check_feeds`."""
    missing = [tensor.name for tensor in inputs if tensor.name not in names]
    if missing:
        raise DataError(
            f"{where}: input {missing[0]!r} is missing; found {', '.join(names) or 'nothing'}",
            hint="key the arrays by the model's input names",
            tensor=missing[0],
        )


def _array(value: Any, where: str) -> NDArray[Any]:
    if hasattr(value, "detach"):  # a torch tensor, without importing torch
        value = value.detach().cpu().numpy()
    if not isinstance(value, np.ndarray | np.generic | int | float | list):
        raise DataError(
            f"{where}: holds {type(value).__name__}; arrays or tensors are required",
            hint="yield a dict of arrays, a tuple of arrays, or (inputs, labels)",
        )
    return np.asarray(value)
