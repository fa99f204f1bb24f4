# ruff: noqa: N802 - the names are the driver's
"""libcuda on a simulated GPU, as far as ctypes reaches it.

Source of all: the CUDA driver API's page of each function (https://docs.nvidia.com/cuda/cuda-driver-api/),
and cuda.h for the numbers of errors.
"""

from __future__ import annotations

from typing import Any

from simulated_cuda import Event, Misuse, SimulatedGpu

OUT_OF_MEMORY, CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED = 2, 900, 901


class Library:
    """libcuda, as far as ctypes reaches it: each function returns an error code.

    Source: CUDA's driver API, documentation of each function; the numbers are cuda.h's.
    """

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu

    def cuGetErrorName(self, code: int, name: Any) -> int:
        name._obj.value = f"CUDA_ERROR_{code}".encode()
        return 0

    def cuEventCreate(self, event: Any, flags: Any) -> int:
        if self._gpu.enter("cuEventCreate"):
            return OUT_OF_MEMORY
        event._obj.value = self._gpu.handle()
        self._gpu.events[event._obj.value] = Event()
        self._gpu.count("event", 1)
        return 0

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        self._gpu.events[event.value].record(self._gpu.streams[stream.value])
        return 0

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: Any) -> int:
        if self._gpu.enter("cuStreamWaitEvent"):
            return CAPTURE_UNSUPPORTED
        self._gpu.streams[stream.value].tell(self._gpu.events[event.value].wait)
        return 0

    def cuEventDestroy_v2(self, event: Any) -> int:
        del self._gpu.events[event.value]
        self._gpu.count("event", -1)
        return 0

    def cuStreamSynchronize(self, stream: Any) -> int:
        # Source: CUDA driver API, Stream Management: waits until the stream has completed all operations.
        if self._gpu.enter("cuStreamSynchronize"):
            return CAPTURE_UNSUPPORTED
        self._gpu.streams[stream.value].run()
        return 0

    def cuPointerGetAttribute(self, device: Any, attribute: Any, address: Any) -> int:
        if not self._gpu.is_memory(address.value):
            return 1
        device._obj.value = self._gpu.placed.get(address.value, 0)
        return 0

    def cuStreamBeginCapture_v2(self, stream: Any, mode: Any) -> int:
        if self._gpu.enter("cuStreamBeginCapture"):
            return CAPTURE_UNSUPPORTED
        found = self._gpu.streams[stream.value]
        if found.queue:
            raise Misuse("a stream is captured while something is under way on it")
        found.captured, found.void = [], False
        return 0

    def cuStreamEndCapture(self, stream: Any, graph: Any) -> int:
        # Source: cuStreamEndCapture: "if the capture was invalidated [...] a NULL graph will be returned".
        found = self._gpu.streams[stream.value]
        if found.captured is None:
            return CAPTURE_UNSUPPORTED
        actions, found.captured = found.captured, None
        if self._gpu.enter("cuStreamEndCapture") or found.void:
            return CAPTURE_INVALIDATED
        graph._obj.value = self._gpu.handle()
        self._gpu.graphs[graph._obj.value] = actions
        self._gpu.count("graph", 1)
        return 0

    def cuGraphInstantiateWithFlags(self, made: Any, graph: Any, flags: Any) -> int:
        if self._gpu.enter("cuGraphInstantiateWithFlags"):
            return OUT_OF_MEMORY
        made._obj.value = self._gpu.handle()
        self._gpu.graphs[made._obj.value] = list(self._gpu.graphs[graph.value])
        self._gpu.count("executable graph", 1)
        return 0

    def cuGraphLaunch(self, executable: Any, stream: Any) -> int:
        if self._gpu.enter("cuGraphLaunch"):
            return CAPTURE_UNSUPPORTED
        for action in self._gpu.graphs[executable.value]:
            self._gpu.streams[stream.value].tell(action)
        self._gpu.launches += 1
        return 0

    def cuGraphDestroy(self, graph: Any) -> int:
        del self._gpu.graphs[graph.value]
        self._gpu.count("graph", -1)
        return 0

    def cuGraphExecDestroy(self, executable: Any) -> int:
        # Source: cuGraphExecDestroy: "if the executable graph is in-flight, it will not be terminated, but
        # rather freed asynchronously on completion".
        for stream in self._gpu.streams.values():
            stream.run()
        del self._gpu.graphs[executable.value]
        self._gpu.count("executable graph", -1)
        return 0
