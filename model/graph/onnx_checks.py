"""Reject ONNX models that are damaged or that qcompile does not support, before other code reads them.

ONNX's checker runs on a copy without weights. This module adds checks that it lacks and that Python readers
depend on: texts are UTF-8, versions are supported, inputs are tensors, stored tensors are complete. Declared
extents and offsets are compared with the data before any code allocates memory or opens a file. External data
must be in a regular file inside the model's folder, and no link may lead out of it: a stranger's model must
not make us read `/etc/passwd`. A watched child process (`core/processes/`) handles files that crash a parser.
"""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from ...errors import ModelError
from .. import onnx

MOST_INPUT_VALUES = 1 << 28
"""Limit of the values of one input of fixed shape: 1 GiB of float32. Random input takes three times that."""
_UNKNOWN_OPERATOR = "No Op registered for"
"""Message of ONNX's checker for TensorRT's plugins, which use ONNX's domain."""
_LONGEST = 300
_GROUP_NORM_REDEFINED = 21
"""The opset that redefined GroupNormalization."""
_NARROW_BITS = {
    "INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6,
}  # fmt: skip
"""Bits of the element types that share bytes."""
_TYPED = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_BESIDE = "keep the data file in the folder of the model; a link must not lead out of it"


class ModelProblem(Exception):
    """A problem of a model, and a hint; `check_model` gives its general hint in place of an empty one."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside a node's attributes (If, Loop, Scan)."""
    for item in node.attribute:
        if item.HasField("g"):
            yield item.g
        yield from item.graphs


