"""An ONNX model in memory: parsed once, passed from stage to stage, written once.

Large weights remain in the file. It is mapped, and parsed as protobuf's wire format without the bytes of
weights: a file of gigabytes takes no more memory than its graph until a stage reads weights. Models over 2
GB, protobuf's limit, have weights in `NAME.onnx.data` beside the file. The model is a protobuf message,
because ONNX Runtime, onnxsim, ONNX's converter and its shape inference require one; CONTRIBUTING.md explains
the cost of onnx-ir.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from ...core.artifact import cached_digest, checked_input
from ...core.files import temporary_folder
from ...errors import ModelError, translate_errors
from ...spec.tensors import ModelIO
from .. import onnx
from . import graph
from .graph_edits import drop_initializer_inputs
from .graph_names import name_nodes
from .onnx_checks import (
    ModelProblem,
    check_model,
    checker_message,
    every_tensor,
    external_files,
    location,
    read_external,
)
from .plain_forms import free_extents, to_plain_forms
from .source_paths import strip_source_paths

DEFECT = "this is a defect of qcompile: report it with the model"

MAX_INLINE_BYTES = 4096
"""Largest size of weights that are read with the graph: shapes, axes and the like, for shape inference."""

# Field numbers of onnx.proto: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Buffer = bytes | mmap.mmap


class Graph:
    """A model, the file of its large weights, and an index of its nodes.

    Attributes:
        model: The graph; large weights refer to the file as external data (location, offset, length), until
            `load` reads them.
        path: The file that the model was read from; messages name it.
        is_file: Whether the file still equals the graph, so that a runtime can read the file.
        beside: Other files that contained weights when the model was read.
    """

    _INDEX = ("producers", "consumers", "stored", "pinned", "types", "shapes")

    def __init__(
        self, model: onnx.ModelProto, path: Path, *, is_file: bool = False, beside: Sequence[Path] = ()
    ) -> None:
        self.model, self.path, self.is_file, self.beside = model, path, is_file, beside

    @property
    def io(self) -> ModelIO:
        return graph.model_io(self.model)

    @property
    def opset(self) -> int:
        return graph.opset(self.model)

    @cached_property
    def producers(self) -> dict[str, onnx.NodeProto]:
        return graph.producers(self.model.graph)

    @cached_property
    def consumers(self) -> dict[str, list[onnx.NodeProto]]:
        """For each tensor, the nodes of the outermost graph that read it."""
        return graph.consumers(self.model.graph)

    @cached_property
    def stored(self) -> dict[str, onnx.TensorProto]:
        """Initializers by name."""
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    @cached_property
    def pinned(self) -> set[str]:
        return graph.pinned_names(self.model.graph)

    @cached_property
    def types(self) -> dict[str, str]:
        return graph.infer_types(self.model)

    @cached_property
    def shapes(self) -> dict[str, tuple[int | str, ...]]:
        return graph.infer_shapes(self.model)

    def is_private(self, name: str) -> bool:
        """Return whether one input of one node is the only use of a tensor."""
        reads = sum([*node.input].count(name) for node in self.consumers.get(name, ()))
        return name not in self.pinned and reads == 1

    def replace_uses(self, name: str, by: str) -> None:
        """Replace a tensor by another in the inputs of its consumers; update the index."""
        for node in [*self.consumers.get(name, ())]:
            self.set_inputs(node, *[by if operand == name else operand for operand in node.input])

    def set_inputs(self, node: onnx.NodeProto, *names: str) -> None:
        """Replace the inputs of a node; update the index."""
        for name in dict.fromkeys(node.input):
            self.consumers[name] = [other for other in self.consumers[name] if other is not node]
        node.input[:] = names
        for name in dict.fromkeys(names):
            self.consumers.setdefault(name, []).append(node)
        self.is_file = False

    def remove(self, *nodes: onnx.NodeProto) -> None:
        """Remove nodes with unread outputs; update the index."""
        for node in nodes:
            self.set_inputs(node)
            for name in node.output:
                self.producers.pop(name, None)
            self.model.graph.node.remove(node)
        self.is_file = False

    def edited(self, model: onnx.ModelProto | None = None) -> None:
        """Discard the index after an edit of the model, or after its replacement by `model`."""
        self.model = self.model if model is None else model
        self.is_file = False
        for name in self._INDEX:
            self.__dict__.pop(name, None)

    def load(self, *, beside: bool = True) -> onnx.ModelProto:
        """Read the weights, and return the model; without `beside`, only weights in the source file."""
        add_external_data(self.model, self.path, beside=beside)
        return self.model

    def copy(self) -> Graph:
        return Graph(copy_model(self.model), self.path)

    def digest(self) -> str:
        """Return the digest of the source file and its external data."""
        missing = [file for file in self.beside if not file.is_file()]
        if missing:
            raise ModelError(
                f"{self.path}: its external data {missing[0]} does not exist",
                hint="keep the data file beside the model",
                file=self.path,
            )
        return cached_digest([self.path, *self.beside])

    def save(self, path: Path) -> None:
        """Write the graph with its weights, inside `files.writing`."""
        save_onnx(self.load(), path)

    @contextmanager
    def file(self) -> Iterator[Path]:
        """Yield a file of the graph for a runtime: its source file if unchanged, else a temporary file."""
        if self.is_file:
            yield self.path
            return
        with temporary_folder("graph", self.path) as folder:
            path = folder / self.path.name
            self.save(path)
            yield path

    def check(self) -> None:
        """Run ONNX's checker and strict shape inference, which rejects contradictory declarations."""
        check_model(self.model, self.path)
        try:
            graph.with_inferred(graph.without_weights(self.model), strict=True)
        except (onnx.shape_inference.InferenceError, RuntimeError) as error:
            raise ModelError(
                f"{self.path}: ONNX's checker refuses it: {checker_message(error)}",
                hint="the file is damaged or its exporter is wrong; export it again",
                file=self.path,
            ) from error


