"""The protocol's element types and numpy's: "Tensor Data Types" of the Open Inference Protocol."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError

TO_NUMPY = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "string",
}
FROM_NUMPY = {name: datatype for datatype, name in TO_NUMPY.items()}
NOT_IN_JSON = ("FP16", "BF16")
"""Types that the protocol has in binary alone."""


def dtype_of(datatype: str) -> np.dtype[Any]:
    """Return numpy's type of a datatype's bytes on the wire, which are little-endian.

    Raises:
        ModelError: If the protocol has no such type, or its values have no fixed size.
    """
    name = TO_NUMPY.get(datatype)
    if name is None or name == "string":
        raise ModelError(f"datatype {datatype!r}: is none of the protocol's; {', '.join(TO_NUMPY)} are")
    if name == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    dtype: np.dtype[Any] = np.dtype(name).newbyteorder("<")
    return dtype


def to_bytes(array: NDArray[Any]) -> bytes:
    """Return a tensor as the protocol's raw bytes: row-major; a text is its length in 4 bytes and UTF-8."""
    if array.dtype.kind not in "OUS":
        return np.ascontiguousarray(array).tobytes()
    texts = (one if isinstance(one, bytes) else str(one).encode() for one in array.ravel().tolist())
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def from_bytes(raw: memoryview, datatype: str, shape: tuple[int, ...], subject: str) -> NDArray[Any]:
    """Return the tensor of raw bytes.

    Raises:
        ModelError: If there are more or fewer of them than the shape needs.
    """
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if datatype == "BYTES":
        return np.array(_texts(raw, count, subject), object).reshape(shape)
    dtype = dtype_of(datatype)
    if len(raw) != count * dtype.itemsize:
        raise ModelError(f"{subject}: has {len(raw)} bytes; {count * dtype.itemsize} are required")
    return np.frombuffer(raw, dtype).reshape(shape)


def _texts(raw: memoryview, count: int, subject: str) -> list[str]:
    texts: list[str] = []
    at = 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        if end > len(raw) or len(texts) == count:
            break
        texts.append(bytes(raw[at + 4 : end]).decode(errors="replace"))
        at = end
    if at != len(raw) or len(texts) != count:
        raise ModelError(f"{subject}: does not hold {count} texts")
    return texts
