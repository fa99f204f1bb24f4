"""Capture the work of a stream as a CUDA graph, and replay it as one launch.

With the driver's own functions, see `cuda_driver`: they need no package, and are the same from CUDA 11.4 on.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from .cuda_driver import CudaDriver, DriverError


class CudaGraph:
    """The work that `enqueue` puts on a stream, captured as a graph.

    Args:
        driver: The driver; its context is active.
        stream: Handle of the stream; nothing may be under way on it.
        enqueue: Tells the stream what is to be captured; must not wait for it.

    Raises:
        DriverError: If something in between cannot be captured.
    """

    def __init__(self, driver: CudaDriver, stream: int, enqueue: Callable[[], None]) -> None:
        self._driver, self._stream = driver, stream
        with _no_collection():
            driver.begin_capture(stream)
            try:
                enqueue()
            except BaseException:
                # The stream must leave capture mode; that the capture is void is what is being raised.
                with suppress(DriverError):
                    driver.destroy_graph(driver.end_capture(stream))
                raise
            graph = driver.end_capture(stream)
        try:
            self._executable = driver.instantiate(graph)
        finally:
            driver.destroy_graph(graph)

    def launch(self) -> None:
        """Replay it on the stream it was captured from."""
        self._driver.launch(self._executable, self._stream)

    def free(self) -> None:
        """Free it; it cannot be launched afterwards."""
        self._driver.destroy_executable(self._executable)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from collecting garbage: what that frees on the device voids a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
