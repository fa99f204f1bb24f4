"""A device's primary context, current in blocks.

No context is created, and none stays current: each block makes the primary one, which PyTorch uses too,
current and leaves the thread as it found it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from traceback import clear_frames
from typing import Any

from ....errors import EngineUnavailable, InvalidOption, ModelError, first_line
from .cuda import CudaError, OutOfMemory, load_cuda


class PrimaryContext:
    """A device's primary context, which everything in the process shares, PyTorch included.

    `subject` is what needs it, such as the engine's file: every message begins with it.
    """

    def __init__(self, device: int, subject: str, *, engine: str = "tensorrt") -> None:
        if device < 0:
            raise InvalidOption(f"device: {device}; 0 or more is required", option="devices")
        self.device, self.subject, self._engine = device, subject, engine
        try:
            self.cuda = load_cuda()
            self._handle = _retained(self.cuda.package, device)
        except (ImportError, CudaError) as error:
            raise EngineUnavailable(
                f"no CUDA device can be used for {subject} (device {device}: {error})",
                hint="pip install 'qcompile[cuda]' on a machine with an NVIDIA GPU",
                engine=engine,
            ) from error

    @contextmanager
    def active(self, doing: str) -> Iterator[None]:
        """Make the context current in the block, and translate CUDA's errors, which say what it does.

        The frames of an error that the block calls lose their locals here: whoever keeps the error would
        keep memory of the device and TensorRT's objects with them.
        """
        outer = sys.exc_info()[1]
        self.cuda.push(self._handle)
        try:
            yield
        except BaseException as error:
            _forget_locals(error, outer)
            if isinstance(error, OutOfMemory):
                raise EngineUnavailable(
                    f"{self.subject}: {doing}: not enough memory on CUDA device {self.device}",
                    hint="free memory on the GPU, or give a smaller batch",
                    engine=self._engine,
                ) from error
            if isinstance(error, CudaError):
                raise ModelError(f"{self.subject}: {doing}: CUDA fails: {first_line(error)}") from error
            raise
        finally:
            self.cuda.pop()


@functools.cache
def _retained(package: Any, device: int) -> Any:  # noqa: ARG001 - once for each package that is loaded
    return load_cuda().retain(device)


@contextmanager
def current_device(device: int, subject: str) -> Iterator[None]:
    """Let TensorRT build on a device in the block: it takes the one whose context is current in the thread.

    trtexec calls `cudaSetDevice` (samples/common/sampleDevice.h, `setCudaDevice`), which makes a device's
    primary context current. Device 0 is CUDA's default: where no package can make it current, as on a
    machine without a GPU, nothing is done.
    """
    active: AbstractContextManager[None] = nullcontext()
    try:
        active = PrimaryContext(device, subject).active("building")
    except EngineUnavailable:
        if device != 0:
            raise
    with active:
        yield


def _forget_locals(error: BaseException, outer: BaseException | None) -> None:
    """Clear the finished frames of an error and of what caused it, up to what was being handled before."""
    chained: BaseException | None = error
    while chained is not None and chained is not outer:
        clear_frames(chained.__traceback__)
        chained = chained.__cause__ or chained.__context__
