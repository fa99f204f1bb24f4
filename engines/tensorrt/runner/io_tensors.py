"""The inputs and outputs of a deserialized engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import ModelError
from ....tensors import ModelIO, TensorInfo
from ..adapter import Adapter

# By name: the module's own nptype() uses numpy names that numpy 2 has dropped (TensorRT 8.5).
_NUMPY = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
}
_ML_DTYPES = {"BF16": "bfloat16", "FP8": "float8_e4m3fn"}
"""Types that numpy has from the package ml_dtypes."""


@dataclass(frozen=True)
class IOTensor:
    """One input or output.

    Attributes:
        name: Its name.
        dtype: numpy's type of its elements.
        shape: Extents; -1 is dynamic.
        is_input: Whether it is one.
        on_host: Whether TensorRT reads or writes it on the host: values that shapes depend on.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_input: bool
    on_host: bool

    @property
    def info(self) -> TensorInfo:
        """The form used everywhere else; dynamic axes have no name in an engine."""
        shape = tuple(extent if extent >= 0 else "?" for extent in self.shape)
        return TensorInfo(self.name, str(self.dtype), shape)


def read_tensors(adapter: Adapter, engine: Any, path: Path) -> tuple[IOTensor, ...]:
    """Return the inputs and outputs of an engine, in its order.

    Raises:
        ModelError: Naming the tensor, if it is of a type or in a format that arrays cannot have.
    """
    module = adapter.module
    tensors = []
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        if engine.get_tensor_format(name) != module.TensorFormat.LINEAR:
            raise ModelError(
                f"{path}: tensor {name!r} is in format {_word(engine.get_tensor_format(name))}; "
                "row-major (LINEAR) is required",
                hint="build it without `io_formats`",
                tensor=name,
            )
        tensors.append(
            IOTensor(
                name,
                numpy_dtype(engine.get_tensor_dtype(name), name, f"{path}: "),
                tuple(int(extent) for extent in engine.get_tensor_shape(name)),
                engine.get_tensor_mode(name) == module.TensorIOMode.INPUT,
                engine.get_tensor_location(name) == module.TensorLocation.HOST,
            )
        )
    return tuple(tensors)


def model_io(tensors: Sequence[IOTensor]) -> ModelIO:
    """Return inputs and outputs as runners show them."""
    return ModelIO(
        tuple(tensor.info for tensor in tensors if tensor.is_input),
        tuple(tensor.info for tensor in tensors if not tensor.is_input),
    )


def numpy_dtype(member: Any, name: str, where: str = "") -> np.dtype[Any]:
    """Return numpy's type for a `DataType` of TensorRT.

    Args:
        member: The type.
        name: Of the tensor, for the error.
        where: Beginning of the error.

    Raises:
        ModelError: If arrays cannot be of it.
    """
    kind = _word(member)
    if kind in _NUMPY:
        return np.dtype(_NUMPY[kind])
    if kind not in _ML_DTYPES:
        raise ModelError(
            f"{where}tensor {name!r} is {kind}, a type that numpy arrays do not have",
            hint="build a model whose inputs and outputs are of another type",
            tensor=name,
        )
    try:
        import ml_dtypes
    except ImportError as error:
        raise ModelError(
            f"{where}tensor {name!r} is {kind}, which numpy has only from ml_dtypes",
            hint="pip install ml_dtypes",
            tensor=name,
        ) from error
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[kind]))
    return dtype


def _word(member: Any) -> str:
    return str(member).rsplit(".", 1)[-1]
