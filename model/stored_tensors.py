"""Stored tensors: whether what they say of themselves is so, and where their data lie.

A file can claim any extent for a tensor, and any place for its data. Claims are compared with what is there,
in front of whatever would allocate or open it. External data lie in a regular file inside the model's folder,
and no link leads out of it: a stranger's model must not make us read `/etc/passwd` or `/proc/self/mem`.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from ..errors import ModelError

if TYPE_CHECKING:
    import onnx

MOST_VALUES = 1 << 40
"""Of one stored tensor; also of what extents of 0 stand beside, which numpy refuses beyond 2**63."""
_MOST_AXES = 64  # numpy's own limit
_NARROW_BITS = {
    "INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6,
}  # fmt: skip
"""Element types whose values share bytes."""
_VALUES = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_BESIDE = "keep the data file in the folder of the model; it may be no link that leads out of it"


class Refused(Exception):
    """What is wrong with a model, and the way out, empty where the common one serves."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def every_tensor(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield all tensors that are stored: of graphs inside nodes and of functions, too."""
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)


def _of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Any) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for sparse in attribute.sparse_tensors:
                yield from (sparse.values, sparse.indices)
            if attribute.HasField("sparse_tensor"):
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
            if attribute.HasField("g"):
                yield from _of_graph(attribute.g)
            for graph in attribute.graphs:
                yield from _of_graph(graph)


def check_tensor(tensor: onnx.TensorProto, folder: Path) -> None:
    """Compare what a tensor says of itself with what is there.

    Args:
        tensor: The tensor.
        folder: Where external data must lie: that of the model's file, links resolved.
    """
    import onnx

    kind, subject = tensor.data_type, f"tensor {tensor.name!r}"
    if not kind or kind not in onnx.TensorProto.DataType.values():
        raise Refused(f"{subject} has the unknown element type {kind}")
    if len(tensor.dims) > _MOST_AXES:
        raise Refused(f"{subject} has {len(tensor.dims)} axes; at most {_MOST_AXES} are supported")
    if tensor.dims and min(tensor.dims) < 0:
        raise Refused(f"{subject} has an axis of extent {min(tensor.dims)}; 0 or more is required")
    if math.prod(max(dim, 1) for dim in tensor.dims) > MOST_VALUES:
        shape = "x".join(map(str, tensor.dims))
        raise Refused(f"{subject} has shape {shape}; at most {MOST_VALUES} values are supported")
    if tensor.HasField("segment"):
        raise Refused(f"{subject} is stored in segments, which no runtime reads")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        _check_external(tensor, folder)
    else:
        _check_values(tensor)


def _check_values(tensor: onnx.TensorProto) -> None:
    """Compare the number of values that are stored with the extents."""
    import onnx

    required, strings = math.prod(tensor.dims), tensor.data_type == onnx.TensorProto.STRING
    typed = "string_data" if strings else onnx.helper.tensor_dtype_to_field(tensor.data_type)
    raw = tensor.HasField("raw_data")
    present = {field for field in _VALUES if len(getattr(tensor, field))} - {typed}
    if present or (raw and strings):
        field = min(present, default="raw_data")
        raise Refused(f"tensor {tensor.name!r} has values in {field}, which is not of its type")
    if raw:
        required = stored_bytes(tensor)
        stored = required if _has_raw_bytes(tensor, required) else len(tensor.raw_data)
    else:
        stored = len(getattr(tensor, typed))
        required = required if strings else _typed_values(tensor, required)
    if stored != required:
        shape = "x".join(map(str, tensor.dims)) or "scalar"
        found = f"{stored} {'bytes' if raw else 'values'}"
        raise Refused(f"tensor {tensor.name!r} of shape {shape} holds {found}; {required} are required")


