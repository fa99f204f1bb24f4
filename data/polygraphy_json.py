"""Read the JSON that Polygraphy saves inputs in: a list with a dict of arrays for each inference.

`polygraphy run --save-inputs FILE` and `polygraphy.json.save_json` write it. The arrays are `.npy` contents
in base64; they are read here without Polygraphy, and never unpickled.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, first_line
from .readers import LABELS, Batch

_KIND = "polygraphy_class"


def read_polygraphy(path: Path) -> Iterator[Batch]:
    """Yield the feeds of each inference.

    Raises:
        DataError: If the file is none of Polygraphy's inputs, or damaged.
    """
    for index, feeds in enumerate(load_polygraphy(path)):
        arrays = dict(feeds)
        labels = arrays.pop(LABELS, None)
        yield Batch(arrays, labels, f"{path.name}[{index}]")


def load_polygraphy(path: Path) -> list[dict[str, NDArray[Any]]]:
    """Return the dicts of a file.

    Raises:
        DataError: If the file is none of Polygraphy's inputs, or damaged.
    """
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({first_line(error)})", file=path) from error
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        raise DataError(
            f"{path}: is no file of Polygraphy's inputs; a list of dicts of arrays is required",
            hint="save it with polygraphy.json.save_json",
            file=path,
        )
    return [
        {name: _array(value, f"{path}[{index}] {name!r}") for name, value in one.items() if name != _KIND}
        for index, one in enumerate(content)
    ]


def _array(value: Any, where: str) -> NDArray[Any]:
    if isinstance(value, dict) and isinstance(value.get("values"), dict):  # a tensor in a wrapper of its own
        value = value["values"]
    text = value.get("array", value.get("tensor")) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise DataError(f"{where}: is no array; what polygraphy.json writes of one is required")
    try:
        content = io.BytesIO(base64.b64decode(text, validate=True))
        return _tensor(content) if "tensor" in value else np.asarray(np.load(content, allow_pickle=False))
    except Exception as error:  # binascii.Error, ValueError, EOFError, SyntaxError: damaged in many ways
        raise DataError(
            f"{where}: cannot be read as an array ({first_line(error)})",
            hint="pickled objects are not read",
        ) from error


def _tensor(content: io.BytesIO) -> NDArray[Any]:
    import torch

    return np.asarray(torch.load(content, weights_only=True).numpy())
