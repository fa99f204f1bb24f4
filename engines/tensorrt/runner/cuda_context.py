"""The primary CUDA context of a device, which everything in the process shares, PyTorch included.

No context is created, and none stays current: each block makes the primary one current and leaves the
thread as it found it. It is retained until the process ends.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from traceback import clear_frames
from typing import Any

from ....errors import EngineUnavailable, InvalidOption, ModelError, first_line
from .cuda_driver import CudaDriver, DriverError, load_cuda


class PrimaryContext:
    """A device's primary context.

    Attributes:
        cuda: `pycuda.driver`, or `CudaBindings`.
        driver: What PyCUDA lacks.
        device: The device's number.
        subject: What needs it, such as the engine's file; every message begins with it.

    Raises:
        EngineUnavailable: If there is no such device, or no package to use it.
        InvalidOption: If the number is negative.
    """

    def __init__(self, device: int, subject: str, *, engine: str = "tensorrt") -> None:
        if device < 0:
            raise InvalidOption(f"device: {device}; 0 or more is required", option="devices")
        self.device, self.subject, self._engine = device, subject, engine
        try:
            self.cuda = load_cuda()
            self.driver = CudaDriver()
            self._context = _retained(self.cuda, device)
        except Exception as error:  # ImportError, OSError, or a package's own types, which need the import
            raise EngineUnavailable(
                f"no CUDA device can be used for {subject} (device {device}: {error})",
                hint="pip install 'qcompile[cuda]' on a machine with an NVIDIA GPU",
                engine=engine,
            ) from error

    @contextmanager
    def active(self, doing: str) -> Iterator[None]:
        """Make the context current in the block, and translate CUDA's errors.

        The frames of an error that the block calls lose their locals here: whoever keeps the error would
        keep memory of the device and TensorRT's objects with them.

        Args:
            doing: What the block does, for the message.

        Raises:
            EngineUnavailable: If the device's memory does not suffice.
            ModelError: If CUDA fails otherwise.
        """
        outer = sys.exc_info()[1]
        self._context.push()
        try:
            yield
        except BaseException as error:
            _forget_locals(error, outer)
            self._translate(error, doing)
            raise
        finally:
            self.cuda.Context.pop()

    def _translate(self, error: BaseException, doing: str) -> None:
        if isinstance(error, self.cuda.MemoryError):
            raise EngineUnavailable(
                f"{self.subject}: {doing}: not enough memory on CUDA device {self.device}",
                hint="free memory on the GPU, or give a smaller batch",
                engine=self._engine,
            ) from error
        if isinstance(error, (self.cuda.Error, DriverError)):
            raise ModelError(f"{self.subject}: {doing}: CUDA fails: {first_line(error)}") from error


@functools.cache
def _retained(cuda: Any, device: int) -> Any:
    """Return a device's primary context. It is never released: PyCUDA's objects would do so at their end."""
    cuda.init()
    return cuda.Device(device).retain_primary_context()


@contextmanager
def current_device(device: int, subject: str) -> Iterator[None]:
    """Let TensorRT build on a device in the block: it takes the one whose context is current in the thread.

    trtexec calls `cudaSetDevice` (samples/common/sampleDevice.h, `setCudaDevice`), which makes a device's
    primary context current. Device 0 is CUDA's default: where no package can make it current, as on a
    machine without a GPU, nothing is done.

    Raises:
        EngineUnavailable: If there is no such device, or no package for another one than 0.
    """
    active: AbstractContextManager[None]
    try:
        active = PrimaryContext(device, subject).active("building")
    except EngineUnavailable:
        if device != 0:
            raise
        active = nullcontext()
    with active:
        yield


def _forget_locals(error: BaseException, outer: BaseException | None) -> None:
    """Clear the finished frames of an error and of what caused it, up to what was being handled before."""
    chained: BaseException | None = error
    while chained is not None and chained is not outer:
        clear_frames(chained.__traceback__)
        chained = chained.__cause__ or chained.__context__
