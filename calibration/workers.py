"""Worker threads that run samples through a model with taps as outputs, and count the values of the taps.

ONNX Runtime computes convolutions in a blocked memory layout (NCHWc) and would reorder every tapped tensor,
at up to half the cost of inference. Histograms do not depend on order, so the optimized graph is written
once, its reorders in front of taps are removed, and it is loaded without further optimization.

Each sample runs on one thread, several samples in parallel: threads within one inference would wait for each
other at every operator. Each worker has its histograms, which merge exactly.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core.files import temporary_folder
from ..core.memory import address_space_limit
from ..data.readers import Batch
from ..errors import CalibrationError, DataError
from ..model.graph.graph import attribute, captured_names, has_float16, producers
from ..model.graph.graph_edits import refill
from ..model.graph.onnx_file import Graph, read_graph
from ..model.sessions.refusals import failed_sample
from ..model.sessions.session import make_session, session_options, usable_cores
from ..spec.tensors import Feeds
from .histogram import Count, Histogram, NonFinite, make_count
from .taps import Taps

if TYPE_CHECKING:
    import onnx

_ONNX_NAMES = {"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16", "float64": "DOUBLE"}
_BLOCK = 16
"""Widest block of channels in ONNX Runtime's layouts: tensors with a multiple of 16 have no padding."""


@dataclass
class Observer:
    """ONNX Runtime session that returns the taps; `outputs` maps the name of an output to its tap."""

    session: Any
    outputs: dict[str, str]

    def run(self, feeds: Feeds, where: str) -> list[tuple[str, Any]]:
        """Return (tap, array) pairs; values are in any order, and bfloat16 becomes float32."""
        if not self.outputs:
            return []  # only inputs are tapped; without names, ONNX Runtime would return every output
        import onnxruntime

        names = list(self.outputs)
        try:
            if any(array.dtype.kind in "OSUT" for array in feeds.values()):
                arrays = self.session.run(names, feeds)  # an OrtValue cannot hold strings
            else:
                values = {name: _as_ort_value(onnxruntime, array) for name, array in feeds.items()}
                arrays = [_as_array(value) for value in self.session.run_with_ort_values(names, values)]
        except Exception as error:
            # ONNX Runtime's exceptions share no base but RuntimeError and Exception.
            raise failed_sample(error, where) from error
        return list(zip(self.outputs.values(), arrays, strict=True))


@contextlib.contextmanager
def open_observer(model: Graph, taps: Taps, threads: int, *, few: bool = False) -> Iterator[Observer]:
    """Yield an observer of the taps that are not inputs; `few` skips the optimized layouts of weights."""
    import onnx

    inputs = {value.name for value in model.model.graph.input}
    outputs = {name: name for name in taps.names if name not in inputs}
    returned = {value.name: value for value in model.model.graph.output}
    for name in outputs:
        kind = getattr(onnx.TensorProto, _ONNX_NAMES[taps.types[name]])
        returned.setdefault(name, onnx.helper.make_tensor_value_info(name, kind, None))
    graph_outputs = list(returned.values())
    convolves = any(node.op_type in ("Conv", "ConvTranspose") for node in model.model.graph.node)
    # The layout level crashes the process on some float16 graphs: see `session_options`.
    layouts = not (few or has_float16(model.model))
    options = session_options(threads, layouts=layouts)
    with temporary_folder("calibrate", model.path) as folder:
        if convolves and layouts:
            path = folder / "optimized.onnx"
            session = _session_without_reorders(model, options, path, graph_outputs, outputs, threads)
        else:
            session = make_session(model, options, outputs=graph_outputs)
        yield Observer(session, outputs)


def _session_without_reorders(
    model: Graph,
    options: Any,
    path: Path,
    graph_outputs: list[onnx.ValueInfoProto],
    outputs: dict[str, str],
    threads: int,
) -> Any:
    """Return a session of the optimized graph without reorders in front of taps; rename `outputs`."""
    options.optimized_model_filepath = str(path)
    weights = f"{path.name}.data"
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", weights)
    options.add_session_config_entry(
        "session.optimized_model_external_initializers_min_size_in_bytes", "1024"
    )
    session = make_session(model, options, outputs=graph_outputs)
    optimized = read_graph(path).model
    skipped = _skip_reorders(optimized.graph, outputs)
    if not skipped:
        return session
    del session
    path.write_bytes(optimized.SerializeToString())
    session = make_session(path, session_options(threads, optimize=False))
    outputs |= {source: outputs.pop(output) for output, source in skipped.items()}
    return session


def _skip_reorders(graph: onnx.GraphProto, outputs: dict[str, str]) -> dict[str, str]:
    """Replace outputs by the inputs of their reorders, in place; return output to its replacement."""
    producer_of = producers(graph)
    consumed = {name for node in graph.node for name in (*node.input, *captured_names(node))}
    skipped: dict[str, str] = {}
    for value in graph.output:
        node = producer_of.get(value.name)
        if node is None or node.op_type != "ReorderOutput" or value.name not in outputs:
            continue
        channels = attribute(node, "channels", 0)
        if channels % _BLOCK or not channels or node.input[0] in skipped.values():
            continue  # the last block is padded, and the padding is not part of the tensor
        skipped[value.name] = node.input[0]
        if value.name not in consumed:
            graph.node.remove(node)
    refill(graph.value_info, (value for value in graph.value_info if value.name not in skipped.values()))
    for value in graph.output:
        if value.name in skipped:
            value.name = skipped[value.name]
            value.type.tensor_type.ClearField("shape")
    return skipped


