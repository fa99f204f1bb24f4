"""Run samples one by one, so that batching changes no bit of the results.

A first axis need not be one of samples. It may be time, or a model may mix its rows; such batches stay whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.batches import Data
from ..data.readers import Batch
from ..errors import DataError, ModelError

Run = Callable[[Batch], Sequence[NDArray[Any]]]
"""Runs one batch and returns the tensors that are observed, in the same order each time.

It raises DataError or ModelError if the model fails on the batch."""


def one_by_one(data: Data, run: Run, limit: int | None = None) -> Iterator[Batch]:
    """Yield the samples of the data one by one, or whole batches where that would change the tensors.

    A batch that stays whole may exceed the `limit` of samples.
    """
    separable: bool | None = None
    samples = 0
    for batch in data:
        parts = iter([batch])
        if not data.is_fixed and batch.can_be_split():
            separable = gives_the_same_one_by_one(batch, run) if separable is None else separable
            parts = batch.split() if separable else parts
        for part in parts:
            yield part
            samples += part.samples
            if limit is not None and samples >= limit:
                return


def numbered_units(data: Data, run: Run, holds: Callable[[int], bool]) -> Iterator[tuple[int, Batch]]:
    """Yield what `one_by_one` yields and `holds` says, each with its number from 0.

    Data whose shapes are known is not decoded where no unit of a batch is held, but for the first batch that
    can be split: it decides, for every part of the data alike, whether batches are.
    """
    extents = data.extents()
    if extents is None:
        yield from ((unit, batch) for unit, batch in enumerate(one_by_one(data, run)) if holds(unit))
        return
    first = next((number for number, extent in enumerate(extents) if extent > 1), None)
    batch = None if data.is_fixed or first is None else next(data.at(first.__eq__))
    if batch is None or not (batch.can_be_split() and gives_the_same_one_by_one(batch, run)):
        extents = [1] * len(extents)
    starts = list(itertools.accumulate(extents, initial=0))

    def units(batch: int) -> range:
        return range(starts[batch], starts[batch + 1])

    held = [number for number in range(len(extents)) if any(map(holds, units(number)))]
    for number, whole in zip(held, data.at(frozenset(held).__contains__), strict=True):
        parts = whole.split() if extents[number] > 1 else iter([whole])
        yield from (pair for pair in zip(units(number), parts, strict=True) if holds(pair[0]))


def gives_the_same_one_by_one(batch: Batch, run: Run) -> bool:
    """Return whether two samples give the same tensors alone as together.

    Floats are made up for it: real samples may begin with zeros, or be equal, and would then tell nothing.
    """
    generator = np.random.default_rng(0)
    feeds = {
        name: generator.standard_normal(array.shape).astype(array.dtype)
        if array.dtype.kind in "fV"
        else array
        for name, array in batch.head(2).feeds.items()
    }
    pair = Batch(feeds, None, batch.where)
    try:
        singles = [run(sample) for sample in pair.split()]
    except (DataError, ModelError):
        return False  # the batch is then run as it is, and fails with its own words
    try:
        together = run(pair)
    except (DataError, ModelError):
        return True
    return all(_holds_both(*arrays) for arrays in zip(together, *singles, strict=True))


def _holds_both(whole: NDArray[Any], one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether an array holds the values of two others; or it has no batch axis, and all three are alike.

    The values' order is not looked at: `Observer` returns them in any.
    """
    arrays = [array.astype(np.float64) for array in (whole, one, other)]
    alike = whole.size == one.size == other.size
    if not alike and whole.size != one.size + other.size:
        return False
    if not whole.size or not all(np.isfinite(array).all() for array in arrays):
        return True
    low, high = min(one.min(), other.min()), max(one.max(), other.max())
    tolerance = 1e-3 * max(abs(low), abs(high)) + np.finfo(np.float32).tiny
    mean = arrays[1].mean() if alike else (arrays[1].sum() + arrays[2].sum()) / whole.size
    return bool(
        abs(arrays[0].min() - low) <= tolerance
        and abs(arrays[0].max() - high) <= tolerance
        and abs(arrays[0].mean() - mean) <= tolerance
    )
