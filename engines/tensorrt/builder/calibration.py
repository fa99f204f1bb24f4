"""Scales for a float graph that TensorRT 8.5 to 10 itself quantizes, from a ranges file or calibrators.

Ranges are set on the network's tensors (`ITensor.set_dynamic_range`, as in sampleINT8API). A calibration
cache would need the header that TensorRT expects (NVIDIA/TensorRT issue 1378). A calibrator returns None at
the end of the data, and after an error, which it stores; the build then raises the error and discards the
engine.

TensorRT does not check a batch's type. It reads the buffer at the returned address
(`IInt8Calibrator::getBatch` of NvInfer.h) as float32, unless the network's input is a 32- or 64-bit integer
or a bool (Polygraphy, backend/trt/calibrator.py of release/10.16, `set_input_metadata`; issue 4196 of
NVIDIA/TensorRT). The network's types can differ from the model's: TensorRT 8 has no 64-bit integers
(onnx-tensorrt 8.5-GA, onnx2trt_utils.cpp, `convertDtype`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....calibration import load_ranges, parse_method
from ....core.progress import Progress
from ....data.batches import Data
from ....data.readers import Batch
from ....errors import CalibrationError, DataError, InvalidOption
from ....model.graph.graph import graph_precision
from ....model.graph.onnx_file import read_weightless
from ....spec.tensors import format_shape
from ...base import BuildRequest
from ..adapter import Adapter, member_name
from ..log import Log, setting
from ..runner.cuda import PrimaryContext
from ..runner.io_tensors import InputRange
from ..runner.memory import DeviceBuffer, as_bytes
from .network import FLOATS, layer_outputs, network_inputs

_CLASSES = {"entropy": "IInt8EntropyCalibrator2", "minmax": "IInt8MinMaxCalibrator"}


@dataclass
class Feeder:
    """Copies calibration batches to the device, one at a time, when TensorRT's calibrator requests them.

    TensorRT calibrates at the shapes of `first`, which is also the first of `batches`. `inputs` is set after
    parsing. `raised` is the first error, after which the engine is unusable. `cache` holds the scales that
    TensorRT computes. `before_each_step` may raise, for instance a deferred Ctrl-C.
    """

    first: Batch
    batches: Iterator[Batch]
    device: Any
    progress: Progress
    kind: str = "entropy"
    inputs: Mapping[str, CalibrationInput] = field(default_factory=dict)
    raised: BaseException | None = None
    batches_fed: int = 0
    cache: bytes = field(default=b"", repr=False)
    before_each_step: Callable[[], None] = field(default=lambda: None, repr=False)

    def next(self, names: list[str]) -> list[int] | None:
        """Return the device addresses of the next batch, in the order of `names`; None after the last one."""
        try:
            self.before_each_step()
            batch = next(self.batches, None) if self.raised is None else None
            if batch is None:
                return None
            addresses = [int(self.device.copy(name, self.inputs[name].take(batch))) for name in names]
            self.batches_fed += 1
            self.progress("calibrate by TensorRT", self.batches_fed)
            return addresses
        except BaseException as error:  # Ctrl-C too: it must not cross TensorRT's C++
            self.raised = error
            return None


class DeviceBuffers:
    """Buffers on the GPU, one per input."""

    def __init__(self, device: int = 0) -> None:
        self._context = PrimaryContext(device, "calibration")
        self._buffers: dict[str, DeviceBuffer] = {}

    def copy(self, name: str, array: Any) -> int:
        with self._context.active("copying a batch"):
            buffer = self._buffers.setdefault(name, DeviceBuffer(self._context.cuda))
            address = buffer.reserve(array.nbytes)
            if array.nbytes:
                self._context.cuda.copy_to_device(address, as_bytes(array))
            return address

    def close(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._context.active("freeing"))
            while self._buffers:
                stack.callback(self._buffers.popitem()[1].free)


def make_calibrator(adapter: Adapter, feeder: Feeder) -> Any:
    base: Any = getattr(adapter.module, _CLASSES[feeder.kind])

    class FedCalibrator(base):  # type: ignore[misc]
        """Passes every call to the feeder; no exception crosses TensorRT's C++."""

        def __init__(self) -> None:
            base.__init__(self)

        def get_batch_size(self) -> int:
            # TensorRT uses it only for implicit-batch networks; others use the profile's shape.
            return 1

        def get_batch(self, names: list[str]) -> list[int] | None:
            return feeder.next(names)

        def read_calibration_cache(self) -> bytes | None:
            """Return the cache of an earlier calibration in this build; TensorRT checks its header."""
            return feeder.cache or None

        def write_calibration_cache(self, cache: Any) -> None:
            feeder.cache = bytes(cache)

    return FedCalibrator()


_NUMPY = {
    **dict.fromkeys(("FLOAT", "HALF", "BF16", "UINT8"), "float32"),
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}
"""Maps the type of a network's input to the type in which TensorRT reads samples. INT8 is absent: "auto
calibration does not support this case" (trtexec 8.6, samples/common/sampleEngines.cpp)."""


