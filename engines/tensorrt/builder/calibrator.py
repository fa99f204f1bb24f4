"""TensorRT's own INT8 calibrators (8.5 to 10), fed with the user's batches.

TensorRT asks for a batch after the other and takes "none" for the end of the data. An error in between
must therefore not look like the end: it is kept, and the builder raises it and throws the engine away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from ....data.readers import Batch
from ....errors import DataError
from ....progress import Progress
from ..adapter import Adapter
from ..runner.cuda_context import PrimaryContext
from ..runner.memory import DeviceBuffer, raw
from .sample_types import CalibrationInput

Calibrator = Literal["entropy", "minmax"]

_CLASSES = {"entropy": "IInt8EntropyCalibrator2", "minmax": "IInt8MinMaxCalibrator"}


@dataclass
class Feeder:
    """Copies batches to the device, one at a time; what TensorRT's calibrator calls.

    Attributes:
        first: The first batch, whose shapes TensorRT calibrates at.
        batches: All of them, the first too.
        device: Where they go, see `Device`.
        progress: Told of every batch.
        inputs: The network's inputs, known once it is parsed.
        raised: What went wrong meanwhile; TensorRT saw the end of the data, and the engine is worthless.
        fed: Batches handed out.
        cache: What TensorRT wrote: its own scales.
        before_each_batch: May raise, such as a Ctrl-C that was deferred.
    """

    first: Batch
    batches: Iterator[Batch]
    device: Any
    progress: Progress
    inputs: Mapping[str, CalibrationInput] = field(default_factory=dict)
    raised: BaseException | None = None
    fed: int = 0
    cache: bytes = field(default=b"", repr=False)
    before_each_batch: Callable[[], None] = field(default=lambda: None, repr=False)

    def next(self, names: list[str]) -> list[int] | None:
        """Return the addresses of the next batch on the device, in the order of `names`; None at its end."""
        try:
            self.before_each_batch()
            batch = next(self.batches, None) if self.raised is None else None
            if batch is None:
                return None
            addresses = [int(self.device.copy(name, self.inputs[name].take(batch))) for name in names]
            self.fed += 1
            self.progress("calibrate by TensorRT", self.fed)
            return addresses
        except BaseException as error:  # Ctrl-C too: it must not cross TensorRT's C++
            self.raised = error
            return None


class Device:
    """Buffers on the GPU, one per input, in the device's primary context.

    Raises:
        EngineUnavailable: If there is no such device, or no package to use it.
    """

    def __init__(self, device: int = 0) -> None:
        self._context = PrimaryContext(device, "calibration")
        self._buffers: dict[str, DeviceBuffer] = {}

    def copy(self, name: str, array: Any) -> int:
        """Copy an array to the buffer of an input and return its address."""
        with self._context.active("copying a batch"):
            buffer = self._buffers.setdefault(name, DeviceBuffer(self._context.cuda))
            address = buffer.reserve(array.nbytes)
            if array.nbytes:
                self._context.cuda.memcpy_htod(address, raw(array))
            return address

    def close(self) -> None:
        """Free the buffers, each even if another one fails to be."""
        with ExitStack() as stack:
            stack.enter_context(self._context.active("freeing"))
            while self._buffers:
                stack.callback(self._buffers.popitem()[1].free)


def make_calibrator(adapter: Adapter, calibrator: Calibrator, feeder: Feeder) -> Any:
    """Return an object of TensorRT's calibrator class that takes its batches from a feeder."""
    base: Any = getattr(adapter.module, _CLASSES[calibrator])

    class FedCalibrator(base):  # type: ignore[misc]
        """Hands everything on; nothing is raised into TensorRT."""

        def __init__(self) -> None:
            base.__init__(self)

        def get_batch_size(self) -> int:
            # Of implicit-batch networks; with explicit batch the shape of the profile counts.
            return 1

        def get_batch(self, names: list[str]) -> list[int] | None:
            return feeder.next(names)

        def read_calibration_cache(self) -> None:
            """It never reads one: a header that it does not expect would disable it without a word."""

        def write_calibration_cache(self, cache: Any) -> None:
            feeder.cache = bytes(cache)

    return FedCalibrator()


def first_and_all(batches: Iterable[Batch]) -> tuple[Batch, Iterator[Batch]]:
    """Return the first batch, for its shapes, and an iterator over all of them.

    Raises:
        DataError: If there is none.
    """
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        raise DataError("no batch to calibrate on; at least one is required")

    def every() -> Iterator[Batch]:
        yield first
        yield from iterator

    return first, every()
