"""Bring samples to the types and shapes that the parsed network calibrates in.

TensorRT copies nothing and checks nothing: it reads a buffer of the network's type at the address it is given
(`IInt8Calibrator::getBatch`, NvInfer.h). The network's types are not always the model's: TensorRT 8 has no
64-bit integers (onnx-tensorrt 8.5-GA, onnx2trt_utils.cpp, `convertDtype`), and an I/O format may make an
input float16. Polygraphy refuses whatever is not exactly of the network's type (backend/trt/calibrator.py,
`check_buffer`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....data.readers import Batch
from ....errors import DataError, InvalidOption
from ....tensors import format_shape
from ..adapter import Adapter
from .profiles import InputRange

_NUMPY = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
}
"""Types that a network may calibrate in. INT8 is none: "auto calibration does not support this case" (trtexec
8.6, samples/common/sampleEngines.cpp)."""


@dataclass(frozen=True)
class CalibrationInput:
    """An input of the network, as TensorRT calibrates it: at one shape.

    Attributes:
        name: Its name.
        dtype: The network's.
        shape: Of the first sample, [batch, ...].
        values: Of an input whose values are shapes: the first sample's, which stay; None for others.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    values: tuple[int, ...] | None = None

    def take(self, batch: Batch) -> NDArray[Any]:
        """Return a sample's array, contiguous and of the network's type.

        Raises:
            DataError: Naming the sample, if it has another shape, or a value that the type does not hold.
        """
        array = np.asarray(batch.feeds[self.name])
        if array.shape != self.shape:
            raise self._refused(
                batch,
                f"has shape {format_shape(array.shape)}; TensorRT calibrates at one shape, which is the "
                f"first batch's, {format_shape(self.shape)}",
            )
        converted = convert(array, self.dtype)
        if converted is None:
            raise self._refused(
                batch, f"is {array.dtype} with values that {self.dtype}, the network's type, does not hold"
            )
        if self.values is not None and tuple(int(value) for value in array.reshape(-1)) != self.values:
            found = ", ".join(str(value) for value in array.reshape(-1))
            raise self._refused(
                batch,
                f"holds the shape {found}; TensorRT calibrates at one, which is the first batch's, "
                f"{', '.join(map(str, self.values))}",
            )
        return converted

    def as_range(self) -> InputRange:
        """Return the one shape, or the one value, of a calibration profile.

        An input whose values are shapes has a range of values (Polygraphy: backend/trt/profile.py, `to_trt`).
        """
        extents = self.shape if self.values is None else self.values
        return InputRange(self.name, extents, extents, extents, of_values=self.values is not None)

    def _refused(self, batch: Batch, found: str) -> DataError:
        return DataError(
            f"{batch.where}: input {self.name!r} {found}",
            hint="give samples that fit, or let TensorRT read our scales: `calibrator` ranges",
            tensor=self.name,
            sample=batch.where,
        )


def convert(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return an array in another type, contiguous; None where a value is lost.

    Integers and bools must come out equal. Floats may be rounded, as whoever calls the engine rounds them,
    and none may become infinite.
    """
    if array.dtype == dtype:
        return np.ascontiguousarray(array).reshape(array.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        converted = np.ascontiguousarray(array.astype(dtype)).reshape(array.shape)
    if array.dtype.kind == dtype.kind == "f":
        kept = np.isfinite(converted) == np.isfinite(array)
    else:
        kept = converted == array
    return converted if kept.all() else None


def calibration_inputs(adapter: Adapter, network: Any, first: Batch) -> dict[str, CalibrationInput]:
    """Return the inputs of a parsed network, at the shapes of the first sample.

    Raises:
        InvalidOption: If TensorRT does not calibrate an input of that type or format.
    """
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    return {tensor.name: _input(adapter, tensor, first) for tensor in inputs}


def _input(adapter: Adapter, tensor: Any, first: Batch) -> CalibrationInput:
    kind = str(tensor.dtype).rsplit(".", 1)[-1]
    if kind not in _NUMPY:
        raise InvalidOption(
            f"`calibrator`: input {tensor.name!r} is {kind}; {adapter.name} calibrates no such input",
            hint="leave its type out of `io_formats`, or give `ranges`",
            option="calibrator",
        )
    linear = int(adapter.module.TensorFormat.LINEAR)
    if not tensor.allowed_formats >> linear & 1:
        raise InvalidOption(
            f"`calibrator`: input {tensor.name!r} is in a memory format of its own; samples are row by row",
            hint="leave its format out of `io_formats`, or give `ranges`",
            option="calibrator",
        )
    array = np.asarray(first.feeds[tensor.name])
    values = tuple(int(value) for value in array.reshape(-1)) if tensor.is_shape_tensor else None
    return CalibrationInput(tensor.name, np.dtype(_NUMPY[kind]), tuple(array.shape), values)
