"""Convert 64-bit integers at the edge of an engine that has only 32: TensorRT 8 narrows a model's int64.

Feeds of the model's type are taken, and narrowed only where every value fits. What has 64 bits in the model
has them in the outputs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import DataError
from ....tensors import ModelIO, TensorInfo

_LIMITS = np.iinfo(np.int32)


class WideIntegers:
    """The inputs and outputs that the model has wider than its engine.

    Args:
        engine: Inputs and outputs of the engine.
        model: Those of the model, of the engine's manifest; None where that is not known.

    Attributes:
        io: The engine's, with the model's 64-bit integers.
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
        """Return checked feeds as the engine takes them.

        Raises:
            DataError: If a value does not fit 32 bits, or lies on the device, where it is not converted.
        """
        return {name: self._narrowed(name, value) for name, value in values.items()}

    def widen(self, outputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return outputs as the model has them."""
        return {
            name: value.astype(np.int64) if name in self._wide else value for name, value in outputs.items()
        }

    def _widened(self, tensor: TensorInfo) -> TensorInfo:
        return replace(tensor, dtype="int64") if tensor.name in self._wide else tensor

    def _narrowed(self, name: str, value: Any) -> Any:
        if name not in self._wide:
            return value
        if not isinstance(value, np.ndarray):
            raise DataError(
                f"feeds: input {name!r} is int64 on the device, and int32 in this engine",
                hint="give a numpy array, or convert it to int32 and build from a model that declares it",
                tensor=name,
            )
        if value.size and (value.min() < _LIMITS.min or value.max() > _LIMITS.max):
            raise DataError(
                f"feeds: input {name!r} holds {value.min()} to {value.max()}; the engine has 32 bits",
                hint="TensorRT 10 has 64-bit integers",
                tensor=name,
            )
        return value.astype(np.int32)