@dataclass(frozen=True)
class CalibrationInput:
    """A network input as TensorRT calibrates it: in one dtype, at the first batch's shape. `values` are the
    first batch's values if the input holds a shape, else None."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    values: tuple[int, ...] | None = None

    def take(self, batch: Batch) -> NDArray[Any]:
        """Return a batch's array, contiguous and in TensorRT's type; raise DataError if that fails."""
        array = np.asarray(batch.feeds[self.name])
        values = None if self.values is None else tuple(int(value) for value in array.reshape(-1))
        converted = convert(array, self.dtype)
        first_batch = "which is the first batch's"
        if array.shape != self.shape:
            expected = f"TensorRT calibrates at one shape, {first_batch}, {format_shape(self.shape)}"
            problem = f"has shape {format_shape(array.shape)}; {expected}"
        elif converted is None:
            problem = f"is {array.dtype}; TensorRT reads {self.dtype}, which cannot hold its values"
        elif values != self.values:
            shape, first = (", ".join(map(str, extents or ())) for extents in (values, self.values))
            problem = f"holds the shape {shape}; TensorRT calibrates at one, {first_batch}, {first}"
        else:
            return converted
        problem = f"{batch.where}: input {self.name!r} {problem}"
        hint = "give samples that fit, or let TensorRT read our scales: `calibrator` ranges"
        raise DataError(problem, hint=hint, tensor=self.name, sample=batch.where)

    def as_range(self) -> InputRange:
        """Return the only shape, or values, of a calibration profile (Polygraphy: backend/trt/profile.py)."""
        extents = self.shape if self.values is None else self.values
        return InputRange(self.name, extents, extents, extents, of_values=self.values is not None)


def convert(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return an array as a contiguous array of another type; None if a value would be lost.

    Integers and bools must convert exactly. Floats may be rounded, as callers of the engine round them, but
    must not become infinite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        converted = np.ascontiguousarray(array.astype(dtype, copy=False)).reshape(array.shape)
    if array.dtype.kind == dtype.kind == "f":
        equal = np.isfinite(converted) == np.isfinite(array)
    else:
        equal = converted == array
    return converted if equal.all() else None


def calibration_inputs(adapter: Adapter, network: Any, first: Batch) -> dict[str, CalibrationInput]:
    inputs, linear = {}, int(adapter.module.TensorFormat.LINEAR)
    for tensor in network_inputs(network):
        kind, problem, part = member_name(tensor.dtype), "", "type"
        if kind not in _NUMPY:
            problem = f"is {kind}; {adapter.name} calibrates no such input"
        elif not tensor.allowed_formats >> linear & 1:
            problem, part = "is in a memory format of its own; samples are row by row", "format"
        if problem:
            hint = f"leave its {part} out of `io_formats`, or give `ranges`"
            problem = f"`calibrator`: input {tensor.name!r} {problem}"
            raise InvalidOption(problem, hint=hint, option="calibrator")
        array = np.asarray(first.feeds[tensor.name])
        values = tuple(int(value) for value in array.reshape(-1)) if tensor.is_shape_tensor else None
        dtype = np.dtype(_NUMPY[kind])
        inputs[tensor.name] = CalibrationInput(tensor.name, dtype, tuple(array.shape), values)
    return inputs


_LEAST = 127 * 2.0**-149  # amax (largest magnitude) of float32's smallest scale; smaller scales become zero
_SHOWN = 3


Scales = Feeder | Mapping[str, float] | None
"""Source of scales: a `Feeder` of batches, or a map from tensor names to amax (> 0) from a ranges file; None
if the graph has the scales."""


@contextmanager
def scales_for_build(adapter: Adapter, request: BuildRequest) -> Iterator[Scales]:
    """Yield the scales for a build; a `Feeder` holds device memory until the block ends."""
    spec = request.spec
    if not spec.calibrator:
        yield None
        return
    adapter.require_calibrators()
    model = Path(request.source or request.model)
    weightless = read_weightless(model)
    present = graph_precision(weightless.model)
    if present != "fp32":
        raise InvalidOption(f"{model}: its graph is {present} already; a calibrator takes the float graph")
    if spec.ranges is not None:
        ranges = load_ranges(spec.ranges)
        ranges.require_model(model, weightless.digest())
        method = parse_method(spec.method) if spec.method else None
        # A tensor that was always zero is exact at any scale; its amax becomes 1, which TensorRT accepts.
        yield {name: max(ranges.amax(name, method) or 1.0, _LEAST) for name in sorted(ranges.names())}
        return
    assert spec.data is not None, "the spec requires `ranges` or `data`"
    batches = iter(Data(spec.data, weightless.io.inputs, batch_size=1))
    first = next(batches)  # never empty: missing samples raise an error
    device = DeviceBuffers(spec.tensorrt.device)
    try:
        kind = "minmax" if spec.calibrator == "minmax" else "entropy"
        yield Feeder(first, chain([first], batches), device, request.progress, kind)
    finally:
        device.close()


def set_ranges(adapter: Adapter, network: Any, log: Log, amax: Mapping[str, float]) -> None:
    candidates = [*network_inputs(network), *(tensor for tensor, _ in layer_outputs(network))]
    tensors = [item for item in candidates if member_name(item.dtype) in FLOATS and item.name in amax]
    refused: list[str] = []
    for tensor in tensors:
        limit = amax[tensor.name]
        with setting(log, f"`calibrator` ranges: tensor {tensor.name!r}", adapter.name):
            if not tensor.set_dynamic_range(-limit, limit):
                refused.append(tensor.name)
    if refused:
        problem = f"takes no range for {len(refused)} tensors: {', '.join(refused[:_SHOWN])}"
        raise CalibrationError(f"{adapter.name} {problem}", tensor=refused[0])
    if not tensors:
        raise CalibrationError("the parsed network has no tensor of the ranges file")
