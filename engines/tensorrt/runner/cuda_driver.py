"""The few functions of the CUDA driver that PyCUDA does not have, by ctypes: no package is needed.

PyCUDA 2026.1 has no graphs, knows no streams but its own, and does not tell whose memory an address is. The
names are those of CUDA's driver API, https://docs.nvidia.com/cuda/cuda-driver-api/; all are in drivers of
CUDA 11.4 and newer. A context must be current wherever these are called.
"""

from __future__ import annotations

import ctypes
from typing import Any

_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may go on allocating
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


class DriverError(Exception):
    """A driver function failed; the message names it and the error."""


class CudaDriver:
    """libcuda, loaded.

    Raises:
        OSError: If there is none.
    """

    def __init__(self) -> None:
        self._library = load_library()

    def wait(self, stream: int, producer: int) -> None:
        """Let a stream wait for the work enqueued on another one so far; the host does not wait.

        Args:
            stream: Handle of the stream that waits.
            producer: Handle of any stream of this context; 1 is the legacy default one, 2 the thread's.
        """
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(_DISABLE_TIMING))
        try:
            self._call("cuEventRecord", event, ctypes.c_void_p(producer))
            self._call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, ctypes.c_uint(0))
        finally:
            self._call("cuEventDestroy_v2", event)

    def synchronize(self, stream: int) -> None:
        """Let the host wait for the work enqueued on a stream of this context."""
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def device_of(self, address: int) -> int:
        """Return the number of the device whose memory an address is in.

        Raises:
            DriverError: If the driver does not know the address.
        """
        device = ctypes.c_int()
        self._call(
            "cuPointerGetAttribute",
            ctypes.byref(device),
            ctypes.c_int(_DEVICE_ORDINAL),
            ctypes.c_uint64(address),
        )
        return device.value

    def remove_context(self, handle: int) -> None:
        """Take a released primary context off this thread's stack of contexts.

        It is on top, or below one that PyCUDA has made current again.
        """
        top = self._pop()
        if top != handle:
            self._pop()
            self._call("cuCtxPushCurrent_v2", ctypes.c_void_p(top))

    def begin_capture(self, stream: int) -> None:
        """Begin to capture the work enqueued on a stream instead of executing it."""
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_int(_THREAD_LOCAL))

    def end_capture(self, stream: int) -> int:
        """Return the captured graph of the stream; the caller destroys it.

        Raises:
            DriverError: If something was done meanwhile that cannot be captured.
        """
        graph = ctypes.c_void_p()
        self._call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        return int(graph.value or 0)

    def instantiate(self, graph: int) -> int:
        """Return an executable graph; to be destroyed."""
        made = ctypes.c_void_p()
        self._call(
            "cuGraphInstantiateWithFlags", ctypes.byref(made), ctypes.c_void_p(graph), ctypes.c_uint64(0)
        )
        return int(made.value or 0)

    def launch(self, executable: int, stream: int) -> None:
        """Enqueue an executable graph."""
        self._call("cuGraphLaunch", ctypes.c_void_p(executable), ctypes.c_void_p(stream))

    def destroy_graph(self, graph: int) -> None:
        """Free a graph."""
        self._call("cuGraphDestroy", ctypes.c_void_p(graph))

    def destroy_executable(self, executable: int) -> None:
        """Free an executable graph."""
        self._call("cuGraphExecDestroy", ctypes.c_void_p(executable))

    def _pop(self) -> int:
        context = ctypes.c_void_p()
        self._call("cuCtxPopCurrent_v2", ctypes.byref(context))
        return int(context.value or 0)

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            name = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(name))
            raise DriverError(f"{function}: {(name.value or b'unknown error').decode()} ({code})")


def load_library() -> Any:
    """Return the driver's library.

    Raises:
        OSError: If there is none.
    """
    return ctypes.CDLL("libcuda.so.1")