def _as_ort_value(onnxruntime: Any, array: Any) -> Any:
    if array.dtype.name != "bfloat16":
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    import onnx

    kind = onnx.TensorProto.BFLOAT16
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view("uint16"), kind)


def _as_array(value: Any) -> Any:
    """Return a tensor's values without a copy; bfloat16, which numpy lacks, becomes float32, exactly."""
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    size = math.prod(value.shape())
    if not size:
        return np.zeros(value.shape(), np.float32)
    halves = np.ctypeslib.as_array((ctypes.c_uint16 * size).from_address(value.data_ptr()))
    return (halves.astype(np.uint32) << 16).view(np.float32).reshape(value.shape())


IN_FLIGHT_BYTES = 256 << 20
"""Limit on the activations that all workers hold at a time; models with larger ones get fewer workers."""

Histograms = dict[str, Histogram]


class Workers:
    """Runs samples and counts; use as a context manager. 0 threads mean one per core.

    With `infinite`, activations may hold infinity, as the scores of masked attention do: their finite values
    are counted, some of them perhaps twice. NaN remains an error. `few`: see `open_observer`.
    """

    def __init__(self, model: Graph, taps: Taps, threads: int, *, infinite: bool, few: bool) -> None:
        self._taps, self._threads = taps, threads or usable_cores()
        self._make_observer = functools.partial(open_observer, model, taps, few=few)
        self._make_counter = functools.partial(_Counter, taps, infinite=infinite)
        self._stack = contextlib.ExitStack()
        self._pool: ThreadPoolExecutor | None = None
        self._counters: list[_Counter] = []  # the ones that no thread uses at the moment
        self._pending: deque[Future[int]] = deque()
        self.samples = 0
        """Number of submitted samples that are counted."""

    def __enter__(self) -> Workers:
        with ThreadPoolExecutor(1) as loader:
            loading = loader.submit(make_count)  # compiled or loaded while ONNX Runtime reads the model
            if address_space_limit() is not None:  # free space can be measured only while nothing else runs
                loading.result()
            self._observer = self._stack.enter_context(self._make_observer(1))
            self._counters.append(self._make_counter(loading.result()))
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._stack.close()

    def submit(self, batch: Batch) -> None:
        """Submit a batch for counting; wait while enough batches are pending."""
        if self._pool is None:
            self._observe(batch)  # the first batch determines the memory of the activations
            self._pool = self._start_pool()
            self.samples += batch.samples
            return
        self._pending.append(self._pool.submit(self._observe, batch))
        while len(self._pending) > 2 * self._threads:
            self._collect()

    def run(self, batch: Batch) -> list[NDArray[Any]]:
        """Return the values of the taps on a batch, without counting them."""
        return [array for _, array in self._observer.run(batch.feeds, batch.where)]

    def drain(self) -> Histograms:
        """Wait for all submitted batches and return the histograms so far."""
        while self._pending:
            self._collect()
        first = self._counters[0].histograms
        for counter in self._counters[1:]:
            for name, histogram in counter.histograms.items():
                first[name].merge(histogram)
            counter.histograms = _empty_histograms(self._taps)
        return first

    def resume(self, histograms: Histograms, samples: int) -> None:
        """Continue from the histograms of an interrupted pass."""
        self._counters[0].histograms = histograms
        self.samples = samples

    def _start_pool(self) -> ThreadPoolExecutor:
        threads = self._threads
        self._threads = max(1, min(threads, IN_FLIGHT_BYTES // max(self._counters[0].bytes, 1)))
        session_threads = threads // self._threads
        if session_threads > 1:
            self._stack.close()
            self._observer = self._stack.enter_context(self._make_observer(session_threads))
        self._counters += [self._make_counter(make_count()) for _ in range(self._threads - 1)]
        return ThreadPoolExecutor(self._threads, thread_name_prefix="qcompile-calibrate")

    def _observe(self, batch: Batch) -> int:
        counter = self._counters.pop()
        try:
            counter.add(batch, self._observer)
        finally:
            self._counters.append(counter)
        return batch.samples

    def _collect(self) -> None:
        self.samples += self._pending[0].result()
        self._pending.popleft()


class _Counter:
    """The histograms of one worker."""

    def __init__(self, taps: Taps, count: Count, *, infinite: bool) -> None:
        self.histograms = _empty_histograms(taps)
        self.bytes = 0
        self._count, self._infinite = count, infinite

    def add(self, batch: Batch, observer: Observer) -> None:
        where = batch.where
        for name, array in batch.feeds.items():
            if name in self.histograms or array.dtype.kind in "fV":
                try:  # untapped inputs, too: NaN in a feed is always an error
                    self.histograms.get(name, Histogram()).add(array, self._count)
                except NonFinite as error:
                    message = f"{where}: input {name!r} holds {error}"
                    hint = "clean the sample, or leave it out"
                    raise DataError(message, hint=hint, tensor=name, sample=where) from error
        observed = observer.run(batch.feeds, where)
        self.bytes = sum(array.nbytes for _, array in observed)
        for name, array in observed:
            try:
                self.histograms[name].add(array, self._count)
            except NonFinite as error:
                if self._infinite and not np.isnan(array).any():
                    self.histograms[name].add(array[np.isfinite(array)], self._count)
                    continue
                message = f"tensor {name!r} holds {error} at {where}, although the input is finite"
                hint = "the model overflows on this sample; check its preprocessing"
                raise CalibrationError(message, hint=hint, tensor=name, sample=where) from error


def _empty_histograms(taps: Taps) -> Histograms:
    return {name: Histogram() for name in taps.names}
