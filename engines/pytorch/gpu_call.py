"""One inference of a PyTorch module on a CUDA stream, from page-locked memory to page-locked memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..gpu_times import GpuTimes, time_runs


class GpuCall:
    """A module with its feeds, on a stream and with page-locked memory of its own.

    Engines of TensorRT run the same way: only copies from and to page-locked memory are asynchronous, and
    only latencies of the same copies can be compared.

    Args:
        torch: The module.
        device: The GPU.
        module: Called with the arguments; on the GPU already.
        arguments, keywords: Tensors on the host, which are copied to page-locked memory here.

    Attributes:
        outputs: What `forward` returned, its tensors on the host, once `wait` has returned; the next run
            writes the same memory.
    """

    def __init__(
        self, torch: Any, device: Any, module: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> None:
        self._torch, self._device, self._module = torch, device, module
        self._arguments = [tensor.pin_memory() for tensor in arguments]
        self._keywords = {name: tensor.pin_memory() for name, tensor in keywords.items()}
        self._there: tuple[list[Any], dict[str, Any]] = ([], {})
        self._result: Any = None
        self._pinned: list[Any] = []
        self._count = 0
        self.outputs: Any = None
        torch.cuda.synchronize(device)  # what wrote the module's weights may be under way on another stream
        self._stream = torch.cuda.Stream(device)

    def start(self) -> None:
        """Enqueue copies to the device, `forward`, and copies back."""
        with self._on_stream():
            self._upload()
            self._forward()
            self._download()

    def wait(self) -> None:
        """Wait until everything that was enqueued is done."""
        self._stream.synchronize()

    def run(self) -> Any:
        """Run host to host and return the outputs."""
        self.start()
        self.wait()
        return self.outputs

    def upload(self) -> None:
        """Copy the inputs to the device, where they stay."""
        with self._on_stream():
            self._upload()
        self.wait()

    def run_on_device(self) -> Any:
        """Run on the inputs that are on the device, and return the outputs there."""
        with self._on_stream():
            self._forward()
        self.wait()
        return self._result

    def times(self, iterations: int) -> GpuTimes:
        """Run, and return durations by CUDA events."""
        make_event = partial(self._torch.cuda.Event, enable_timing=True)
        return time_runs(iterations, make_event, self._timed_run, _elapsed_ms)

    def _timed_run(self, events: Sequence[Any]) -> int:
        before, uploaded, computed, downloaded = events
        with self._on_stream():
            before.record(self._stream)
            self._upload()
            uploaded.record(self._stream)
            start = time.perf_counter_ns()
            self._forward()
            enqueue = time.perf_counter_ns() - start
            computed.record(self._stream)
            self._download()
            downloaded.record(self._stream)
        return enqueue

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        with self._torch.inference_mode(), self._torch.cuda.stream(self._stream):
            yield

    def _upload(self) -> None:
        self._there = (
            [tensor.to(self._device, non_blocking=True) for tensor in self._arguments],
            {name: tensor.to(self._device, non_blocking=True) for name, tensor in self._keywords.items()},
        )

    def _forward(self) -> None:
        arguments, keywords = self._there
        self._result = None
        self._result = self._module(*arguments, **keywords)

    def _download(self) -> None:
        self._count = 0
        self.outputs = self._on_host(self._result)
        # Work enqueued later on this stream may have this memory: PyTorch's allocator knows streams.
        self._result, self._there = None, ([], {})

    def _on_host(self, result: Any) -> Any:
        """Enqueue copies of the tensors of a result, and return its structure with those on the host."""
        if isinstance(result, self._torch.Tensor):
            pinned = self._pinned_like(result)
            pinned.copy_(result, non_blocking=True)
            return pinned
        if isinstance(result, Mapping):
            return {name: self._on_host(item) for name, item in result.items()}
        return [self._on_host(item) for item in result] if isinstance(result, tuple | list) else result

    def _pinned_like(self, tensor: Any) -> Any:
        """Page-locked memory for the next output, that of the last run if it suits."""
        index, self._count = self._count, self._count + 1
        if index == len(self._pinned):
            self._pinned.append(None)
        kept = self._pinned[index]
        if kept is None or (kept.shape, kept.dtype) != (tensor.shape, tensor.dtype):
            kept = self._torch.empty_like(tensor, device="cpu").pin_memory()
            self._pinned[index] = kept
        return kept


def _elapsed_ms(start: Any, end: Any) -> float:
    return float(start.elapsed_time(end))
