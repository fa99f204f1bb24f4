"""Arrays on a simulated GPU as other libraries show them, by `__cuda_array_interface__`."""

from __future__ import annotations

from typing import Any

import numpy as np
from simulated_cuda import SimulatedGpu


class Producer:
    """Values on the device, written there by a stream of another library that nobody has waited for yet."""

    def __init__(self, gpu: SimulatedGpu, values: np.ndarray[Any, Any], *, offset: int = 0) -> None:
        self.gpu, self.shape, self.dtype = gpu, values.shape, values.dtype
        self.stream = gpu.foreign_stream()
        self.address, self.free = gpu.array_on_device(np.zeros_like(values), offset)
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).copy()

        def write() -> None:
            gpu.bytes_at(self.address, data.size)[:] = data

        self.stream.tell(write)


class InterfaceArray(Producer):
    """As Numba's arrays."""

    def __init__(self, gpu: SimulatedGpu, values: np.ndarray[Any, Any], **about: Any) -> None:
        super().__init__(gpu, values, offset=about.pop("offset", 0))
        gpu.placed[self.address] = about.pop("device", 0)
        self.__cuda_array_interface__ = {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "stream": self.stream.handle,
        } | about
