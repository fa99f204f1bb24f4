"""Export a MODEL that is an ONNX file or becomes one by tf2onnx; make the input notes of exported files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...core.artifact import Artifact, Check, commit, isa_option, read_manifest
from ...core.files import public_names, writing
from ...data.batches import Data
from ...model.graph.graph import model_io, opset
from ...model.graph.input_notes import AxisRange, InputNote, read_notes, seen_extents, write_notes
from ...model.graph.onnx_file import check_written, read_graph, save_onnx
from ...model.graph.source_paths import strip_source_paths
from ...model.sessions.random_input import run_on
from ...model.sources.example import Example
from ...model.sources.preprocessing import Preprocessing
from ...model.sources.source import Source
from ...model.sources.tensorflow import convert, tensorflow_python
from ...spec.models import ExportSpec
from ...spec.opsets import NEWEST_BY_TF2ONNX
from ...spec.tensors import TensorInfo
from ..check import OnnxReference, graph_manifest
from ..opset.fit import upgrade_in_place
from .data_axes import with_preprocessing
from .onnx_shapes import requested_shapes, set_shapes
from .write import lower_to

TOOLS = "torch onnx onnxscript onnxruntime"


def input_notes(
    example: Example,
    ranges: Mapping[str, AxisRange],
    preprocessing: Preprocessing | None,
    shapes: Mapping[str, Sequence[tuple[int, ...]]],
) -> dict[str, InputNote]:
    """Return the notes on each input for later stages: extents, ranges of axes, preprocessing.

    `shapes` has the shapes of the inputs in batches of the data.
    """
    return {
        tensor.name: InputNote(
            tuple(map(int, example.feeds[tensor.name].shape)),
            {axis: ranges[name] for axis, name in tensor.dynamic_axes.items() if name in ranges},
            tensor.preprocessing,
            seen_extents(shapes.get(tensor.name, ()), tensor.dynamic_axes),
        )
        for tensor in with_preprocessing(example.inputs, preprocessing)
    }


def export_onnx(
    source: Source,
    output: Path,
    data: str | None,
    preprocessing: Preprocessing | None = None,
    converter: Mapping[str, str] | None = None,
    *,
    requested: Sequence[str | TensorInfo] = (),
    dynamic: Sequence[str] = (),
) -> Artifact:
    """Check and copy an ONNX file, with `requested` shapes and `dynamic` names of its open axes.

    `converter` maps packages to versions if tf2onnx wrote the file.
    """
    graph = read_graph(source.file)
    proto = graph.load()
    graph.check()
    if is_edited := bool(requested or dynamic):
        set_shapes(proto, requested, dynamic)
        graph.edited()
        graph.check()
    with writing(output) as path, public_names(path.parent, lambda _: source.spec):
        if strip_source_paths(proto) or is_edited or graph.beside or not graph.is_file:
            save_onnx(proto, path)  # a file of external weights gets the new name
        else:
            shutil.copyfile(source.file, path)
        check_written(path, source.file)
        inputs = with_preprocessing(model_io(proto).inputs, preprocessing)
        sample = next(iter(Data(data, inputs))).feeds if data else None
        feeds, _ = run_on(proto, sample, OnnxReference(path))
        checks = [
            Check("ONNX checker and shape inference", True, f"opset {opset(proto)}"),
            Check("runs in ONNX Runtime", True, "the data" if data else "one random input"),
        ]
        if preprocessing is not None:
            notes = read_notes(proto)
            for tensor in inputs:
                note = notes.get(tensor.name) or InputNote(tuple(map(int, feeds[tensor.name].shape)))
                notes[tensor.name] = replace(note, preprocessing=tensor.preprocessing)
            write_notes(proto, notes)
            save_onnx(proto, path)
        manifest = read_manifest(source.file)
        options = {"model": source.spec, "opset": opset(proto), **isa_option(manifest)}
        options |= {"exporter": "tf2onnx"} if converter else {}
        manifest = graph_manifest("export", proto, TOOLS, options, checks=checks)
        manifest = commit(path, replace(manifest, tools={**manifest.tools, **(converter or {})}))
    return Artifact(output, manifest)


def convert_tensorflow(
    source: Source, path: Path, spec: ExportSpec, inputs: Sequence[str | TensorInfo]
) -> tuple[Source, dict[str, str]]:
    """Write a SavedModel, Keras or TFLite file as ONNX with named axes; return it and the tools' versions."""
    python, highest = tensorflow_python(spec.python), min(spec.opset, NEWEST_BY_TF2ONNX)
    versions = convert(source, python, path, spec.outputs, opset=highest, trust=spec.trust)
    graph = read_graph(path)
    proto = graph.load()
    tensors = input_shapes(model_io(proto).inputs, inputs, spec.dynamic)
    first = {tensor.shape[0] for tensor in tensors if tensor.shape}
    batch = first.pop() if len(first) == 1 else ""
    for value, tensor in zip(proto.graph.input, tensors, strict=True):
        for dimension, extent in zip(value.type.tensor_type.shape.dim, tensor.shape, strict=True):
            setattr(dimension, "dim_value" if isinstance(extent, int) else "dim_param", extent)
    for value in proto.graph.output:  # replaces axis names that tf2onnx invents
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if isinstance(batch, int) and axis == 0:
                dimension.dim_value = batch
            elif not dimension.HasField("dim_value"):
                dimension.dim_param = str(batch) if axis == 0 and batch else f"{value.name}_{axis}"
    if spec.opset > NEWEST_BY_TF2ONNX:
        upgrade_in_place(proto, spec.opset)
    lower_to(graph, spec.opset, source.spec)
    save_onnx(graph.model, path)
    return replace(source, kind="onnx", path=path), versions


def input_shapes(
    tensors: Sequence[TensorInfo], requested: Sequence[str | TensorInfo], dynamic: Sequence[str]
) -> list[TensorInfo]:
    """Return the inputs with requested shapes; other open axes become "batch" (the first) or INPUT_AXIS."""
    named = [
        replace(
            tensor,
            shape=tuple(
                dim if isinstance(dim, int) and dim > 0 else "batch" if axis == 0 else f"{tensor.name}_{axis}"
                for axis, dim in enumerate(tensor.shape)
            ),
        )
        for tensor in tensors
    ]
    return requested_shapes(named, requested, dynamic)
