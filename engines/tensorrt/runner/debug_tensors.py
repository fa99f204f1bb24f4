"""Read debug tensors while an engine runs (TensorRT 10 and newer).

TensorRT calls the listener when a tensor has its value, which is there for the time of the call alone: it
waits for the stream, and copies (samples/common/debugTensorWriter.cpp, release/10.16). What a listener
raises, its binding prints and drops, and what it returns is not looked at (python/src/infer/pyCore.cpp,
PyDebugListener): the first error is kept here. Bindings before 10.12 do not keep the listener alive.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import ModelError
from .cuda_context import PrimaryContext
from .io_tensors import numpy_dtype


def make_listener(module: Any, context: PrimaryContext, wanted: Collection[str]) -> Any:
    """Return an `IDebugListener` that copies tensors of these names.

    Its `tensors` are name to array; `passed` are the names of others, and of those of a type that arrays
    cannot have. `raise_again` raises the first exception.
    """

    class Listener(module.IDebugListener):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IDebugListener.__init__(self)
            self.tensors: dict[str, NDArray[Any]] = {}
            self.passed: set[str] = set()
            self._raised: BaseException | None = None

        def process_debug_tensor(
            self, addr: int, location: Any, type: Any, shape: Any, name: str, stream: int
        ) -> bool:
            if name not in wanted:
                self.passed.add(name)
                return True
            try:
                dtype = numpy_dtype(type, name)
            except ModelError:  # such as four bits
                self.passed.add(name)
                return True
            try:
                array = np.empty(tuple(int(extent) for extent in shape), dtype)
                context.driver.synchronize(stream)
                if array.nbytes and location == module.TensorLocation.HOST:
                    ctypes.memmove(array.ctypes.data, addr, array.nbytes)
                elif array.nbytes:
                    context.cuda.memcpy_dtoh(array, addr)
                self.tensors[name] = array
            except BaseException as error:
                self._raised = self._raised or error.with_traceback(None)
            return True

        def raise_again(self) -> None:
            raised, self._raised = self._raised, None
            if raised is not None:
                try:
                    raise raised
                finally:
                    del raised  # else it holds its own frame, and so the engine

    return Listener()


@contextlib.contextmanager
def listening(execution_context: Any, listener: Any) -> Iterator[None]:
    """Let a context tell a listener its debug tensors, those that are unfused too, in the block."""
    execution_context.set_debug_listener(listener)
    _switch(execution_context, on=True)
    try:
        yield
    finally:
        _switch(execution_context, on=False)
        execution_context.set_debug_listener(None)


def _switch(execution_context: Any, *, on: bool) -> None:
    execution_context.set_all_tensors_debug_state(on)
    if hasattr(execution_context, "unfused_tensors_debug_state"):
        execution_context.unfused_tensors_debug_state = on
