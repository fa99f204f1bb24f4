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
from ..tensors import ModelIO
from .graph_edits import fix_initializers
from .onnx_checks import check_model
from .onnx_file import digest_model, model_io, reading_onnx

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
    """What a file holds but for its weights; initializers are not among the inputs.

    Large weights that are stored in the file refer to it as their external data: location, offset and length.
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
    import onnx

    checked_input(path, what="model")
    model = onnx.ModelProto()
    if path.stat().st_size:  # an empty file cannot be mapped
        with (
            reading_onnx(path),
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            _read_into(model, content, path.resolve().name)
    check_model(model, path)
    fix_initializers(model)
    return WeightlessModel(path, model)


def fingerprint(path: Path) -> str:
    """Return the digest of an ONNX file with its external data, wherever that lies."""
    return read_weightless(path).fingerprint()


def _read_into(model: onnx.ModelProto, content: Buffer, name: str) -> None:
    """Fill a model; the raw data of large initializers are replaced by where they lie."""
    for field, kind, start, value, end in _fields(content, 0, len(content)):
        if (field, kind) != (_GRAPH, _BYTES):
            model.MergeFromString(content[start:end])
            continue
        model.graph.SetInParent()
        for inner, inner_kind, inner_start, inner_value, inner_end in _fields(content, value, end):
            is_large = inner_end - inner_value > KEPT_BYTES
            if (inner, inner_kind) == (_INITIALIZER, _BYTES) and is_large:
                _refer(model.graph.initializer.add(), content, inner_value, inner_end, name)
            else:
                model.graph.MergeFromString(content[inner_start:inner_end])


def _refer(tensor: onnx.TensorProto, content: Buffer, start: int, end: int, name: str) -> None:
    """Fill a tensor, its large raw data external."""
    place: tuple[int, int] | None = None
    for field, kind, field_start, value, field_end in _fields(content, start, end):
        if field == _RAW_DATA and kind == _BYTES and field_end - value > KEPT_BYTES:
            place = value, field_end - value
        else:
            tensor.MergeFromString(content[field_start:field_end])
    if place is not None:  # last: a file may say `data_location: DEFAULT`, and the last one counts
        tensor.data_location = tensor.EXTERNAL
        for key, text in (("location", name), ("offset", place[0]), ("length", place[1])):
            tensor.external_data.add(key=key, value=str(text))


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
