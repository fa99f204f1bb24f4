"""`qcompile export`: write a model source as one checked ONNX file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.artifact import Artifact, Check, commit
from ...core.files import temporary_folder, writing
from ...core.progress import Progress, silent
from ...data.batches import Data
from ...errors import ExportError, InvalidOption, ModelError, QCompileError
from ...model.graph.graph import graph_precision
from ...model.graph.input_notes import AxisRange, write_notes
from ...model.graph.onnx_file import Graph, read_graph, write_behind_graph
from ...model.sources.archives import trust_files
from ...model.sources.example import name_outputs
from ...model.sources.load import find_preprocessing, load_torch
from ...model.sources.preprocessing import Preprocessing
from ...model.sources.pytorch import LoadedModel, depends_on_training_mode, in_evaluation_mode
from ...model.sources.source import TENSORFLOW_KINDS, Source, parse_source
from ...spec.decode import spec_from_call
from ...spec.models import ExportOptions, ExportSpec
from ...spec.opsets import NEWEST_EXPORTED, OLDEST
from ...spec.tensors import TensorInfo
from ..check import OnnxReference, graph_manifest
from ..quantize.qat.train import TRAINED_FOR, register_operators
from .axes import rename_axes, require_axes
from .branches import find_branches, forced_ways
from .captured_forms import captured_forms
from .checks import ExportComparison, Original, format_range, open_original
from .data_axes import VARYING, with_preprocessing
from .in_float32 import DataInFloat32, InFloat32, float32_inputs, type_warnings
from .onnx_source import TOOLS, convert_tensorflow, export_onnx, input_notes
from .write import WriteResult, complete_graph, lower_to, write_back, write_model

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import ExportKeywords

_NARROW = 4  # an axis is narrow if its maximum is below this multiple of the traced extent
_LOWEST_DB = 30.0  # required SQNR of a model with trained scales; PyTorch rounds the same


def export(
    model: str | Source | Any,
    output: str | Path,
    spec: ExportOptions | None = None,
    /,
    *,
    inputs: Sequence[str | TensorInfo] = (),
    opset_version: int | None = None,
    preprocessing: str | Preprocessing = "",
    progress: Progress = silent,
    **options: Unpack[ExportKeywords],
) -> Artifact:
    """Export a model to ONNX, check the file, and compare its outputs with the original's.

    Args:
        model: A MODEL spelling or an `nn.Module`; a module's training mode is restored.
        output: The .onnx file to write.
        spec: Options. `target` defaults to the target of `qat.prepare`, else "onnxruntime"; a float model is
            the same for all targets. `freeze_branches` adds a warning that lists the branches.
        inputs: Overrides `spec.inputs`, also as `TensorInfo`. Inputs of an example with nested structures are
            named by path: `batch.image`, `features_0`.
        opset_version: Overrides `spec.opset`, under PyTorch's name.
        preprocessing: Overrides `spec.preprocessing`, also as an object. Later stages apply it to `data`.
        progress: Called at every step.
        options: Fields of `ExportSpec` by name; they override `spec`.

    Returns:
        The ONNX file and its manifest. `options["axes"]` has the range of every dynamic axis, also stored in
        the file. `options["exporter"]` is "dynamo", or "torchscript" if only PyTorch's older exporter
        succeeded, with a warning.

    Raises:
        ExportError: If PyTorch cannot express the model in ONNX (the message names operator and module), or
            an axis cannot be dynamic.
        ModelError: If the model raises on its input, the file fails the checker, or its outputs differ at a
            checked extent.
    """
    output = Path(output)
    if opset_version is not None:
        options["opset"] = opset_version
    spec = spec_from_call(ExportSpec, spec, options)
    if not OLDEST <= spec.opset <= NEWEST_EXPORTED:
        raise InvalidOption(f"opset {spec.opset}: {OLDEST} to {NEWEST_EXPORTED} can be exported")
    inputs, data = inputs or spec.inputs, spec.data
    source: Any = model
    if isinstance(model, str):
        source = parse_source(model, weights=spec.weights, download=spec.download)
    samples = preprocessing or spec.preprocessing or None
    if isinstance(samples, str):
        samples = find_preprocessing(samples)
    if spec.dtype and isinstance(source, Source) and source.kind in ("onnx", *TENSORFLOW_KINDS):
        raise InvalidOption(
            f"`dtype` {spec.dtype}: {source.spec} is no PyTorch model; its types are fixed", option="dtype"
        )
    if isinstance(source, Source) and source.kind == "onnx":
        return export_onnx(source, output, data, samples)
    if isinstance(source, Source) and source.kind in TENSORFLOW_KINDS:
        progress("convert to ONNX")
        with temporary_folder("tensorflow", source.spec) as folder:
            converted, versions = convert_tensorflow(source, folder / "model.onnx", spec, inputs)
            return export_onnx(converted, output, data, samples, versions)
    progress("load the model")
    if isinstance(source, Source) and source.kind == "pt2":
        register_operators()  # the program may contain them
    with ExitStack() as stack:
        if isinstance(source, Source):
            with trust_files(spec.trust):
                loaded, label = load_torch(source), source.spec
        else:
            for part in source.modules():  # restore each mode afterwards
                stack.callback(setattr, part, "training", part.training)
            was_training, label = depends_on_training_mode(source), type(source).__name__
            loaded = LoadedModel(in_evaluation_mode(source), None, was_training)
        if any("fake_quant_enabled" in part._buffers for part in loaded.module.modules()):
            raise ExportError(  # it rounds in Python code, which has no ONNX form
                f"{label}: holds fake quantization that is still in training",
                hint="export qcompile.qat.convert(model)",
            )
        in_float32 = InFloat32(loaded, label) if spec.dtype else None
        notes = [] if in_float32 else type_warnings(loaded, label)
        if in_float32:
            stack.enter_context(in_float32.exchanged())
            loaded, inputs = in_float32.loaded, float32_inputs(inputs)
        read = DataInFloat32 if in_float32 else Data
        original = stack.enter_context(
            open_original(loaded, label, inputs, spec.dynamic, data, samples, read=read)
        )
        original.warnings += notes
        if in_float32:
            in_float32.compare(original)
        with_preprocessing(original.example.inputs, samples)  # raises before the slow steps
        input_names = [tensor.name for tensor in original.example.inputs]
        structured = name_outputs([], original.reference)
        declared = loaded.output_names if len(loaded.output_names) == len(structured) else ()
        names = name_outputs(spec.outputs or declared, original.reference, input_names)
        if not (spec.outputs or declared):
            original.warnings += [
                f"output {name!r} is written as {unique!r}: an input has its name; `outputs` gives another"
                for name, unique in zip(structured, names, strict=True)
                if name != unique
            ]
        target = spec.target or getattr(loaded.module, "meta", {}).get(TRAINED_FOR, "onnxruntime")
        try:
            return _export(
                original, names, output, replace(spec, target=target), progress, preprocessing=samples
            )
        except ModelError as error:
            varying = [check.detail for check in original.checks if check.name == VARYING]
            of_data = [f"data varies in {text}" for text in varying if error.data.get("reason") == "axis"]
            error.hint = "; ".join(filter(None, (*notes, error.hint, *of_data)))
            raise


def _export(
    original: Original,
    names: Sequence[str],
    output: Path,
    spec: ExportSpec,
    progress: Progress,
    *,
    preprocessing: Preprocessing | None,
) -> Artifact:
    label, opset_version, freeze_branches = original.label, spec.opset, spec.freeze_branches
    assert spec.target is not None, "it is chosen"
    with writing(output) as path:
        progress("export to ONNX")
        written = _write(original, names, opset_version, path, freeze_branches=freeze_branches)
        example = original.example
        graph = Graph(written.model, path) if written.model is not None else read_graph(path)
        lower_to(graph, opset_version, label)
        complete_graph(graph, spec.target)
        rename_axes(graph.model, written.axes, example)
        progress("check the ONNX file")
        graph = write_back(graph)
        with _first_reason(written, label, freeze_branches=freeze_branches):
            graph.check()
            require_axes(example, graph.io.inputs, label)
        if graph.opset != opset_version:
            raise ExportError(
                f"{label}: opset {opset_version} requested; the exporter wrote {graph.opset}",
                hint=f"give `opset` {graph.opset}",
            )
        lowest_db = _LOWEST_DB if graph_precision(graph.model) == "int8" else None
        # ONNX Runtime maps the weights of a graph in memory, but would parse those of its file.
        session, traced = OnnxReference(Graph(graph.model, path)), bool(written.reason)
        comparison = ExportComparison(original, session, names, written.axes, traced, lowest_db, progress)
        checks = [Check("ONNX checker and shape inference", True, f"opset {graph.opset}"), *original.checks]
        with _first_reason(written, label, freeze_branches=freeze_branches):
            checks += comparison.run()
        ranges, comparison_warnings = comparison.ranges, comparison.warnings
        del comparison, session  # the session maps the weights of the file that is written next
        notes = input_notes(example, ranges, preprocessing, original.shapes)
        write_notes(graph.model, notes)
        write_behind_graph(graph.model, path)
        axes = {
            name: {**ranges.get(name, AxisRange()).as_json(), "traced": extent}
            for name, extent in example.extents.items()
        }
        options = {"model": label, "opset": opset_version, "exporter": written.exporter, "axes": axes}
        warnings = [*original.warnings, *written.notes]
        if written.reason:
            reason = written.reason.message.removeprefix(f"{label}: ")
            exporter = "exported by PyTorch's TorchScript-based exporter; the newer one could not"
            warnings.append(f"{exporter}: {reason}")
        if freeze_branches and written.frozen:
            places = ", ".join(written.frozen)
            warnings.append(f"frozen as the example takes them: branches and values at {places}")
        limited = {name: limits for name, limits in ranges.items() if limits != example.ranges.get(name)}
        warnings += [f"axis {name!r} takes {format_range(limits)}" for name, limits in limited.items()]
        warnings += comparison_warnings
        manifest = graph_manifest("export", graph.model, TOOLS, options, checks=checks, warnings=warnings)
        return Artifact(output, commit(path, manifest))


@contextmanager
def _first_reason(written: WriteResult, label: str, *, freeze_branches: bool) -> Iterator[None]:
    """If the older exporter's file is rejected, raise an error that also has the newer exporter's reason."""
    try:
        yield
    except QCompileError as error:
        reason = written.reason
        if reason is None or (freeze_branches and written.frozen):  # the user accepted the trace
            raise
        second = f"PyTorch's TorchScript-based exporter: {error.message.removeprefix(f'{label}: ')}"
        raise ExportError(
            f"{reason.message}; {second}", hint=reason.hint or error.hint, **reason.data
        ) from error


def _write(
    original: Original, names: Sequence[str], opset_version: int, path: Path, *, freeze_branches: bool
) -> WriteResult:
    """Write the file; if a guessed extent makes an axis too narrow, write again with larger extents.

    For example, convolutions may reduce a short input to one frame, and the graph then holds for one frame.
    """
    write_once = partial(write_model, original, names, opset_version, path, freeze_branches=freeze_branches)

    def write() -> WriteResult:
        with captured_forms() as notes:
            try:
                written = write_once()
            except ExportError as error:
                if error.data.get("reason") != "values" or freeze_branches:
                    raise
                branches = find_branches(original.outputs, original.sample_feeds())
                if branches is None:
                    raise
                with forced_ways(branches.ways):
                    written = write_once()
                notes.add(str(branches))
        return replace(written, notes=tuple(notes))

    def narrow(written: WriteResult) -> list[str]:
        """Return the axes with guessed extents that the file limits to less than `_NARROW` times these."""
        example = original.example
        return [
            name
            for name, limits in written.axes.ranges.items()
            if name in example.guessed
            and limits.maximum is not None
            and limits.maximum < _NARROW * example.extents[name]
            and limits.maximum != example.ranges.get(name, AxisRange()).maximum
        ]

    written, first = write(), original.example
    names_of_narrow = narrow(written)
    for alternative in original.alternatives if names_of_narrow else ():
        larger = all(alternative.extents[name] > first.extents[name] for name in names_of_narrow)
        if larger and original.replace_example(alternative) and not narrow(wider := write()):
            return wider
    if original.example is not first:
        original.replace_example(first)
        written = write()
    return written