def read_graph(path: Path) -> Graph:
    """Read and check a file without its large weights; rewrite the model in plain forms (`plain_forms`)."""
    from google.protobuf.message import DecodeError

    checked_input(path, what="model")
    model = onnx.ModelProto()
    damage, hint = (DecodeError, ValueError, IndexError), "copy or export the file again"
    if path.stat().st_size:  # an empty file cannot be mapped
        with (
            translate_errors(
                f"{path}: not an ONNX model, or cut off", ModelError, errors=damage, hint=hint, file=path
            ),
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            _read_into(model, content, path.resolve().name)
    freed = free_extents(model)
    check_model(model, path)
    beside, changed = external_files(path, model), to_plain_forms(model)
    renamed = name_nodes(model.graph)  # names of nodes identify layers in counts, reports and comparisons
    return Graph(model, path, is_file=not (freed or changed or renamed), beside=beside)


@contextmanager
def report_as_defect(source: Path, step: str = "qcompile", file: Path | None = None) -> Iterator[None]:
    """Report a ModelError in the `with` block as a defect of qcompile; `step` made the graph of `source`."""
    try:
        yield
    except ModelError as error:
        problem = error.message.removeprefix(f"{file or source}: ")
        raise ModelError(f"{source}: {step} made an invalid graph of it: {problem}", hint=DEFECT) from error


def check_written(file: Path, source: Path) -> None:
    """Check a file that qcompile made of `source`."""
    with report_as_defect(source, file=file):
        read_graph(file)


def read_weightless(path: Path) -> Graph:
    """Read a file for inspection, and remove initializers from its inputs."""
    weightless = read_graph(path)
    drop_initializer_inputs(weightless.model)
    return weightless


def _read_into(model: onnx.ModelProto, content: Buffer, name: str) -> None:
    """Parse a model; large initializers refer to the file in place of raw data."""
    for field, kind, start, value, end in _fields(content, 0, len(content)):
        if (field, kind) != (_GRAPH, _BYTES):
            model.MergeFromString(content[start:end])
            continue
        model.graph.SetInParent()
        for inner, inner_kind, inner_start, inner_value, inner_end in _fields(content, value, end):
            is_large = inner_end - inner_value > MAX_INLINE_BYTES
            if (inner, inner_kind) == (_INITIALIZER, _BYTES) and is_large:
                _read_tensor(model.graph.initializer.add(), content, inner_value, inner_end, name)
            else:
                model.graph.MergeFromString(content[inner_start:inner_end])


def _read_tensor(tensor: onnx.TensorProto, content: Buffer, start: int, end: int, name: str) -> None:
    """Parse a tensor; large raw data become a reference to the file."""
    raw_data: tuple[int, int] | None = None
    for field, kind, field_start, value, field_end in _fields(content, start, end):
        if field == _RAW_DATA and kind == _BYTES and field_end - value > MAX_INLINE_BYTES:
            raw_data = value, field_end - value
        else:
            tensor.MergeFromString(content[field_start:field_end])
    if raw_data is not None:  # set last, because the file may set `data_location: DEFAULT`
        tensor.data_location = tensor.EXTERNAL
        for key, text in (("location", name), ("offset", raw_data[0]), ("length", raw_data[1])):
            tensor.external_data.add(key=key, value=str(text))


def _fields(content: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (number, wire type, start of the field, start of its value, end) of each field."""
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
    """Return the varint at a position, and the position behind it."""
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


EXTERNAL_DATA_BYTES = (1 << 31) - (1 << 26)
"""Weights over this size go to a second file: 2 GB, protobuf's limit, less 64 MiB for the graph."""


def add_external_data(model: onnx.ModelProto, path: Path, *, beside: bool = True) -> None:
    """Read external weights into a model: those in its source file and, with `beside`, in others."""
    message, hint = f"{path}: its external data cannot be read", "keep the data file beside the model"
    for tensor in every_tensor(model):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        if not beside and location(tensor) != path.resolve().name:
            continue
        with translate_errors(message, ModelError, errors=(OSError, ModelProblem), hint=hint, file=path):
            tensor.raw_data = read_external(tensor, path.resolve().parent)
        tensor.ClearField("data_location")
        del tensor.external_data[:]


def save_onnx(model: onnx.ModelProto, path: Path) -> None:
    """Write the model to `path` (inside `files.writing`), with external data from 2 GB on.

    Stack traces and paths of the exporting machine are removed (`source_paths`).
    """
    strip_source_paths(model)
    beside = path.with_name(f"{path.name}.data")
    beside.unlink(missing_ok=True)  # onnx would append to it
    if not is_large(model):
        write_whole(model, path)
        return
    onnx.save_model(
        model, str(path), save_as_external_data=True, all_tensors_to_one_file=True,
        location=beside.name, size_threshold=1024,
    )  # fmt: skip
    add_external_data(model, path)  # onnx removes weights from the model when it writes them beside it


def write_whole(model: onnx.ModelProto, path: Path) -> None:
    """Write the bytes of `SerializeToString`, one initializer at a time to avoid a copy of all."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    if len(UnknownFieldSet(model)) or len(UnknownFieldSet(model.graph)):  # of a later version of ONNX
        path.write_bytes(model.SerializeToString())
        return
    before, after = _fields_around(model, _GRAPH)
    graph_before, graph_after = _fields_around(model.graph, _INITIALIZER)
    lengths = [len(tensor.SerializeToString()) for tensor in model.graph.initializer]
    fields = [_bytes_header(_INITIALIZER, length) for length in lengths]
    size = len(graph_before) + len(graph_after) + sum(lengths) + sum(map(len, fields))
    with path.open("wb") as file:
        file.write(before + _bytes_header(_GRAPH, size) + graph_before)
        for field, tensor in zip(fields, model.graph.initializer, strict=True):
            file.write(field)
            file.write(tensor.SerializeToString())
        file.write(graph_after + after)


def write_behind_graph(model: onnx.ModelProto, path: Path) -> None:
    """Rewrite the fields after the graph, such as metadata, in a file of `write_whole`."""
    with path.open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            end = next(end for number, *_, end in _fields(content, 0, len(content)) if number == _GRAPH)
        file.seek(end)
        file.write(_fields_around(model, _GRAPH)[1])
        file.truncate()


def _fields_around(message: Any, number: int) -> tuple[bytes, bytes]:
    """Return the serialized fields of a message before a field number, and those after it."""
    parts = [b"", b""]
    for field, value in message.ListFields():  # in the order of their numbers
        if field.number != number:
            parts[field.number > number] += type(message)(**{field.name: value}).SerializeToString()
    return parts[0], parts[1]


def _bytes_header(number: int, length: int) -> bytes:
    """Return the header of a bytes field: its number and wire type, and the length as a varint."""
    header = [number << 3 | _BYTES]
    while length > 0x7F:
        header.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*header, length])


def is_large(model: onnx.ModelProto, *, loaded: bool = False) -> bool:
    """Return whether the weights, or only those that are `loaded`, are too large for one protobuf file."""
    # Computed from shapes: protobuf's `ByteSize` fails on exactly these models.
    tensors = [t for t in model.graph.initializer if not (loaded and t.data_location == t.EXTERNAL)]
    return sum(map(graph.tensor_bytes, tensors)) > EXTERNAL_DATA_BYTES


def copy_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy; initializers are copied singly, because protobuf cannot copy a message over 2 GB."""
    copy = copy_weightless(model)
    for tensor in model.graph.initializer:
        copy.graph.initializer.add().CopyFrom(tensor)
    return copy


def copy_weightless(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without the initializers of its graph."""
    copy = onnx.ModelProto()
    for target, source, separate in ((copy, model, "graph"), (copy.graph, model.graph, "initializer")):
        for field, value in source.ListFields():
            if field.name != separate:
                target.MergeFrom(type(source)(**{field.name: value}))
    return copy
