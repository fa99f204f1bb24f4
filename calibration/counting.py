"""Count values into bins, with a loop that numba compiles, or with numpy where numba is missing.

Both count the same; numpy takes about eight times as long.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..machine_memory import require_address_space
from ..model.session import usable_cores
from .histogram import BINS, Count, count_by_numpy

_NEEDED_BYTES, _THREAD_BYTES = 256 << 20, 40 << 20
"""Address space of llvmlite, numba and scipy, and of each thread of the OpenBLAS in scipy."""
_LIMIT_INFINITE = 128  # exponent of the first power of two beyond float32


def make_count() -> Count:
    """Return a counting function with scratch memory of its own: one for each thread.

    The first call on a machine compiles, in about a second; numba keeps the result on disk.

    Raises:
        OutOfMemory: If a limit on address space leaves too little of it for numba, and scipy, which it loads.
    """
    if f"{__package__}.kernel" not in sys.modules:
        require_address_space(
            _NEEDED_BYTES + usable_cores() * _THREAD_BYTES, "load numba, which counts values"
        )
    try:
        from . import kernel
    except ImportError:
        return count_by_numpy
    return _Compiled(kernel)


def why_slow() -> str:
    """Return why counting is not compiled here; empty when it is."""
    try:
        import numba  # noqa: F401
    except ImportError as error:
        return f"numba cannot be imported ({error}), so values are counted by numpy, which is slower"
    return ""


class _Compiled:
    """`kernel.count` with its scratch memory."""

    def __init__(self, kernel: Any) -> None:
        self._count = kernel.count
        self._bins = np.empty(kernel.CHUNK, np.uint16)
        self._table = np.zeros(2 * BINS + kernel.LANES, np.uint32)

    def __call__(
        self, values: NDArray[Any], exponent: int, counts: NDArray[np.int64]
    ) -> tuple[int, float, float]:
        if values.dtype != np.float32:
            return count_by_numpy(values, exponent, counts)
        top = exponent + BINS.bit_length() - 1
        limit = math.ldexp(1.0, top) if top < _LIMIT_INFINITE else math.inf
        first = max(-126, min(-exponent, 127))
        done, low, high = self._count(
            values,
            values.view(np.int32),
            np.float32(math.ldexp(1.0, first)),
            np.float32(math.ldexp(1.0, -exponent - first)),
            np.float32(limit).view(np.int32),
            self._bins,
            self._table,
            counts,
        )
        return done, _from_ordered(low), _from_ordered(high)


def _from_ordered(key: int) -> float:
    """The float whose ordered bits (see `kernel`) these are."""
    bits = key if key >= 0 else key ^ 0x7FFFFFFF
    return float(np.int32(bits).view(np.float32))
