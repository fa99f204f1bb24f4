"""Run samples through a model once and count the values of its tensors.

Samples run one at a time, so the batch size cannot change the results. Batches stay whole if their first axis
does not index independent samples: it may be time, or the model may mix its rows.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.artifact import tool_versions
from ..core.figures import counted
from ..core.progress import Progress, silent
from ..data.batches import Data
from ..data.readers import Batch
from ..errors import CalibrationError, DataError, InvalidOption, ModelError, QCompileError
from ..model.graph.module_names import module_names
from ..model.graph.onnx_file import Graph
from .ranges import Portion, Ranges
from .ranges_file import Checkpoint, load_checkpoint, save_checkpoint
from .taps import choose_taps
from .workers import Workers


@dataclass(frozen=True)
class Shard:
    """Every `shards`-th unit of the data, beginning with number `part`, which counts from 1."""

    part: int = 1
    shards: int = 1

    def __str__(self) -> str:
        return f"{self.part}/{self.shards}"

    def contains(self, unit: int) -> bool:
        """Return whether the shard includes a unit (a sample or a whole batch), counted from 0."""
        return unit % self.shards == self.part - 1


def parse_shard(text: str) -> Shard:
    """Parse "2/8", the second of eight parts."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
    part, shards = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= part <= shards:
        raise InvalidOption(
            f"`shard` {text!r}: PART/PARTS is required, as 2/8 for the second of eight", option="shard"
        )
    return Shard(part, shards)


def observe(
    model: Graph,
    data: Data,
    *,
    tensors: Collection[str] | None = None,
    shard: Shard = Shard(),
    threads: int = 0,
    checkpoint: Path | None = None,
    checkpoint_every_s: float = 10.0,
    infinite: bool = False,
    few: bool = False,
    progress: Progress = silent,
) -> Ranges:
    """Return the ranges of a model's float activations over samples.

    Args:
        model: ONNX file; its weights need not be loaded.
        tensors: Tensors that get a scale; None means those of every quantizable operator.
        checkpoint: File for the state of an interrupted calibration; None saves no state.
        infinite: Accept infinity in activations, as masks contain it; only finite values are counted.
        few: Skip ONNX Runtime's layouts of weights: they take 1.2 s on a ResNet-50 and save 0.014 s a sample.

    Raises:
        DataError: If samples do not fit or hold NaN or infinity.
        CalibrationError: If the model has no float activation, or one becomes NaN or infinite.
        ModelError: If ONNX Runtime refuses the model.
    """
    taps = choose_taps(model.model, tensors)
    if not taps.names:
        raise CalibrationError(
            f"{model.path}: no float activation at any quantizable operator; nothing to calibrate",
            hint="qcompile inspect shows the operators; dynamic and weight-only INT8 need no ranges",
            file=model.path,
        )
    progress("prepare the model")
    names = module_names(model.model)
    modules = {name: names[name] for name in taps.names if name in names}
    ranges = Ranges(model.digest(), shared=taps.shared, skipped=taps.skipped, modules=modules)
    identity = data.digest() + (f"[:{data.limit}]" if data.limit else "")
    key: dict[str, object] = {
        "model": ranges.model,
        "data": identity,
        "shard": str(shard),
        "taps": taps.names,
        "tools": tool_versions("onnxruntime"),
    }
    with Workers(model, taps, threads, infinite=infinite, few=few) as workers:
        start = 0
        if checkpoint and (stored := load_checkpoint(checkpoint, key)):
            start = stored.units
            workers.resume(stored.histograms, stored.samples)
        last_s = time.monotonic()

        def save(units: int) -> None:
            nonlocal last_s
            if checkpoint and time.monotonic() - last_s >= checkpoint_every_s:
                histograms = workers.drain()
                save_checkpoint(Checkpoint(key, units, workers.samples, histograms), checkpoint)
                last_s = time.monotonic()

        _submit_units(data, shard, workers, save, start, progress)
        ranges.histograms = dict(workers.drain())
        ranges.portions = {identity: Portion(workers.samples, shard.shards, (shard.part,))}
    return ranges


