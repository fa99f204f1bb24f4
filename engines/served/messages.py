"""Inference requests and answers of the protocol over HTTP, as JSON and with binary tensors.

The JSON form is "Inference" of the Open Inference Protocol; the binary one Triton's "Binary tensor data
extension" (server, docs/protocol/extension_binary_data.md): the JSON without `data`, then the bytes of the
tensors in its order, and the header `Inference-Header-Content-Length` with the length of the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, ModelError
from ...tensors import Feeds, format_shape
from .datatypes import FROM_NUMPY, NOT_IN_JSON, TO_NUMPY, dtype_of, from_bytes, to_bytes

JSON_LENGTH = "Inference-Header-Content-Length"
_MOST_AXES = 32


def datatype_of(array: NDArray[Any]) -> str:
    """Return the protocol's name of an array's type.

    Raises:
        DataError: If it has none.
    """
    name = "string" if array.dtype.kind in "OUS" else str(array.dtype)
    if name not in FROM_NUMPY:
        raise DataError(f"{name} values: the protocol has no such type; {', '.join(FROM_NUMPY)} are")
    return FROM_NUMPY[name]


def encode_request(feeds: Feeds, outputs: Sequence[str], *, binary: bool) -> tuple[bytes, dict[str, str]]:
    """Return the body of an inference request, and its headers.

    Args:
        feeds: Input name to array.
        outputs: Names of those that are asked for; all, if there are none.
        binary: Whether tensors travel as bytes, both ways.

    Raises:
        DataError: If a tensor has no JSON form: a type of 16 bits, an infinity or NaN.
    """
    inputs, parts = [], []
    for name, array in feeds.items():
        datatype = datatype_of(array)
        entry: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": datatype}
        if binary:
            raw = to_bytes(array)
            parts.append(raw)
            entry["parameters"] = {"binary_data_size": len(raw)}
        else:
            entry["data"] = _values(name, datatype, array)
        inputs.append(entry)
    request: dict[str, Any] = {"inputs": inputs}
    if outputs:
        request["outputs"] = [
            {"name": name, "parameters": {"binary_data": True}} if binary else {"name": name}
            for name in outputs
        ]
    elif binary:
        request["parameters"] = {"binary_data_output": True}
    header = json.dumps(request, separators=(",", ":")).encode()
    if not binary:
        return header, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", JSON_LENGTH: str(len(header))}
    return b"".join((header, *parts)), headers


def _values(name: str, datatype: str, array: NDArray[Any]) -> list[Any]:
    if datatype in NOT_IN_JSON:
        raise DataError(
            f"input {name!r}: {datatype} has no JSON form; a server with binary tensors is required",
            hint="use grpc://, or a server with the extension binary_tensor_data",
            tensor=name,
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError(
            f"input {name!r}: holds NaN or infinity, which JSON cannot carry", hint="use grpc://", tensor=name
        )
    flat = array.ravel().tolist()
    return [one.decode(errors="replace") if isinstance(one, bytes) else one for one in flat]


def decode_answer(body: bytes, json_length: int | None, subject: str) -> dict[str, NDArray[Any]]:
    """Return the outputs of an answer, name to array.

    Args:
        body: All of it.
        json_length: Of its JSON, where tensors follow; None where it is JSON alone.
        subject: Who answered, to begin messages with.

    Raises:
        ModelError: If it is no answer of the protocol.
    """
    split = len(body) if json_length is None else json_length
    if not 0 <= split <= len(body):
        raise ModelError(f"{subject}: its answer has {len(body)} bytes, of which {split} are to be JSON")
    listed = read_object(body[:split], subject).get("outputs")
    if not isinstance(listed, list):
        raise ModelError(f"{subject}: its answer lists no outputs")
    rest, outputs = memoryview(body)[split:], {}
    for entry in listed:
        name, datatype, shape = _described(entry, subject)
        about = f"{subject}: output {name!r}"
        parameters = entry.get("parameters")
        size = parameters.get("binary_data_size") if isinstance(parameters, Mapping) else None
        if size is None:
            outputs[name] = _from_values(entry.get("data"), datatype, shape, about)
            continue
        if not isinstance(size, int) or not 0 <= size <= len(rest):
            raise ModelError(f"{about}: {size!r} bytes are said to follow; {len(rest)} do")
        outputs[name] = from_bytes(rest[:size], datatype, shape, about)
        rest = rest[size:]
    return outputs


def read_object(text: bytes, subject: str) -> dict[str, Any]:
    """Return a JSON object that a server sent.

    Raises:
        ModelError: If it is none.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{subject}: its answer is no JSON of the protocol: {text[:60]!r}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{subject}: its answer is no JSON object: {text[:60]!r}")
    return value


def _described(entry: Any, subject: str) -> tuple[str, str, tuple[int, ...]]:
    if isinstance(entry, Mapping):
        name, datatype, shape = entry.get("name"), entry.get("datatype"), entry.get("shape")
        is_shape = isinstance(shape, list) and len(shape) <= _MOST_AXES and all(
            isinstance(extent, int) and extent >= 0 for extent in shape
        )  # fmt: skip
        if isinstance(name, str) and isinstance(datatype, str) and is_shape and datatype in TO_NUMPY:
            return name, datatype, tuple(int(extent) for extent in shape or ())
    raise ModelError(
        f"{subject}: an output has no name, datatype and shape of the protocol: {str(entry)[:80]}"
    )


def _from_values(data: Any, datatype: str, shape: tuple[int, ...], subject: str) -> NDArray[Any]:
    if not isinstance(data, list):
        raise ModelError(f"{subject}: has no data")
    try:
        dtype = np.dtype(object) if datatype == "BYTES" else dtype_of(datatype)
        return np.asarray(data, dtype).reshape(shape)
    except (ValueError, TypeError, OverflowError) as error:
        raise ModelError(f"{subject}: its data is no {datatype} tensor {format_shape(shape)}") from error