def stored_bytes(tensor: onnx.TensorProto) -> int:
    """Return what the values of a tensor take as raw bytes; those of less than 8 bits are packed."""
    bits: int = math.prod(tensor.dims) * _bits(tensor.data_type)
    return -(-bits // 8)


def _bits(kind: int) -> int:
    import onnx

    name = onnx.TensorProto.DataType.Name(kind)
    return _NARROW_BITS.get(name) or 8 * int(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)


def _typed_values(tensor: onnx.TensorProto, values: int) -> int:
    """How many numbers a field of typed values has: complex values take two, narrow ones share bytes."""
    import onnx

    if tensor.data_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128):
        return 2 * values
    bits = _bits(tensor.data_type)
    return math.ceil(values * bits / 8) if bits < 8 else values


def _has_raw_bytes(tensor: onnx.TensorProto, required: int) -> bool:
    """Whether the raw data are of a size; large ones are not copied, as Python's protobuf would do."""
    if required < 1 << 16:
        return len(tensor.raw_data) == required
    import onnx

    rest = onnx.TensorProto(data_type=tensor.data_type)
    rest.dims.extend(tensor.dims)
    for name in ("name", "doc_string", "data_location"):
        if tensor.HasField(name):
            setattr(rest, name, getattr(tensor, name))
    rest.external_data.extend(tensor.external_data)
    rest.metadata_props.extend(tensor.metadata_props)
    length_bytes = math.ceil(required.bit_length() / 7)
    exact = bool(tensor.ByteSize() == rest.ByteSize() + 1 + length_bytes + required)
    return exact or len(tensor.raw_data) == required  # where it has fields that are not known here


def _check_external(tensor: onnx.TensorProto, folder: Path) -> None:
    from onnx import TensorProto

    entries = {entry.key: entry.value for entry in tensor.external_data}
    if len(entries) < len(tensor.external_data):
        raise Refused(f"tensor {tensor.name!r} says twice where its data lie")
    subject = f"external data {entries.get('location', '')!r} of tensor {tensor.name!r}"
    target = external_path(entries.get("location", ""), folder)
    if isinstance(target, str):
        raise Refused(f"{subject}: {target}; a file in the folder of the model is required", _BESIDE)
    for key in ("offset", "length"):
        text = entries.setdefault(key, "0")
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise Refused(f"{subject}: {key} {text[:40]!r}; a whole number of bytes, 0 or more, is required")
    if tensor.data_type == TensorProto.STRING:
        raise Refused(f"{subject}: strings cannot be stored outside of the file")
    required = stored_bytes(tensor)
    if int(entries["length"]) not in (0, required):
        raise Refused(f"{subject}: its length is {entries['length']} bytes; {required} are required")
    if target.exists() and int(entries["offset"]) + required > (size := target.stat().st_size):
        raise Refused(
            f"{subject}: {required} bytes at {entries['offset']} of a file of {size} bytes",
            "copy the data file again: it is cut off, or of another model",
        )  # one that is not there is missed by who needs the values


def external_path(location: str, folder: Path) -> Path | str:
    """Return the file that a location names; a text where that is none that may be read.

    Args:
        location: As the model says it: a path relative to its own folder.
        folder: That folder, links resolved.
    """
    if not location or "\0" in location:
        return "names no file"
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    if posix.is_absolute() or windows.is_absolute() or windows.drive or windows.root:
        return "is an absolute path"
    if ".." in posix.parts or ".." in windows.parts:
        return "leads out of the model's folder"
    try:
        target = (folder / location).resolve()
        if folder not in target.parents:
            return f"is a link to {target}, outside of the model's folder"
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            return "is no regular file"
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a name that is too long
        return f"cannot be looked up ({error})"
    return target


def read_external(tensor: onnx.TensorProto, folder: Path) -> bytes:
    """Return the raw data of a tensor that lie outside of its file, after `check_tensor` found nothing."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    target = external_path(entries.get("location", ""), folder)
    if isinstance(target, str):
        raise ModelError(f"external data of tensor {tensor.name!r}: {target}", hint=_BESIDE)
    required = stored_bytes(tensor)
    with target.open("rb") as file:
        file.seek(int(entries.get("offset", "0")))
        content = file.read(required)
    if len(content) != required:
        raise OSError(f"{target}: {len(content)} bytes of tensor {tensor.name!r}; {required} are required")
    return content
