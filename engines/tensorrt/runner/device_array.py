"""Outputs that stay on the GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import DataError
from .buffers import raw
from .cuda_context import PrimaryContext


class DeviceArray:
    """One output in the memory of its runner, for libraries that know `__cuda_array_interface__`.

    Nothing is copied: `torch.as_tensor(array, device="cuda")` shows the same memory. It holds this output
    until the runner is used again or closed; then this object says so, and what was made of it shows
    whatever is there.

    Attributes:
        address: Where its elements begin on the device, row-major.
        shape: Its extents.
        dtype: numpy's type of its elements.
    """

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        context: PrimaryContext,
        is_valid: Callable[[], bool],
    ) -> None:
        self._address, self.shape, self.dtype = address, shape, dtype
        self._context, self._is_valid = context, is_valid

    @property
    def address(self) -> int:
        """Where it begins.

        Raises:
            DataError: If the memory belongs to another output meanwhile.
        """
        if not self._is_valid():
            raise DataError(
                f"output of shape {self.shape} on the device: its runner was used again or closed since; "
                "it is valid until then",
                hint="copy it before, with copy_to_host() or on the device",
            )
        return self._address

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """The array by version 3 of the protocol: the run is over, so there is no stream to wait for."""
        if self.dtype.kind not in "fiub":
            # AttributeError, so that hasattr() says that there is no such interface.
            raise AttributeError(f"__cuda_array_interface__ has no word for {self.dtype}")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }

    def copy_to_host(self) -> NDArray[Any]:
        """Return a copy on the host.

        Raises:
            DataError: If the memory belongs to another output meanwhile.
        """
        address = self.address
        array = np.empty(self.shape, self.dtype)
        if array.nbytes:
            with self._context.active("copying an output to the host"):
                self._context.cuda.memcpy_dtoh(raw(array), address)
        return array

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self._context.device})"