def _submit_units(
    data: Data, shard: Shard, workers: Workers, save: Callable[[int], None], start: int, progress: Progress
) -> None:
    total = data.total
    if total is not None:  # the shards take turns, one unit each
        unit = data.batch_size if data.is_fixed else 1
        starts = range((shard.part - 1) * unit, total, shard.shards * unit)
        total = sum(min(unit, total - start) for start in starts)
    if start:
        progress(f"continue after {counted(workers.samples, 'sample')}", workers.samples, total)
    try:
        # Where the data allows it, units of other shards and units before `start` are not decoded.
        units: Iterator[tuple[int, Batch]] = enumerate(split_samples(data, workers.run))
        if shard.shards > 1 or start:
            units = select_units(data, workers.run, lambda unit: unit >= start and shard.contains(unit))
        for unit, batch in units:
            workers.submit(batch)
            progress("calibrate", workers.samples, total)
            save(unit + 1)
    except QCompileError:
        workers.drain()  # raises the error of an earlier sample, if one is pending
        raise
    workers.drain()
    progress("calibrate", workers.samples, total)


Run = Callable[[Batch], Sequence[NDArray[Any]]]
"""Runs one batch and returns the observed tensors, in a fixed order; raises DataError or ModelError."""


def split_samples(data: Data, run: Run, limit: int | None = None) -> Iterator[Batch]:
    """Yield single samples; batches stay whole, even beyond `limit`, where splitting changes the tensors."""
    separable: bool | None = None
    samples = 0
    for batch in data:
        parts = iter([batch])
        if not data.is_fixed and batch.can_be_split():
            separable = is_separable(batch, run) if separable is None else separable
            parts = batch.split() if separable else parts
        for part in parts:
            yield part
            samples += part.samples
            if limit is not None and samples >= limit:
                return


def select_units(data: Data, run: Run, holds: Callable[[int], bool]) -> Iterator[tuple[int, Batch]]:
    """Yield (number, unit) for the units of `split_samples` that `holds` selects; numbers begin at 0.

    If shapes are known, a batch without a selected unit is not decoded. The first batch that can be split is
    the exception: it decides, for every shard alike, whether batches are split.
    """
    extents = data.extents()
    if extents is None:
        yield from ((unit, batch) for unit, batch in enumerate(split_samples(data, run)) if holds(unit))
        return
    first = next((number for number, extent in enumerate(extents) if extent > 1), None)
    batch = None if data.is_fixed or first is None else next(data.select_batches(first.__eq__))
    if batch is None or not (batch.can_be_split() and is_separable(batch, run)):
        extents = [1] * len(extents)
    starts = list(itertools.accumulate(extents, initial=0))

    def units(batch: int) -> range:
        return range(starts[batch], starts[batch + 1])

    numbers = [number for number in range(len(extents)) if any(map(holds, units(number)))]
    for number, whole in zip(numbers, data.select_batches(frozenset(numbers).__contains__), strict=True):
        parts = whole.split() if extents[number] > 1 else iter([whole])
        yield from (pair for pair in zip(units(number), parts, strict=True) if holds(pair[0]))


def is_separable(batch: Batch, run: Run) -> bool:
    """Return whether two samples give equal tensors alone and together (random: real ones may be equal)."""
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
        return False  # the whole batch runs next and raises its error
    try:
        together = run(pair)
    except (DataError, ModelError):
        return True
    return all(_extremes_agree(*arrays) for arrays in zip(together, *singles, strict=True))


def _extremes_agree(*tensors: NDArray[Any]) -> bool:
    """Return whether, by extremes and mean, an array holds two others in any order, or all are alike."""
    whole, first, second = (tensor.astype(np.float64) for tensor in tensors)
    alike = whole.size == first.size == second.size
    if not alike and whole.size != first.size + second.size:
        return False
    parts = first if alike else np.concatenate([first.reshape(-1), second.reshape(-1)])
    if not whole.size or not (np.isfinite(whole).all() and np.isfinite(parts).all()):
        return True
    low, high = min(first.min(), second.min()), max(first.max(), second.max())
    tolerance = 1e-3 * max(abs(low), abs(high)) + np.finfo(np.float32).tiny
    differences = np.array([whole.min() - low, whole.max() - high, whole.mean() - parts.mean()])
    return bool((np.abs(differences) <= tolerance).all())
