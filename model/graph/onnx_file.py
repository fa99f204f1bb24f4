"""An ONNX model in memory: parsed once, handed from stage to stage, written once.

Large weights stay where they were read: the file is mapped and walked as protobuf's wire format lays it
out, and their bytes are stepped over. A file of gigabytes costs no more than its graph until a stage reads
weights. Models over 2 GB, protobuf's limit, keep their weights in `NAME.onnx.data` beside the file. It is
protobuf, as ONNX Runtime, onnxsim, ONNX's converter and its shape inference take it; CONTRIBUTING.md says
what onnx-ir would cost.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from ...core.artifact import checked_input, known_digest
from ...core.files import temporary_folder
from ...errors import ModelError, translated
from ...spec.tensors import ModelIO
from .. import onnx
from . import graph
from .graph_edits import fix_initializers
from .graph_names import name_nodes
from .onnx_checks import (
    ModelProblem,
    check_model,
    every_tensor,
    external_files,
    finding,
    location,
    read_external,
)
from .plain_forms import free_extents, to_plain_forms
from .source_paths import strip_source_paths

DEFECT = "this is a defect of qcompile: report it with the model"

KEPT_BYTES = 4096
"""Weights up to this size keep their values: shapes, axes and the like, which shape inference reads."""

# Field numbers of onnx.proto: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Buffer = bytes | mmap.mmap


class Graph:
    """A model, the file that its large weights lie in, and an index of its nodes.

    Attributes:
        model: The graph; large weights refer to the file as external data (location, offset, length), until
            `load` brings them in.
        path: The file that it was read from, which names it in messages.
        is_file: Whether the file still is the graph: a runtime reads it there.
        beside: Files beside it that held weights when it was read.
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
        """Tensor name to the nodes of the outermost graph that read it."""
        return graph.consumers(self.model.graph)

    @cached_property
    def stored(self) -> dict[str, onnx.TensorProto]:
        """Name to initializer."""
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
        """Return whether one node alone reads a tensor, and once."""
        reads = sum([*node.input].count(name) for node in self.consumers.get(name, ()))
        return name not in self.pinned and reads == 1

    def replace_uses(self, name: str, by: str) -> None:
        """Let the nodes that read a tensor read another; the index stays true."""
        for node in [*self.consumers.get(name, ())]:
            self.set_inputs(node, *[by if operand == name else operand for operand in node.input])

    def set_inputs(self, node: onnx.NodeProto, *names: str) -> None:
        """Let a node read these tensors; the index stays true."""
        for name in dict.fromkeys(node.input):
            self.consumers[name] = [other for other in self.consumers[name] if other is not node]
        node.input[:] = names
        for name in dict.fromkeys(names):
            self.consumers.setdefault(name, []).append(node)
        self.is_file = False

    def remove(self, *nodes: onnx.NodeProto) -> None:
        """Remove nodes, whose results nothing reads any more; the index stays true."""
        for node in nodes:
            self.set_inputs(node)
            for name in node.output:
                self.producers.pop(name, None)
            self.model.graph.node.remove(node)
        self.is_file = False

    def edited(self, model: onnx.ModelProto | None = None) -> None:
        """Forget the index, after `model` was edited, or another is in its place."""
        self.model = self.model if model is None else model
        self.is_file = False
        for name in self._INDEX:
            self.__dict__.pop(name, None)

    def load(self, *, beside: bool = True) -> onnx.ModelProto:
        """Return the model with its weights brought in; without `beside`, those of its own file alone."""
        add_external_data(self.model, self.path, beside=beside)
        return self.model

    def copy(self) -> Graph:
        """Return a copy to edit."""
        return Graph(copy_model(self.model), self.path)

    def digest(self) -> str:
        """Return the digest of the file that it was read from, with its external data, wherever that lies."""
        missing = [file for file in self.beside if not file.is_file()]
        if missing:
            raise ModelError(
                f"{self.path}: its external data {missing[0]} does not exist",
                hint="keep the data file beside the model",
                file=self.path,
            )
        return known_digest([self.path, *self.beside])

    def save(self, path: Path) -> None:
        """Write the graph with its weights, inside `files.writing`."""
        save_onnx(self.load(), path)

    @contextmanager
    def file(self) -> Iterator[Path]:
        """Yield a file of the graph, for a runtime: the one that it was read from while it is unchanged."""
        if self.is_file:
            yield self.path
            return
        with temporary_folder("graph", self.path) as folder:
            path = folder / self.path.name
            self.save(path)
            yield path

    def check(self) -> None:
        """Run ONNX's checker and its shape inference, strictly: what is declared must be what follows."""
        check_model(self.model, self.path)
        try:
            graph.with_inferred(graph.without_weights(self.model), strict=True)
        except (onnx.shape_inference.InferenceError, RuntimeError) as error:
            raise ModelError(
                f"{self.path}: ONNX's checker refuses it: {finding(error)}",
                hint="the file is damaged or its exporter is wrong; export it again",
                file=self.path,
            ) from error


