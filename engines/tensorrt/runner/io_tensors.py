"""The inputs and outputs of a deserialized engine, and 64-bit integers where it has only 32.

TensorRT 8 narrows a model's int64: feeds of the model's type are taken, and narrowed only where every value
fits. What has 64 bits in the model has them in the outputs again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import DataError, ModelError
from ....tensors import ModelIO, TensorInfo
from ..adapter import Adapter

# By name: the module's own nptype() uses numpy names that numpy 2 has dropped (TensorRT 8.5).
_NUMPY = {
    "FLOAT": "float32", "HALF": "float16", "INT8": "int8", "INT32": "int32", "INT64": "int64",
    "BOOL": "bool", "UINT8": "uint8",
}  # fmt: skip
_ML_DTYPES = {"BF16": "bfloat16", "FP8": "float8_e4m3fn"}
"""Types that numpy has from the package ml_dtypes."""
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class IOTensor:
    """An input or output; an extent of -1 is dynamic.

    `on_host` says that TensorRT reads or writes it on the host: values that shapes depend on.
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
    """Return the inputs and outputs of an engine, in its order."""
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
    return ModelIO(
        tuple(tensor.info for tensor in tensors if tensor.is_input),
        tuple(tensor.info for tensor in tensors if not tensor.is_input),
    )


def numpy_dtype(member: Any, name: str, where: str = "") -> np.dtype[Any]:
    """Return numpy's type for a `DataType` of TensorRT."""
    kind = _word(member)
    if kind in _NUMPY:
        return np.dtype(_NUMPY[kind])
    if kind not in _ML_DTYPES:
        raise ModelError(
            f"{where}tensor {name!r} is {kind}, a type that numpy arrays do not have",
            hint="build a model whose inputs and outputs are of another type",
            tensor=name,
        )
    return extended_dtype(_ML_DTYPES[kind], f"{where}tensor {name!r}", name)


def refused_input(name: str, problem: str, hint: str = "") -> DataError:
    """Return the error of a feed that cannot be taken."""
    return DataError(f"feeds: input {name!r} {problem}", hint=hint, tensor=name)


def extended_dtype(kind: str, subject: str, name: str) -> np.dtype[Any]:
    """Return a type of the package ml_dtypes, such as "bfloat16"."""
    try:
        import ml_dtypes
    except ImportError as error:
        raise ModelError(
            f"{subject} is {kind}, which numpy has only from ml_dtypes",
            hint="pip install ml_dtypes",
            tensor=name,
        ) from error
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, kind))
    return dtype


class WideIntegers:
    """The inputs and outputs that the model has wider than its engine.

    `io` is the engine's, with the 64-bit integers of the model, which the engine's manifest tells.
    """

    def __init__(self, engine: ModelIO, model: ModelIO | None) -> None:
        declared = {tensor.name: tensor.dtype for tensor in (*model.inputs, *model.outputs)} if model else {}
        self._wide = {
            tensor.name
            for tensor in (*engine.inputs, *engine.outputs)
            if (tensor.dtype, declared.get(tensor.name)) == ("int32", "int64")
        }
        self.io = ModelIO(tuple(map(self._widened, engine.inputs)), tuple(map(self._widened, engine.outputs)))

    def narrow(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._narrowed(name, value) for name, value in values.items()}

    def widen(self, outputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {
            name: value.astype(np.int64) if name in self._wide else value for name, value in outputs.items()
        }

    def _widened(self, tensor: TensorInfo) -> TensorInfo:
        return replace(tensor, dtype="int64") if tensor.name in self._wide else tensor

    def _narrowed(self, name: str, value: Any) -> Any:
        if name not in self._wide:
            return value
        if not isinstance(value, np.ndarray):
            raise refused_input(
                name,
                "is int64 on the device, and int32 in this engine",
                "give a numpy array, or convert it to int32 and build from a model that declares it",
            )
        if value.size and (value.min() < _INT32.min or value.max() > _INT32.max):
            problem = f"holds {value.min()} to {value.max()}; the engine has 32 bits"
            raise refused_input(name, problem, "TensorRT 10 has 64-bit integers")
        return value.astype(np.int32)


def _word(member: Any) -> str:
    return str(member).rsplit(".", 1)[-1]
