"""Allocate outputs whose shape depends on data: TensorRT asks for the memory while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....errors import ModelError
from .buffers import ALIGNMENT_BYTES, DeviceBuffer


def make_output_allocator(module: Any, buffer: DeviceBuffer) -> Any:
    """Return an `IOutputAllocator` for one output.

    TensorRT before 10 calls `reallocate_output`, 10 and newer `reallocate_output_async`. The memory is
    ordinary device memory: freeing the smaller one waits for the device, so no stream needs to be asked.

    Args:
        module: TensorRT's.
        buffer: Where the output goes; it grows.

    Returns:
        An object with `shape`, the output's after a run and None before, `begin`, to be called before a
        run, and `raise_again`, for the error that must not cross TensorRT's C++.
    """

    class OutputAllocator(module.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IOutputAllocator.__init__(self)
            self._shape: tuple[int, ...] | None = None
            self._raised: BaseException | None = None

        def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
            try:
                if alignment and ALIGNMENT_BYTES % alignment:
                    raise ModelError(
                        f"output {tensor_name!r}: TensorRT asks for alignment to {alignment} bytes"
                    )
                return buffer.reserve(size)
            except BaseException as error:  # Ctrl-C too: it must not cross TensorRT's C++
                self._raised = error.with_traceback(None)  # which would keep the frames of this run
                return 0  # a null pointer; of None the binding complains on stderr (pyCore.cpp)

        def reallocate_output_async(
            self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
        ) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Sequence[int]) -> None:
            self._shape = tuple(int(extent) for extent in shape)

        def begin(self) -> None:
            """Forget the run before."""
            self._shape = self._raised = None

        @property
        def shape(self) -> tuple[int, ...] | None:
            return self._shape

        def raise_again(self) -> None:
            """Raise what was kept, and keep it no longer."""
            error, self._raised = self._raised, None
            if error is not None:
                raise error

    return OutputAllocator()
