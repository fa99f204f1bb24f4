"""Worker threads: each runs a sample through the model and counts the values of its taps.

One sample is run by one thread, several samples at once: threads inside one inference would wait for each
other at every operator. Each worker counts into histograms of its own, which merge exactly.
"""

from __future__ import annotations

import contextlib
import queue
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.readers import Batch
from ..errors import CalibrationError, DataError, InvalidOption
from ..machine_memory import address_space_limit
from ..model.session import usable_cores
from ..model.weightless import WeightlessModel
from .counting import make_count
from .histogram import Count, Histogram, NonFinite
from .observer import Observer, open_observer
from .taps import Taps

IN_FLIGHT_BYTES = 256 << 20
"""Activations held at a time by all workers; a model with larger ones gets fewer workers."""

Histograms = dict[str, Histogram]


class Workers:
    """Runs samples and counts; use as a context manager.

    Args:
        model: The ONNX file.
        taps: From `choose_taps`.
        threads: Threads in all; 0 takes one per core.
        infinite: Whether activations may hold infinity, as the scores of masked attention do: their finite
            values are counted, some of them perhaps twice. NaN is an error all the same.

    Raises:
        InvalidOption: If there are fewer threads than none.
        ModelError: If ONNX Runtime refuses the model.
    """

    def __init__(self, model: WeightlessModel, taps: Taps, threads: int, *, infinite: bool = False) -> None:
        if threads < 0:
            raise InvalidOption(f"`threads` {threads}: at least 0 is required", option="threads")
        self._model, self._taps, self._infinite = model, taps, infinite
        self._threads = threads or usable_cores()
        self._stack = contextlib.ExitStack()
        self._pool: ThreadPoolExecutor | None = None
        self._free: queue.SimpleQueue[_Counter] = queue.SimpleQueue()
        self._counters: list[_Counter] = []
        self._pending: deque[Future[int]] = deque()
        self.samples = 0
        """Samples that are counted, of those submitted."""

    def __enter__(self) -> Workers:
        if address_space_limit() is not None:  # what is left of it is known only while nothing else runs
            count = make_count()
            self._observer = self._stack.enter_context(open_observer(self._model, self._taps, 1))
            self._add_counter(count)
            return self
        with ThreadPoolExecutor(1) as loader:
            loading = loader.submit(make_count)  # compiled or loaded while ONNX Runtime reads the model
            self._observer = self._stack.enter_context(open_observer(self._model, self._taps, 1))
            self._add_counter(loading.result())
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._stack.close()

    def submit(self, batch: Batch) -> None:
        """Have a batch counted; waits while enough are under way.

        Raises:
            DataError: If a sample does not fit the model or holds NaN or infinity; the earliest such one.
            CalibrationError: If a tensor becomes NaN or infinite.
        """
        # A function may fill the same arrays again while this batch is under way.
        batch = Batch({name: array.copy() for name, array in batch.feeds.items()}, None, batch.where)
        if self._pool is None:
            self._observe(batch)  # the first one tells how much memory its activations take
            self._pool = self._start()
            self.samples += batch.samples
            return
        self._pending.append(self._pool.submit(self._observe, batch))
        while len(self._pending) > 2 * len(self._counters):
            self._collect()

    def run(self, batch: Batch) -> list[NDArray[Any]]:
        """Return what the taps hold on a batch, which is not counted.

        Raises:
            DataError: If the model fails on it.
        """
        return [array for _, array in self._observer.run(batch.feeds, batch.where)]

    def drain(self) -> Histograms:
        """Wait for all that was submitted and return the histograms so far.

        Raises:
            DataError, CalibrationError: As `submit`.
        """
        while self._pending:
            self._collect()
        first = self._counters[0].histograms
        for counter in self._counters[1:]:
            for name, histogram in counter.histograms.items():
                first[name].merge(histogram)
            counter.histograms = _empty(self._taps)
        return first

    def resume(self, histograms: Histograms, samples: int) -> None:
        """Go on from histograms of an earlier pass."""
        self._counters[0].histograms = histograms
        self.samples = samples

    def _start(self) -> ThreadPoolExecutor:
        number = max(1, min(self._threads, IN_FLIGHT_BYTES // max(self._counters[0].bytes, 1)))
        inside = self._threads // number
        if inside > 1:
            self._stack.close()
            self._observer = self._stack.enter_context(open_observer(self._model, self._taps, inside))
        for _ in range(number - 1):
            self._add_counter(make_count())
        return ThreadPoolExecutor(number, thread_name_prefix="qcompile-calibrate")

    def _add_counter(self, count: Count) -> None:
        counter = _Counter(self._taps, count, infinite=self._infinite)
        self._counters.append(counter)
        self._free.put(counter)

    def _observe(self, batch: Batch) -> int:
        with self._counter() as counter:
            counter.add(batch, self._observer)
        return batch.samples

    @contextlib.contextmanager
    def _counter(self) -> Iterator[_Counter]:
        counter = self._free.get()
        try:
            yield counter
        finally:
            self._free.put(counter)

    def _collect(self) -> None:
        self.samples += self._pending[0].result()
        self._pending.popleft()


class _Counter:
    """The histograms of one worker."""

    def __init__(self, taps: Taps, count: Count, *, infinite: bool) -> None:
        self.histograms = _empty(taps)
        self.bytes = 0
        self._count, self._infinite = count, infinite

    def add(self, batch: Batch, observer: Observer) -> None:
        for name, array in batch.feeds.items():
            self._add_input(name, array, batch.where)
        observed = observer.run(batch.feeds, batch.where)
        self.bytes = sum(array.nbytes for _, array in observed)
        for name, array in observed:
            try:
                self.histograms[name].add(array, self._count)
            except NonFinite as error:
                if self._infinite and not np.isnan(array).any():
                    self.histograms[name].add(array[np.isfinite(array)], self._count)
                    continue
                raise CalibrationError(
                    f"tensor {name!r} holds {error.what} at {batch.where}, although the input is finite",
                    hint="the model overflows on this sample; check its preprocessing",
                    tensor=name,
                    sample=batch.where,
                ) from error

    def _add_input(self, name: str, array: Any, where: str) -> None:
        histogram = self.histograms.get(name)
        if histogram is None:
            if array.dtype.kind not in "fV":
                return
            histogram = Histogram()  # not a tap, but a NaN fed in is an error all the same
        try:
            histogram.add(array, self._count)
        except NonFinite as error:
            raise DataError(
                f"{where}: input {name!r} holds {error.what}",
                hint="clean the sample, or leave it out",
                tensor=name,
                sample=where,
            ) from error


def _empty(taps: Taps) -> Histograms:
    return {name: Histogram() for name in taps.names}
