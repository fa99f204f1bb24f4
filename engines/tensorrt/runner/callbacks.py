"""What TensorRT calls back while an engine runs: its profiler, output allocators, and the debug listener.

No exception may cross TensorRT's C++, and its bindings print and drop one (python/src/infer/pyCore.cpp): the
first is kept here, and raised once TensorRT has returned.
"""

from __future__ import annotations

import contextlib
import ctypes
import statistics
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import ModelError
from .io_tensors import numpy_dtype
from .memory import ALIGNMENT_BYTES, DeviceBuffer, raw
from .primary_context import PrimaryContext


class _KeptError:
    """The first error of a callback, until TensorRT has returned."""

    _raised: BaseException | None = None

    def _keep(self, error: BaseException) -> None:
        self._raised = self._raised or error.with_traceback(None)  # which would keep the frames of this run

    def raise_again(self) -> None:
        """Raise the error of the run, and keep it no longer."""
        raised, self._raised = self._raised, None
        if raised is not None:
            try:
                raise raised
            finally:
                del raised  # else it holds its own frame, and so the engine


def make_profiler(module: Any) -> Any:
    """Return an `IProfiler` with `median_ms()`, layer to its median time so far.

    TensorRT reports each layer after each run while the profiler is attached, which makes runs slower and
    synchronous: the times compare layers with each other, and their sum is no latency.
    """

    class Profiler(module.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IProfiler.__init__(self)
            self._times: dict[str, list[float]] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self._times.setdefault(layer_name, []).append(ms)

        def median_ms(self) -> dict[str, float]:
            return {name: statistics.median(times) for name, times in self._times.items()}

    return Profiler()


def make_output_allocator(module: Any, buffer: DeviceBuffer) -> Any:
    """Return an `IOutputAllocator` for one output, whose shape depends on data; `shape` is None before a run.

    TensorRT before 10 calls `reallocate_output`, 10 and newer `reallocate_output_async`. The memory is
    ordinary device memory: freeing the smaller one waits for the device, so no stream needs to be asked.
    """

    class OutputAllocator(_KeptError, module.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IOutputAllocator.__init__(self)
            self.shape: tuple[int, ...] | None = None

        def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
            try:
                if alignment and ALIGNMENT_BYTES % alignment:
                    raise ModelError(
                        f"output {tensor_name!r}: TensorRT asks for alignment to {alignment} bytes"
                    )
                return buffer.reserve(size)
            except BaseException as error:  # Ctrl-C too
                self._keep(error)
                return 0  # a null pointer; of None the binding complains on stderr (pyCore.cpp)

        def reallocate_output_async(
            self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
        ) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Sequence[int]) -> None:
            self.shape = tuple(int(extent) for extent in shape)

        def begin(self) -> None:
            self.shape = self._raised = None

    return OutputAllocator()


def make_listener(module: Any, context: PrimaryContext, wanted: Collection[str]) -> Any:
    """Return an `IDebugListener` that copies tensors of these names (TensorRT 10 and newer).

    TensorRT calls it when a tensor has its value, which is there for the time of the call alone: it waits
    for the stream, and copies (samples/common/debugTensorWriter.cpp, release/10.16). What it returns is not
    looked at (pyCore.cpp, PyDebugListener). Its `tensors` are those of types that arrays have.
    """

    class Listener(_KeptError, module.IDebugListener):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IDebugListener.__init__(self)
            self.tensors: dict[str, NDArray[Any]] = {}

        def process_debug_tensor(
            self, addr: int, location: Any, type: Any, shape: Any, name: str, stream: int
        ) -> bool:
            if name not in wanted:
                return True
            try:
                dtype = numpy_dtype(type, name)
            except ModelError:  # such as four bits
                return True
            try:
                array = np.empty(tuple(int(extent) for extent in shape), dtype)
                context.cuda.synchronize(stream)
                if array.nbytes and location == module.TensorLocation.HOST:
                    ctypes.memmove(array.ctypes.data, addr, array.nbytes)
                elif array.nbytes:
                    context.cuda.copy_to_host(raw(array), addr)
                self.tensors[name] = array
            except BaseException as error:
                self._keep(error)
            return True

    return Listener()


@contextlib.contextmanager
def listening(execution_context: Any, listener: Any) -> Iterator[None]:
    """Let a context tell a listener its debug tensors, those that are unfused too, in the block.

    Bindings before 10.12 do not keep the listener alive.
    """

    def switch(*, on: bool) -> None:
        execution_context.set_all_tensors_debug_state(on)
        if hasattr(execution_context, "unfused_tensors_debug_state"):
            execution_context.unfused_tensors_debug_state = on

    execution_context.set_debug_listener(listener)
    switch(on=True)
    try:
        yield
    finally:
        switch(on=False)
        execution_context.set_debug_listener(None)
