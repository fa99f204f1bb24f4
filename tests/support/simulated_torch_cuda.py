"""`torch.cuda` with the processor in the GPU's place: streams, events, and which memory is page-locked.

Source: PyTorch's documentation of torch.cuda.Stream, torch.cuda.Event(enable_timing=True) (`elapsed_time` in
milliseconds) and "Use pinned memory buffers": a copy with non_blocking=True is asynchronous only from and to
page-locked memory. Here such a copy from or to other memory is an error; what is enqueued runs at once. The
clock advances by copies and by `kernel`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

COPY_MS, KERNEL_MS = 1.0, 5.0


class SimulatedTorchCuda:
    """What happened.

    Attributes:
        streams: Those that were made.
        current: That in whose block the thread is.
        enqueued, finished: Number of copies and kernels, on whichever stream.
        unfinished: Streams on which something was enqueued since they were waited for.
        clock_ms: Time of copies and kernels.
        copies: Number of asynchronous copies.
    """

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.current: Stream | None = None
        self.unfinished: set[int] = set()
        self.clock_ms = 0.0
        self.copies = 0
        self.enqueued = self.finished = 0
        self.pinned: set[int] = set()

    def enqueue(self, milliseconds: float) -> None:
        """Let work take its time on the current stream."""
        assert self.current is not None, "something runs on the default stream"
        self.unfinished.add(self.current.number)
        self.enqueued += 1
        self.clock_ms += milliseconds


class Stream:
    """`torch.cuda.Stream`."""

    def __init__(self, cuda: SimulatedTorchCuda) -> None:
        self._cuda, self.number = cuda, len(cuda.streams)
        cuda.streams.append(self)

    def synchronize(self) -> None:
        self._cuda.unfinished.discard(self.number)
        self._cuda.finished = self._cuda.enqueued


class Event:
    """`torch.cuda.Event`."""

    def __init__(self, cuda: SimulatedTorchCuda, *, enable_timing: bool) -> None:
        assert enable_timing
        self._cuda, self._time_ms, self._behind = cuda, 0.0, 0

    def record(self, stream: Stream) -> None:
        self._time_ms, self._behind = self._cuda.clock_ms, self._cuda.enqueued

    def synchronize(self) -> None:
        self._cuda.finished = max(self._cuda.finished, self._behind)
        if self._cuda.finished == self._cuda.enqueued:
            self._cuda.unfinished.clear()

    def elapsed_time(self, end: Event) -> float:
        assert end._behind <= self._cuda.finished, "the event has not happened yet"
        return end._time_ms - self._time_ms


def install(monkeypatch: pytest.MonkeyPatch) -> SimulatedTorchCuda:
    """Put it in the place of `torch.cuda`."""
    cuda = SimulatedTorchCuda()

    @contextmanager
    def stream(chosen: Stream) -> Iterator[None]:
        before, cuda.current = cuda.current, chosen
        try:
            yield
        finally:
            cuda.current = before

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        copied = tensor.clone()
        cuda.pinned.add(copied.data_ptr())
        return copied

    to, copy_ = torch.Tensor.to, torch.Tensor.copy_

    def moved(tensor: torch.Tensor, *given: Any, non_blocking: bool = False, **more: Any) -> torch.Tensor:
        if non_blocking:
            assert tensor.data_ptr() in cuda.pinned, "a copy from pageable memory"
            cuda.enqueue(COPY_MS)
            cuda.copies += 1
            return tensor.clone()
        return to(tensor, *given, **more)

    def copied(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if non_blocking:
            assert target.data_ptr() in cuda.pinned, "a copy to pageable memory"
            cuda.enqueue(COPY_MS)
            cuda.copies += 1
        return copy_(target, source)

    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Stream(cuda))
    monkeypatch.setattr(torch.cuda, "Event", lambda **options: Event(cuda, **options))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "to", moved)
    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    return cuda
