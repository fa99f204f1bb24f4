"""Read an ONNX file without the values of its weights, which most questions do not need.

The file is mapped into memory and walked as protobuf's wire format lays it out; the bytes of large weights
are stepped over, not read. A file of gigabytes costs no more than its graph.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..artifact import checked_input
from ..errors import ModelError
from ..tensors import ModelIO
from .graph_edits import fix_initializers
from .onnx_file import digest_model, model_io, parse_onnx

if TYPE_CHECKING:
    import onnx

KEPT_BYTES = 4096
"""Weights up to this size keep their values: shapes, axes and the like, which shape inference reads."""

# Field numbers of onnx.proto: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Buffer = bytes | mmap.mmap


@dataclass(frozen=True)
class WeightlessModel:
    """What a file holds but for its weights.

    Attributes:
        path: The file.
        model: Its graph, initializers not among the inputs. Large weights that are stored in the file
            refer to it as their external data: location, offset and length.
    """

    path: Path
    model: onnx.ModelProto

    @property
    def io(self) -> ModelIO:
        """Inputs and outputs."""
        return model_io(self.model)

    def fingerprint(self) -> str:
        """Return the digest of the file with its external data."""
        return digest_model(self.path, self.model)


def read_weightless(path: Path) -> WeightlessModel:
    """Read a file."""
    checked_input(path, what="model")
    if not path.stat().st_size:  # an empty file cannot be mapped
        return WeightlessModel(path, parse_onnx(b"", path))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            light = _without_weights(content, path.resolve().name)
        except (IndexError, ValueError) as error:
            raise ModelError(
                f"{path}: not an ONNX model, or cut off ({error})",
                hint="copy or export the file again",
                file=path,
            ) from error
    model = parse_onnx(light, path)
    fix_initializers(model)
    return WeightlessModel(path, model)


def fingerprint(path: Path) -> str:
    """Return the digest of an ONNX file with its external data, wherever that lies."""
    return read_weightless(path).fingerprint()


def _without_weights(content: Buffer, name: str) -> bytes:
    """The serialized model with the raw data of large initializers replaced by where it lies."""
    parts: list[bytes] = []
    for field, kind, start, value, end in _fields(content, 0, len(content)):
        if (field, kind) != (_GRAPH, _BYTES):
            parts.append(content[start:end])
            continue
        graph = b"".join(
            _message(_INITIALIZER, _reference(content, inner_value, inner_end, name))
            if (inner, inner_kind) == (_INITIALIZER, _BYTES) and inner_end - inner_value > KEPT_BYTES
            else content[inner_start:inner_end]
            for inner, inner_kind, inner_start, inner_value, inner_end in _fields(content, value, end)
        )
        parts.append(_message(_GRAPH, graph))
    return b"".join(parts)


def _reference(content: Buffer, start: int, end: int, name: str) -> bytes:
    """A serialized TensorProto whose raw data is external; as it is where it has none."""
    from onnx import TensorProto

    parts: list[bytes] = []
    place = b""
    for field, kind, field_start, value, field_end in _fields(content, start, end):
        if field == _RAW_DATA and kind == _BYTES and field_end - value > KEPT_BYTES:
            added = TensorProto(data_location=TensorProto.EXTERNAL)
            for key, text in (("location", name), ("offset", value), ("length", field_end - value)):
                added.external_data.add(key=key, value=str(text))
            place = added.SerializeToString()
        else:
            parts.append(content[field_start:field_end])
    return b"".join([*parts, place])  # last: a file may say `data_location: DEFAULT`, and the last one counts


def _fields(content: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (number, wire type, where the field starts, where its value starts, where it ends)."""
    position = start
    while position < end:
        key, value = _varint(content, position)
        kind = key & 7
        if kind == _VARINT:
            _, after = _varint(content, value)
        elif kind == _BYTES:
            length, value = _varint(content, value)
            after = value + length
        elif kind in (_FIXED32, _FIXED64):
            after = value + (4 if kind == _FIXED32 else 8)
        else:
            raise ValueError(f"wire type {kind} at byte {position}")
        if after > end:
            raise ValueError(f"a field ends at byte {after}, beyond {end}")
        yield key >> 3, kind, position, value, after
        position = after


def _varint(content: Buffer, position: int) -> tuple[int, int]:
    """The number at a position, and where the next byte lies."""
    number = shift = 0
    while True:
        byte = content[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
        if shift > 63:
            raise ValueError(f"no number at byte {position}")


def _message(field: int, content: bytes) -> bytes:
    """A field that holds a message."""
    return _number(field << 3 | _BYTES) + _number(len(content)) + content


def _number(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
