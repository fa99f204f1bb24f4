"""A CUDA driver that is not there, as ctypes and PyCUDA show it; its device memory is host memory.

Addresses are real, so what is bound wrongly computes wrongly. Streams are queues that run only when somebody
waits, so what is not waited for is not there. Everything that is allocated, freed, pushed and popped is
counted; freeing twice and touching what was freed are errors. Times are of a clock that only copies and
kernels advance.

Sources: "driver API" is https://docs.nvidia.com/cuda/cuda-driver-api/, "guide" the CUDA C++ programming
guide. What names none of them is bookkeeping of the tests.
"""

from __future__ import annotations

import sys
import threading
import types
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

COPY_NS, KERNEL_NS = 1_000, 5_000
_ALIGNMENT = 256


class Error(Exception):
    """An error code that is not CUDA_SUCCESS. Source: driver API, CUresult."""


class OutOfMemory(Error):
    """CUDA_ERROR_OUT_OF_MEMORY. Source: driver API, CUresult."""


class Misuse(AssertionError):
    """What a real driver would answer with a crash or with wrong results. Source: the tests' own."""


class Stream:
    """A queue of what to do, or while it is captured, a list of it.

    Source: driver API, cuStreamBeginCapture: "all operations pushed into the stream will not be executed, but
    will instead be captured into a graph"; cuStreamCreate, CU_STREAM_NON_BLOCKING: such a stream performs "no
    implicit synchronization with stream 0". PyTorch's streams are such, too (c10/cuda/CUDAStream.cpp).
    """

    def __init__(self, gpu: SimulatedGpu, handle: int, *, non_blocking: bool = True) -> None:
        self.gpu, self.handle, self.non_blocking = gpu, handle, non_blocking
        self.queue: deque[Callable[[], None]] = deque()
        self.captured: list[Callable[[], None]] | None = None
        self.void = False

    def tell(self, action: Callable[[], None]) -> None:
        (self.queue if self.captured is None else self.captured).append(action)

    def run(self) -> None:
        with self.gpu.lock:
            while self.queue:
                self.queue.popleft()()

    def refuse_while_captured(self) -> None:
        # Source: guide, "Prohibited and unhandled operations": synchronizing a stream that is captured, and
        # calls that may be unsafe such as cuMemAlloc in the capturing thread, make the capture invalid.
        if self.captured is not None:
            self.void = True
            raise Error("operation not permitted when stream is capturing")


class Event:
    """Knows the stream it was recorded on, and when it happened.

    Source: driver API, cuEventRecord "captures in hEvent the contents of hStream at the time of this call".
    """

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.time_ns: int | None = None

    def record(self, stream: Stream) -> None:
        self.stream, self.time_ns = stream, None
        stream.tell(self._happen)

    def wait(self) -> None:
        """Run its stream until it has happened."""
        if self.stream is not None:
            with self.stream.gpu.lock:
                while self.time_ns is None:
                    self.stream.queue.popleft()()

    def _happen(self) -> None:
        assert self.stream is not None
        self.time_ns = self.stream.gpu.clock_ns