def read_graph(path: Path) -> Graph:
    """Read and check a file, but for its large weights, and write it in plain forms (`plain_forms`)."""
    from google.protobuf.message import DecodeError

    checked_input(path, what="model")
    model = onnx.ModelProto()
    damage, again = (DecodeError, ValueError, IndexError), "copy or export the file again"
    if path.stat().st_size:  # an empty file cannot be mapped
        with (
            translated(
                f"{path}: not an ONNX model, or cut off", ModelError, errors=damage, hint=again, file=path
            ),
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            _read_into(model, content, path.resolve().name)
    freed = free_extents(model)
    check_model(model, path)
    beside, changed = external_files(path, model), to_plain_forms(model)
    named = name_nodes(model.graph)  # layers are counted, named and compared by the names of nodes
    return Graph(model, path, is_file=not (freed or changed or named), beside=beside)


@contextmanager
def written_here(source: Path, step: str = "qcompile", file: Path | None = None) -> Iterator[None]:
    """Raise the refusal of a graph that a step made of `source` as a defect of qcompile."""
    try:
        yield
    except ModelError as error:
        problem = error.message.removeprefix(f"{file or source}: ")
        raise ModelError(f"{source}: {step} made an invalid graph of it: {problem}", hint=DEFECT) from error


def check_written(file: Path, source: Path) -> None:
    """Check a file that was made of `source`."""
    with written_here(source, file=file):
        read_graph(file)


def read_weightless(path: Path) -> Graph:
    """Read a file to look at it: initializers that it lists as inputs are none."""
    weightless = read_graph(path)
    fix_initializers(weightless.model)
    return weightless


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


EXTERNAL_DATA_BYTES = (1 << 31) - (1 << 26)
"""Size from which weights go to a side file; 64 MiB under protobuf's 2 GB, for the graph itself."""


def add_external_data(model: onnx.ModelProto, path: Path, *, beside: bool = True) -> None:
    """Read the weights of a model that lie in its file, and those in files `beside` it, into the model."""
    message, hint = f"{path}: its external data cannot be read", "keep the data file beside the model"
    for tensor in every_tensor(model):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        if not beside and location(tensor) != path.resolve().name:
            continue
        with translated(message, ModelError, errors=(OSError, ModelProblem), hint=hint, file=path):
            tensor.raw_data = read_external(tensor, path.resolve().parent)
        tensor.ClearField("data_location")
        del tensor.external_data[:]


def save_onnx(model: onnx.ModelProto, path: Path) -> None:
    """Write the model to `path` (inside `files.writing`), with external data from 2 GB on.

    What it tells of the machine that it was exported on is removed (`source_paths`).
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
    add_external_data(model, path)  # onnx leaves the model without the weights that it wrote beside it


def write_whole(model: onnx.ModelProto, path: Path) -> None:
    """Write what `SerializeToString` returns, an initializer at a time: without a copy of all of them."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    if len(UnknownFieldSet(model)) or len(UnknownFieldSet(model.graph)):  # of a later version of ONNX
        path.write_bytes(model.SerializeToString())
        return
    before, after = _around(model, _GRAPH)
    graph_before, graph_after = _around(model.graph, _INITIALIZER)
    lengths = [len(tensor.SerializeToString()) for tensor in model.graph.initializer]
    fields = [_key(_INITIALIZER, length) for length in lengths]
    size = len(graph_before) + len(graph_after) + sum(lengths) + sum(map(len, fields))
    with path.open("wb") as file:
        file.write(before + _key(_GRAPH, size) + graph_before)
        for field, tensor in zip(fields, model.graph.initializer, strict=True):
            file.write(field)
            file.write(tensor.SerializeToString())
        file.write(graph_after + after)


def write_behind_graph(model: onnx.ModelProto, path: Path) -> None:
    """Write anew what a file of `write_whole` holds behind its graph, such as metadata."""
    with path.open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            end = next(end for number, *_, end in _fields(content, 0, len(content)) if number == _GRAPH)
        file.seek(end)
        file.write(_around(model, _GRAPH)[1])
        file.truncate()


def _around(message: Any, number: int) -> tuple[bytes, bytes]:
    """The bytes of a message's fields before a number, and behind it."""
    parts = [b"", b""]
    for field, value in message.ListFields():  # in the order of their numbers
        if field.number != number:
            parts[field.number > number] += type(message)(**{field.name: value}).SerializeToString()
    return parts[0], parts[1]


def _key(number: int, length: int) -> bytes:
    """What stands in front of bytes: the number of the field, and the length as a varint."""
    written = [number << 3 | _BYTES]
    while length > 0x7F:
        written.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*written, length])


def is_large(model: onnx.ModelProto, *, loaded: bool = False) -> bool:
    """Return whether the weights, or those that are loaded, are too many for one protobuf file.

    Counted from shapes: protobuf's own `ByteSize` fails on exactly the models this is asked for.
    """
    tensors = [t for t in model.graph.initializer if not (loaded and t.data_location == t.EXTERNAL)]
    return sum(map(graph.tensor_bytes, tensors)) > EXTERNAL_DATA_BYTES


def copy_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy; initializers one by one, as protobuf cannot copy a message over 2 GB."""
    copy = copy_weightless(model)
    for tensor in model.graph.initializer:
        copy.graph.initializer.add().CopyFrom(tensor)
    return copy


def copy_weightless(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy but for the initializers of its graph."""
    copy = onnx.ModelProto()
    for target, source, separate in ((copy, model, "graph"), (copy.graph, model.graph, "initializer")):
        for field, value in source.ListFields():
            if field.name != separate:
                target.MergeFrom(type(source)(**{field.name: value}))
    return copy
