"""Read, check, measure and write ONNX files, with errors that name the file.

Models over 2 GB, protobuf's limit, keep their weights in `NAME.onnx.data` beside the file.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ModelError
from ..tensors import Dim, ModelIO, TensorInfo
from .input_notes import read_notes
from .onnx_checks import every_graph, every_tensor, finding, read_external
from .source_paths import strip_source_paths

if TYPE_CHECKING:
    import onnx

EXTERNAL_DATA_BYTES = (1 << 31) - (1 << 26)
"""Size from which weights go to a side file; 64 MiB under protobuf's 2 GB, for the graph itself."""


@contextlib.contextmanager
def reading_onnx(path: Path) -> Iterator[None]:
    """Name the file where what is decoded of it is no model."""
    from google.protobuf.message import DecodeError

    try:
        yield
    except (DecodeError, UnicodeDecodeError, ValueError, IndexError) as error:
        raise ModelError(
            f"{path}: not an ONNX model, or cut off ({error})",
            hint="copy or export the file again",
            file=path,
        ) from error


def add_external_data(model: onnx.ModelProto, path: Path, *, beside: bool = True) -> None:
    """Read the weights of a model that lie in its file, and those in files `beside` it, into the model."""
    from onnx import TensorProto

    for tensor in every_tensor(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        if not beside and _location(tensor) != path.resolve().name:
            continue
        try:
            tensor.raw_data = read_external(tensor, path.resolve().parent)
        except OSError as error:
            raise ModelError(
                f"{path}: its external data cannot be read ({error})",
                hint="keep the data file beside the model",
                file=path,
            ) from error
        tensor.ClearField("data_location")
        del tensor.external_data[:]


def check_onnx(path: Path, *, infer_shapes: bool = False, content: bytes | None = None) -> None:
    """Run ONNX's checker on the file, which also serves models over 2 GB, or on the `content` that it names.

    With `infer_shapes` all shapes are inferred, strictly: what is declared must be what follows.
    """
    import onnx

    refusals = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, OSError)
    try:
        onnx.checker.check_model(content or str(path), full_check=infer_shapes)
    except refusals as error:
        raise ModelError(
            f"{path}: ONNX's checker refuses it: {finding(error)}",
            hint="the file is damaged or its exporter is wrong; export it again",
            file=path,
        ) from error


def save_onnx(model: onnx.ModelProto, path: Path) -> None:
    """Write the model to `path` (inside `files.writing`), with external data from 2 GB on.

    What it tells of the machine that it was exported on is removed (`source_paths`).
    """
    import onnx

    strip_source_paths(model)
    external = is_large(model)
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)  # onnx would append to it
    onnx.save_model(
        model,
        str(path),
        save_as_external_data=external,
        all_tensors_to_one_file=True,
        location=f"{path.name}.data",
        size_threshold=1024,
    )
    if external:  # onnx leaves the model without the weights that it wrote beside it
        add_external_data(model, path)


def is_large(model: onnx.ModelProto, *, loaded: bool = False) -> bool:
    """Return whether the weights, or those that are loaded, are too many for one protobuf file.

    Counted from shapes: protobuf's own `ByteSize` fails on exactly the models this is asked for.
    """
    tensors = [t for t in model.graph.initializer if not (loaded and t.data_location == t.EXTERNAL)]
    return sum(map(tensor_bytes, tensors)) > EXTERNAL_DATA_BYTES


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Return the size of a tensor's values by its shape and type; 0 for strings."""
    import math

    import onnx

    if tensor.data_type == onnx.TensorProto.STRING:
        return 0
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return int(math.prod(tensor.dims) * dtype.itemsize)


def copy_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy; initializers one by one, as protobuf cannot copy a message over 2 GB."""
    import onnx

    copy = onnx.ModelProto()
    for target, source, separate in ((copy, model, "graph"), (copy.graph, model.graph, "initializer")):
        for field, value in source.ListFields():
            if field.name != separate:
                target.MergeFrom(type(source)(**{field.name: value}))
    for tensor in model.graph.initializer:
        copy.graph.initializer.add().CopyFrom(tensor)
    return copy


def model_io(model: onnx.ModelProto) -> ModelIO:
    """Return inputs (without initializers that old files list as inputs) and outputs.

    Inputs have the preprocessing that the file notes (`input_notes`).
    """
    stored, notes = {tensor.name for tensor in model.graph.initializer}, read_notes(model)
    return ModelIO(
        tuple(
            replace(_tensor(value), preprocessing=notes[value.name].preprocessing)
            if value.name in notes
            else _tensor(value)
            for value in model.graph.input
            if value.name not in stored
        ),
        tuple(_tensor(value) for value in model.graph.output),
    )


def opset(model: onnx.ModelProto, domain: str = "") -> int:
    """Return the opset of a domain, 0 when the model does not import it."""
    names = ("", "ai.onnx") if domain in ("", "ai.onnx") else (domain,)
    return max((item.version for item in model.opset_import if item.domain in names), default=0)


def count_operators(model: onnx.ModelProto) -> dict[str, int]:
    """Return operator type to number of nodes, most frequent first, subgraphs included."""
    nodes = (node for graph in every_graph(model.graph) for node in graph.node)
    counts = Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in nodes)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def external_files(path: Path, model: onnx.ModelProto) -> list[Path]:
    """Return the files beside an ONNX file that hold its external data."""
    from onnx import TensorProto

    folder, files = path.resolve().parent, set()
    for tensor in every_tensor(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            files.add(folder / _location(tensor))
    files.discard(path.resolve())  # a weightless model refers to the file itself
    return sorted(files)


def _location(tensor: onnx.TensorProto) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def dtype_name(elem_type: int) -> str:
    """Return numpy's name of an ONNX element type ("float32"); "bfloat16" and "string" by name."""
    import onnx

    if elem_type == onnx.TensorProto.UNDEFINED:
        return "undefined"
    if elem_type == onnx.TensorProto.STRING:
        return "string"
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    except KeyError:  # a type that this onnx does not know
        return "undefined"


def _tensor(value: onnx.ValueInfoProto) -> TensorInfo:
    tensor = value.type.tensor_type
    shape: list[Dim] = []
    for dim in tensor.shape.dim:
        shape.append(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?")
    return TensorInfo(value.name, dtype_name(tensor.elem_type), tuple(shape))