class SimulatedGpu:
    """Devices with their memory, streams, contexts and counts.

    Attributes:
        live: What exists now, by kind.
        made: What was ever made, by kind.
        launches: Graphs that were replayed.
        fail_on: Which of the calls that may fail does, 1 the first; 0 none. `calls` counts them.
        placed: Address to the number of its device, where it is not 0.
        retained: Device to the references on its primary context.
        name: Of the GPU; a runtime cache is of one.
        current: Context that is current in each thread from its beginning; 0 none.
    """

    def __init__(self, devices: int = 2, memory_bytes: int = 1 << 26, current: int = 0) -> None:
        self.devices, self.memory_bytes = devices, memory_bytes
        self.current = current
        self.live: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        self.launches = 0
        self.name = "a GPU"
        self.clock_ns = 0
        self.calls, self.fail_on = 0, 0
        self.failed: str = ""
        self.lock = threading.RLock()  # one thing at a time: the queues are no queues of real hardware
        self._of_thread = threading.local()
        self.retained: Counter[int] = Counter()
        self.complaints: list[str] = []
        self.placed: dict[int, int] = {}
        self._memory: dict[int, tuple[np.ndarray[Any, Any], int, str]] = {}
        self.streams: dict[int, Stream] = {}
        self.events: dict[int, Event] = {}
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self._handles = iter(range(0x1000, 1 << 30))
        for handle in (1, 2):  # Source: driver API, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD
            self.streams[handle] = Stream(self, handle, non_blocking=False)

    @property
    def stack(self) -> list[int]:
        """The thread's stack of current contexts, by handle.

        Source: driver API, cuCtxPushCurrent: "onto the CPU thread's stack of current contexts".
        """
        found: list[int] = vars(self._of_thread).setdefault("stack", [self.current] * bool(self.current))
        return found

    @property
    def pycuda_stack(self) -> list[Any]:
        """PyCUDA's contexts of the thread.

        Source: cuda.hpp of inducer/pycuda, context_stack_ptr, a boost::thread_specific_ptr.
        """
        found: list[Any] = vars(self._of_thread).setdefault("pycuda_stack", [])
        return found

    def enter(self, call: str) -> bool:
        """Count a call that may fail, and return whether this one does."""
        self.calls += 1
        if self.calls == self.fail_on:
            self.failed = call
            return True
        return False

    def check(self, call: str) -> None:
        """Count a call that fails by raising."""
        if self.enter(call):
            raise OutOfMemory if "Alloc" in call else Error

    def handle(self) -> int:
        """Return a handle that was never used."""
        return next(self._handles)

    def primary(self, device: int) -> int:
        """The handle of a device's primary context."""
        return 0x100 + device

    @property
    def used_bytes(self) -> int:
        """Device memory that is allocated."""
        return sum(size for _, size, kind in self._memory.values() if kind == "device memory")

    @property
    def is_clean(self) -> bool:
        """Whether nothing exists any more, and nobody complained; primary contexts stay, retained once."""
        return not +self.live and not self.complaints and max(self.retained.values(), default=0) <= 1

    def allocate(self, size: int, kind: str = "device memory") -> int:
        """Return an address, aligned as CUDA does; what lies there is garbage.

        Source: guide, "Device memory accesses": allocated addresses are "aligned to at least 256 bytes";
        driver API, cuMemAlloc: "the memory is not cleared".
        """
        if kind == "device memory" and self.used_bytes + size > self.memory_bytes:
            raise OutOfMemory("cuMemAlloc failed: out of memory")
        for stream in self.streams.values():
            stream.refuse_while_captured()
        block = np.full(size + _ALIGNMENT, 0xA5, np.uint8)
        address = -(-block.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        self._memory[address] = (block, size, kind)
        self.count(kind, 1)
        return address

    def release(self, address: int, kind: str) -> None:
        """Free what `allocate` returned; waits for all streams.

        Source: guide, "Stream ordered memory allocator": cudaMalloc and cudaFree make the GPU synchronize
        across all executing streams.
        """
        for stream in self.streams.values():
            stream.run()
        if address not in self._memory or self._memory[address][2] != kind:
            raise Misuse(f"{kind} at {address:#x} was freed twice, or never allocated")
        del self._memory[address]
        self.count(kind, -1)

    def count(self, kind: str, change: int) -> None:
        """Note that something came or went."""
        self.live[kind] += change
        self.made[kind] += max(change, 0)

    def bytes_at(self, address: int, size: int, kind: str = "device memory") -> np.ndarray[Any, Any]:
        """Return memory as it is now.

        Raises:
            Misuse: If it is not, or not wholly, inside a live allocation.
        """
        for start, (block, length, found) in self._memory.items():
            if found == kind and start <= address and address + size <= start + length:
                offset = address - block.ctypes.data
                return block[offset : offset + size]
        raise Misuse(f"{size} bytes at {address:#x} are no live {kind}")

    def is_memory(self, address: int) -> bool:
        """Whether an address is in live device memory."""
        return any(
            start <= address < start + max(size, 1)
            for start, (_, size, kind) in self._memory.items()
            if kind == "device memory"
        )

    def require_context(self) -> None:
        """Refuse a call without a current context.

        Source: driver API, CUDA_ERROR_INVALID_CONTEXT: "there is no context bound to the current thread".
        """
        if not self.stack:
            raise Error("invalid device context")

    def array_on_device(
        self, values: np.ndarray[Any, Any], offset: int = 0
    ) -> tuple[int, Callable[[], None]]:
        """Return the address of a copy in device memory, as another library would make, and what frees it."""
        start = self.allocate(values.nbytes + offset)
        self.bytes_at(start + offset, values.nbytes)[:] = values.reshape(-1).view(np.uint8)
        return start + offset, lambda: self.release(start, "device memory")

    def foreign_stream(self) -> Stream:
        """A stream of another library."""
        stream = Stream(self, self.handle())
        self.streams[stream.handle] = stream
        return stream

    def run_blocking(self) -> None:
        """Finish the streams that the legacy default stream waits for."""
        for stream in self.streams.values():
            if not stream.non_blocking:
                stream.run()

    def run_all(self) -> None:
        """Finish all streams."""
        for stream in self.streams.values():
            stream.run()

    def run_kernel(self, action: Callable[[], None]) -> None:
        """Do what a kernel does, and let its time pass."""
        action()
        self.clock_ns += KERNEL_NS


def install(monkeypatch: pytest.MonkeyPatch, *, pycuda: bool = False, **options: Any) -> SimulatedGpu:
    """Put the simulation where qcompile looks for libcuda and PyCUDA. Source: the tests' own."""
    from simulated_driver import Library, make_pycuda

    from qcompile.engines import libcuda

    gpu = SimulatedGpu(**options)
    library = Library(gpu)
    monkeypatch.setattr(libcuda, "load_library", lambda: library)
    driver = make_pycuda(gpu, library) if pycuda else None
    monkeypatch.setitem(sys.modules, "pycuda.driver", driver)
    monkeypatch.setitem(sys.modules, "pycuda", types.SimpleNamespace(driver=driver) if pycuda else None)
    return gpu
