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
_BESIDE = "keep the data file in the folder of the model; it may be no link that leads out of it"

Problem = tuple[str, str]
"""What is wrong, and the way out; empty where the common one serves."""


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


def check_tensor(tensor: onnx.TensorProto, folder: Path) -> Problem | None:
    """Return what is wrong with a tensor; None where nothing is.

    Args:
        tensor: The tensor.
        folder: Where external data must lie: that of the model's file, links resolved.
    """
    import onnx

    kind = tensor.data_type
    if not kind or kind not in onnx.TensorProto.DataType.values():
        return f"tensor {tensor.name!r} has the unknown element type {kind}", ""
    if len(tensor.dims) > _MOST_AXES:
        return f"tensor {tensor.name!r} has {len(tensor.dims)} axes; at most {_MOST_AXES} are supported", ""
    if tensor.dims and min(tensor.dims) < 0:
        return f"tensor {tensor.name!r} has an axis of extent {min(tensor.dims)}; 0 or more is required", ""
    if math.prod(max(dim, 1) for dim in tensor.dims) > MOST_VALUES:
        shape = "x".join(map(str, tensor.dims))
        return f"tensor {tensor.name!r} has shape {shape}; at most {MOST_VALUES} values are supported", ""
    if tensor.HasField("segment"):
        return f"tensor {tensor.name!r} is stored in segments, which no runtime reads", ""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _check_external(tensor, folder)
    return _check_values(tensor)


def _check_values(tensor: onnx.TensorProto) -> Problem | None:
    """Compare the number of values that are stored with the extents."""
    import onnx

    values = math.prod(tensor.dims)
    typed = {"string_data"} if tensor.data_type == onnx.TensorProto.STRING else set()
    if not typed:
        typed = {onnx.helper.tensor_dtype_to_field(tensor.data_type)}
    if tensor.HasField("raw_data"):
        if typed == {"string_data"}:
            return f"tensor {tensor.name!r} holds strings as raw bytes; a list of strings is required", ""
        unit, required = "bytes", stored_bytes(tensor)
        stored = required if _has_raw_bytes(tensor, required) else len(tensor.raw_data)
        typed = set()
    else:
        unit, required = "values", values if typed == {"string_data"} else _typed_values(tensor, values)
        stored = len(getattr(tensor, next(iter(typed))))
    others = [
        field.name
        for field, _ in tensor.ListFields()
        if field.name.endswith("_data") and field.name not in (*typed, "raw_data", "external_data")
    ]
    if others:
        return (
            f"tensor {tensor.name!r} has values in {others[0]}, which its element type is not stored in",
            "",
        )
    if stored != required:
        shape = "x".join(map(str, tensor.dims)) or "scalar"
        return f"tensor {tensor.name!r} of shape {shape} holds {stored} {unit}; {required} are required", ""
    return None


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


def _check_external(tensor: onnx.TensorProto, folder: Path) -> Problem | None:
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key in entries:
            return f"tensor {tensor.name!r} says twice where its data lie", ""
        entries[entry.key] = entry.value
    subject = f"external data {entries.get('location', '')!r} of tensor {tensor.name!r}"
    found = external_path(entries.get("location", ""), folder)
    if isinstance(found, str):
        return f"{subject}: {found}; a file in the folder of the model is required", _BESIDE
    numbers: dict[str, int] = {}
    for key in ("offset", "length"):
        text = entries.get(key, "0")
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            return f"{subject}: {key} {text[:40]!r}; a whole number of bytes, 0 or more, is required", ""
        numbers[key] = int(text)
    from onnx import TensorProto

    if tensor.data_type == TensorProto.STRING:
        return f"{subject}: strings cannot be stored outside of the file", ""
    required = stored_bytes(tensor)
    if entries.get("length", "") and numbers["length"] != required:
        return f"{subject}: its length is {numbers['length']} bytes; {required} are required by its shape", ""
    if not found.exists():
        return None  # who needs the values says so
    size = found.stat().st_size
    if numbers["offset"] + required > size:
        return (
            f"{subject}: {required} bytes at {numbers['offset']} of a file of {size} bytes",
            "copy the data file again: it is cut off, or of another model",
        )
    return None


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
    """Return the raw data of a tensor that lie outside of its file, after `check_tensor` found nothing.

    Raises:
        ModelError: If the place is none that may be read.
        OSError: If they cannot be read.
    """
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
