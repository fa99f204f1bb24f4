"""Exchange arrays with worker processes in `.npz` files, for tensors of any name.

`numpy.savez` takes names as keywords and reserves two (`file`, `allow_pickle`); `numpy.load` reads `x.npy` as
`x`. Names are therefore put between colons. Files without colons can be read, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MARK = ":"


def save_arrays(path: str | Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays of any names; a `/` or `..` in a name is never part of a path."""
    marked: dict[str, Any] = {f"{_MARK}{name}{_MARK}": array for name, array in storable(arrays).items()}
    np.savez(path, **marked)


def storable(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return arrays that `savez` writes without pickling.

    Texts, which ONNX Runtime returns as objects, become NumPy strings. Only NumPy 2.1 and later can forbid
    pickling (`allow_pickle=False`).

    Raises:
        ValueError: If an array holds other objects.
    """
    stored: dict[str, Any] = {}
    for name, array in arrays.items():
        texts = array.dtype.kind == "O" and all(isinstance(text, str) for text in array.flat)
        stored[name] = array.astype(str) if texts else array
        if stored[name].dtype.hasobject:
            raise ValueError(f"{name!r} holds objects, which numpy would pickle")
    return stored


def load_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as stored:
        return {_tensor_name(key): stored[key] for key in stored.files}


def load_array(path: str | Path, name: str) -> NDArray[Any]:
    """Return one array without reading the others."""
    with np.load(path, allow_pickle=False) as stored:
        key = next((key for key in stored.files if _tensor_name(key) == name), name)
        array: NDArray[Any] = stored[key]
        return array


def _tensor_name(key: str) -> str:
    marked = len(key) > 1 and key.startswith(_MARK) and key.endswith(_MARK)
    return key[1:-1] if marked else key