def every_graph(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all graphs inside its nodes."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from every_graph(inner)


def graphs_of(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs of a model, including subgraphs of nodes and of functions."""
    yield from every_graph(model.graph)
    for function in model.functions:
        for node in function.node:
            for graph in subgraphs(node):
                yield from every_graph(graph)


def every_node(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a model, including those of subgraphs and functions."""
    for holder in (*graphs_of(model), *model.functions):
        yield from holder.node


def every_tensor(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield all stored tensors, including those of subgraphs and functions."""
    sparse: list[onnx.SparseTensorProto] = []
    for graph in graphs_of(model):
        yield from graph.initializer
        sparse += graph.sparse_initializer
    for node in every_node(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            sparse += attribute.sparse_tensors
            if attribute.HasField("sparse_tensor"):
                sparse.append(attribute.sparse_tensor)
    for tensor in sparse:
        yield from (tensor.values, tensor.indices)


def check_tensor(tensor: onnx.TensorProto, folder: Path) -> None:
    """Check a tensor's declarations against its data; `folder` is the model's, with links resolved."""
    kind, subject = tensor.data_type, f"tensor {tensor.name!r}"
    if not kind or kind not in onnx.TensorProto.DataType.values():
        raise ModelProblem(f"{subject} has the unknown element type {kind}")
    shape = "x".join(map(str, tensor.dims)) or "scalar"
    try:
        np.broadcast_to(np.zeros((), np.float64), tuple(tensor.dims))
    except ValueError as error:  # negative extents, or too many axes or values for an array
        raise ModelProblem(f"{subject} has shape {shape}: {error}") from None
    if tensor.HasField("segment"):
        raise ModelProblem(f"{subject} is stored in segments, which no runtime reads")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        _locate_external(tensor, folder)
    elif kind == onnx.TensorProto.STRING:
        if len(tensor.string_data) != math.prod(tensor.dims):
            raise ModelProblem(f"{subject} of shape {shape} holds {len(tensor.string_data)} strings")
    elif not tensor.HasField("raw_data"):
        try:
            onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError, OverflowError) as error:
            raise ModelProblem(f"{subject} of shape {shape}: {error}") from None
    elif any(len(getattr(tensor, field)) for field in _TYPED):
        raise ModelProblem(f"{subject} has raw data and typed values")
    elif (stored := len(tensor.raw_data)) != (required := stored_bytes(tensor)):
        raise ModelProblem(f"{subject} of shape {shape} holds {stored} bytes; {required} are required")


def stored_bytes(tensor: onnx.TensorProto) -> int:
    """Return the size of a tensor's values as raw bytes; types of less than 8 bits are packed."""
    name = onnx.TensorProto.DataType.Name(tensor.data_type)
    width = _NARROW_BITS.get(name) or 8 * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    bits: int = math.prod(tensor.dims) * width
    return -(-bits // 8)


def _locate_external(tensor: onnx.TensorProto, folder: Path) -> tuple[Path, int, int]:
    """Return the file of a tensor's external data, and their offset and size in bytes."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if len(entries) < len(tensor.external_data):
        raise ModelProblem(f"tensor {tensor.name!r} repeats a key of its external data")
    subject = f"external data {entries.get('location', '')!r} of tensor {tensor.name!r}"
    target = external_path(entries.get("location", ""), folder)
    if isinstance(target, str):
        raise ModelProblem(f"{subject}: {target}; a file in the folder of the model is required", _BESIDE)
    for key in ("offset", "length"):
        text = entries.setdefault(key, "0")
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise ModelProblem(
                f"{subject}: {key} {text[:40]!r}; a whole number of bytes, 0 or more, is required"
            )
    if tensor.data_type == onnx.TensorProto.STRING:
        raise ModelProblem(f"{subject}: strings cannot be stored outside of the file")
    required = stored_bytes(tensor)
    if int(entries["length"]) not in (0, required):
        raise ModelProblem(f"{subject}: its length is {entries['length']} bytes; {required} are required")
    offset = int(entries["offset"])
    if target.exists() and offset + required > (size := target.stat().st_size):
        raise ModelProblem(
            f"{subject}: {required} bytes at {offset} of a file of {size} bytes",
            "copy the data file again: it is cut off, or of another model",
        )  # a missing file is reported by the code that reads the values
    return target, offset, required


def external_path(location: str, folder: Path) -> Path | str:
    """Return the file at a location in a folder without links, or a text on why it may not be read."""
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
            return "is not a regular file"
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a name that is too long
        return f"cannot be looked up ({error})"
    return target


def hide_group_normalizations(model: onnx.ModelProto) -> None:
    """Replace each GroupNormalization by an Identity, for ONNX's tools (1.23): in opsets 18 to 20, which ONNX
    Runtime supports, the checker rejects it as deprecated, and shape inference finds no shapes behind it."""
    for node in every_node(model):
        if node.op_type == "GroupNormalization" and node.domain in ("", "ai.onnx"):
            node.op_type = "Identity"  # of the same type and shape
            del node.input[1:], node.attribute[:]


def external_files(path: Path, model: onnx.ModelProto) -> list[Path]:
    """Return the files beside an ONNX file with its external data."""
    external = (t for t in every_tensor(model) if t.data_location == onnx.TensorProto.EXTERNAL)
    files = {path.resolve().parent / location(tensor) for tensor in external}
    return sorted(files - {path.resolve()})  # a weightless model refers to the file itself


def location(tensor: onnx.TensorProto) -> str:
    """Return the location of a tensor's external data as stored; "" if its data are in the model."""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def read_external(tensor: onnx.TensorProto, folder: Path) -> bytes:
    """Return the raw data of a tensor from its external file, as they are now."""
    target, offset, required = _locate_external(tensor, folder)
    with target.open("rb") as file:
        file.seek(offset)
        content = file.read(required)
    if len(content) != required:
        raise OSError(f"{target}: {len(content)} bytes of tensor {tensor.name!r}; {required} are required")
    return content


def check_model(model: onnx.ModelProto, path: Path) -> None:
    """Check a model that was read from `path`; its weights may be in other files, or missing."""
    if not model.graph.node and not model.graph.output:
        message = f"{path}: holds no graph ({path.stat().st_size} bytes)"
        raise ModelError(message, hint="copy or export the file again", file=path)
    try:
        for text in _texts(model):
            if isinstance(text, bytes):  # code that expects str would fail on it
                raise ModelProblem(f"contains text that is not UTF-8: {text[:40]!r}")
        _check_versions(model)
        stored = {tensor.name for tensor in model.graph.initializer}
        for value in model.graph.input:
            if value.name not in stored:  # old files list their weights as inputs
                _check_value(value, "input", lowest=1)
        for value in model.graph.output:
            _check_value(value, "output", lowest=0)
        folder = path.resolve().parent
        for tensor in every_tensor(model):
            check_tensor(tensor, folder)
        _check_graph(model)
    except ModelProblem as problem:
        hint = problem.hint or "the file is damaged or its exporter is wrong; export it again"
        raise ModelError(f"{path}: {problem}", hint=hint, file=path) from None


def checker_message(error: BaseException) -> str:
    """Return the message of ONNX's checker in one line, with the operator and the name of the node."""
    text, _, context = " ".join(str(error).split()).partition("==> Context")
    node = re.search(r"Name: (\S*) ?OpType: (\S+)", context)
    text = text.strip()[:_LONGEST]
    return f"{text} ({node[2]} {node[1]!r})" if node else text


def _check_graph(model: onnx.ModelProto) -> None:
    """Run ONNX's checker on the model with its initializers as inputs."""
    inputs, outputs = ([value.name for value in side] for side in (model.graph.input, model.graph.output))
    names = [tensor.name for tensor in model.graph.initializer]
    names += [tensor.values.name for tensor in model.graph.sparse_initializer]
    if len(set(outputs)) < len(outputs):
        raise ModelProblem(f"output {max(outputs, key=outputs.count)!r} is declared twice")
    light = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    light.graph.name = "graph"
    light.graph.node.extend(model.graph.node)
    versions = (item.version for item in model.opset_import if item.domain in ("", "ai.onnx"))
    if any(version < _GROUP_NORM_REDEFINED for version in versions):
        hide_group_normalizations(light)
    stored = [name for name in names if name not in inputs]
    for values, listed in ((light.graph.input, inputs + stored), (light.graph.output, outputs)):
        values.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []) for name in listed)
    try:
        onnx.checker.check_model(light)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        if _UNKNOWN_OPERATOR not in str(error):
            raise ModelProblem(f"ONNX's checker refuses it: {checker_message(error)}") from error


def _check_versions(model: onnx.ModelProto) -> None:
    if not 3 <= model.ir_version <= onnx.IR_VERSION:
        raise ModelProblem(
            f"ir_version {model.ir_version}; onnx {onnx.__version__} reads 3 to {onnx.IR_VERSION}",
            "export it again" if model.ir_version < 3 else "install a newer onnx",
        )
    newest = onnx.defs.onnx_opset_version()
    versions: dict[str, int] = {}
    for item in model.opset_import:
        domain = "" if item.domain == "ai.onnx" else item.domain
        if versions.setdefault(domain, item.version) != item.version:
            raise ModelProblem(f"imports opsets {versions[domain]} and {item.version} of domain {domain!r}")
        if item.version < 1 or (not domain and item.version > newest):
            raise ModelProblem(
                f"opset {item.version} of domain {domain!r}; onnx {onnx.__version__} reads 1 to {newest}",
                "export it for an older opset" if item.version > newest else "",
            )


def _check_value(value: onnx.ValueInfoProto, kind: str, *, lowest: int) -> None:
    which = value.type.WhichOneof("value")
    if which not in (None, "tensor_type"):
        raise ModelProblem(
            f"{kind} {value.name!r} is a {which.removesuffix('_type')}; only tensors are supported",
            f"export the model with tensors as its {kind}s (skl2onnx: options={{'zipmap': False}})",
        )
    tensor = value.type.tensor_type
    if tensor.elem_type not in onnx.TensorProto.DataType.values() or (lowest and not tensor.elem_type):
        problem = "has no type" if not which else f"has the unknown element type {tensor.elem_type}"
        raise ModelProblem(f"{kind} {value.name!r} {problem}; a tensor with an element type is required")
    fixed = [dim.dim_value for dim in tensor.shape.dim if dim.HasField("dim_value")]
    if fixed and min(fixed) < lowest:
        raise ModelProblem(
            f"{kind} {value.name!r} has an axis of extent {min(fixed)}; {lowest} or more is required",
            "declare a dynamic axis by a name (dim_param)",
        )
    if math.prod(fixed) > MOST_INPUT_VALUES and lowest:
        raise ModelProblem(
            f"{kind} {value.name!r} has {math.prod(fixed)} values; at most {MOST_INPUT_VALUES} are supported"
        )


def _texts(message: Any) -> Iterator[Any]:
    """Yield every text field of a message; protobuf's Python returns bytes for text that is not UTF-8."""
    for field, value in message.ListFields():
        if field.type in (field.TYPE_STRING, field.TYPE_MESSAGE):
            for item in [value] if isinstance(value, str | bytes) or hasattr(value, "ListFields") else value:
                yield from [item] if field.type == field.TYPE_STRING else _texts(item)
