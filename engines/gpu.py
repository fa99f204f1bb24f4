"""Query this machine's GPUs through the CUDA driver, without a package; time inferences by CUDA events."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidOption
from .libcuda import CudaError, Libcuda

_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h."""
_TEXT_BYTES = 256
_MAX_GPUS = 64
ALL = "all"
"""Value of `devices` for every GPU of the machine, each measured by itself."""


@dataclass(frozen=True)
class Gpu:
    """A CUDA device: name ("NVIDIA H200"), compute capability ("sm90"), total memory, and the newest CUDA
    version that its driver supports ("12.8")."""

    name: str
    architecture: str
    memory_bytes: int
    cuda: str

    def as_json(self) -> dict[str, object]:
        sizes = {"memory_bytes": self.memory_bytes, "cuda": self.cuda}
        return {"gpu": self.name, "gpus": [self.architecture], **sizes}


def parse_device(text: str) -> int | None:
    """Return the number of the GPU in "cuda" or "cuda:1", as CUDA counts them; None for "cpu"."""
    match = re.fullmatch(r"cpu|cuda(?::(\d{1,3}))?", text, re.ASCII)
    if match is None:
        problem = f"`devices` {text!r}: cpu, cuda or cuda:NUMBER is required"
        raise InvalidOption(problem, hint="give only all" if text == ALL else "", option="devices")
    return None if text == "cpu" else int(match[1] or 0)


def parse_devices(texts: Sequence[str]) -> tuple[int | None, ...]:
    """Return the GPU number of each text, or None for "cpu"; (0,) for "all"."""
    if is_every_gpu(texts):
        return (0,)
    numbers = tuple(parse_device(text) for text in texts)
    if len(set(numbers)) < len(numbers) or len([n for n in numbers if n is not None]) > 1:
        problem = f"`devices` {', '.join(texts)}: the processor and one GPU, each once, are allowed"
        hint = "give `devices` all to measure each GPU for itself"
        raise InvalidOption(problem, hint=hint, option="devices")
    return numbers


def is_every_gpu(texts: Sequence[str]) -> bool:
    return tuple(texts) == (ALL,)


def device_text(number: int | None) -> str:
    return "cpu" if number is None else f"cuda:{number}"


def why_no_gpu() -> str:
    """Return why no CUDA device can be used here; empty if one can."""
    try:
        driver = Libcuda()
    except CudaError as error:
        return str(error)
    try:
        driver.call("cuInit", 0)
        count = driver.call("cuDeviceGetCount")
    except CudaError:
        count = 0
    return "" if count else "the NVIDIA driver finds no device"


def why_not_gpu(index: int) -> str:
    """Return why this CUDA device cannot be used here; empty if it can."""
    return why_no_gpu() or ("" if find_gpu(index) else f"there is no GPU number {index}")


def find_gpu(index: int = 0) -> Gpu | None:
    """Return the CUDA device with number `index`; None if it is missing."""
    try:
        driver, device = _device(index)
        name = _text(driver, device, "cuDeviceGetName")
        major, minor = (driver.call("cuDeviceGetAttribute", kind, device) for kind in (_MAJOR, _MINOR))
        memory_bytes, version = driver.call("cuDeviceTotalMem", device), driver.call("cuDriverGetVersion")
    except CudaError:
        return None
    return Gpu(name, f"sm{major}{minor}", memory_bytes, f"{version // 1000}.{version % 1000 // 10}")


def find_gpus() -> list[Gpu]:
    gpus: list[Gpu] = []
    while len(gpus) < _MAX_GPUS and (gpu := find_gpu(len(gpus))):
        gpus.append(gpu)
    return gpus


def bus_id(index: int) -> str:
    """Return a device's PCI address ("0000:3b:00.0"); empty if the device is missing. NVML uses the same
    address, while CUDA's device numbers depend on CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER."""
    try:
        return _text(*_device(index), "cuDeviceGetPCIBusId")
    except CudaError:
        return ""


def _device(index: int) -> tuple[Libcuda, int]:
    driver = Libcuda()
    driver.call("cuInit", 0)
    return driver, driver.call("cuDeviceGet", index)


def _text(driver: Libcuda, device: int, function: str) -> str:
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    driver.call(function, ctypes.addressof(text), _TEXT_BYTES, device)
    return text.value.decode(errors="replace")


_NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class GpuTimes:
    """Durations of inferences on one stream, each an array of int64 nanoseconds, shape [iterations].

    CUDA events measure the first two, to about half a microsecond (cuEventElapsedTime).

    Attributes:
        compute: From the end of the upload to the start of the download. Includes gaps between kernels if
            the host takes longer to enqueue an inference than the device to compute it (see `enqueue`).
        with_transfers: From the start of the upload to the end of the download. Excludes copies on the host
            to and from page-locked memory. Inputs on the device are copied only for a CUDA graph.
        enqueue: Host time to enqueue: `execute_async_v3`, the launch of the CUDA graph, or `forward()`.
    """

    compute: NDArray[np.int64]
    with_transfers: NDArray[np.int64]
    enqueue: NDArray[np.int64]


def time_runs(
    iterations: int,
    make_event: Callable[[], Any],
    stream: Any,
    upload: Callable[[], None],
    compute: Callable[[], None],
    download: Callable[[], None],
) -> GpuTimes:
    """Time inferences on a stream as trtexec does: enqueue an inference before waiting for the previous one.

    trtexec of TensorRT 10.16 (`IterationBase`, samples/common/sampleInference.cpp) also has two inferences in
    flight, and waits for an event. More would fill the driver's launch queue, and enqueueing would block.
    """
    events = [[make_event() for _ in range(4)] for _ in range(2)]
    times = np.zeros((3, iterations), np.int64)
    for turn in range(iterations + 1):
        if turn < iterations:
            before, uploaded, computed, downloaded = events[turn % 2]
            before.record(stream)
            upload()
            uploaded.record(stream)
            start = time.perf_counter_ns()
            compute()
            times[2, turn] = time.perf_counter_ns() - start
            computed.record(stream)
            download()
            downloaded.record(stream)
        if turn > 0:
            before, uploaded, computed, downloaded = events[(turn - 1) % 2]
            downloaded.synchronize()
            times[0, turn - 1] = round(uploaded.elapsed_time(computed) * _NS_PER_MS)
            times[1, turn - 1] = round(before.elapsed_time(downloaded) * _NS_PER_MS)
    return GpuTimes(*times)
