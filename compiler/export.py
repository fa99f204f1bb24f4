"""`qcompile export`: a model source becomes one checked ONNX file."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..artifact import Artifact, Check, Manifest, commit, tool_versions, writing
from ..calibration import Data
from ..errors import ExportError, InvalidOption, ModelError, UnsupportedOperator, first_line
from ..model.example import CHECK_EXTENTS, Example, flat_outputs, make_example, name_outputs
from ..model.graph import graph_precision
from ..model.made_input import made_feeds
from ..model.onnx_file import (
    check_onnx,
    count_operators,
    external_files,
    load_checked,
    load_onnx,
    model_io,
    opset,
    save_onnx,
)
from ..model.pytorch import LoadedModel, evaluated, import_torch, load_torch
from ..model.source import Source, parse_source
from ..progress import Progress, quiet, silent
from ..shapes import Feeds, TensorInfo
from .check import OnnxReference, Outputs, compare_outputs
from .embedding_bags import bags_without_loops
from .failure import explain_export_failure
from .int8.placement import Target
from .opset.lower import lower_opset
from .qat.finish_qdq import finish_qdq
from .qat.onnx_translations import TRAINED_FOR, onnx_translations, register_operators

DEFAULT_OPSET = 20
OPSETS = range(13, 24)
_LOWEST_EXPORTED = 18  # below that, PyTorch's exporter has onnx.version_converter try, which gives up early
_LOWEST_DB = 30.0  # of a model with trained scales against PyTorch's rounding of the same


def export(
    model: str | Source | Any,
    output: str | Path,
    *,
    inputs: Sequence[str | TensorInfo] = (),
    outputs: Sequence[str] = (),
    dynamic: Sequence[str] = (),
    opset_version: int = DEFAULT_OPSET,
    target: Target | None = None,
    data: str | None = None,
    progress: Progress = silent,
) -> Artifact:
    """Export a model to ONNX, check the file, and compare its outputs with the original's.

    Args:
        model: A MODEL spelling (`model.source`) or an `nn.Module`.
        output: The .onnx file to write.
        inputs: `NAME:SHAPE[:DTYPE]` each, in the order of `forward`; named axes are dynamic.
        outputs: Names for the outputs.
        dynamic: `INPUT:AXIS=NAME` each.
        opset_version: ONNX opset to export to.
        target: What the Q/DQ of a model that was trained with it is completed for; what `qat.prepare` was
            told, or "onnxruntime", by default. A float model is the same for all.
        data: Samples (`calibration.batches`) whose first batch is compared too.
        progress: Told of every step.

    Returns:
        The ONNX file and its manifest.

    Raises:
        ExportError: If PyTorch cannot express the model in ONNX, naming operator and module.
        ModelError: If the file fails the checker, or computes something else.
    """
    output = Path(output)
    if opset_version not in OPSETS:
        raise InvalidOption(f"opset {opset_version}: {OPSETS.start} to {OPSETS.stop - 1} can be exported")
    source = parse_source(model) if isinstance(model, str) else model
    if isinstance(source, Source) and source.kind == "onnx":
        return _take_onnx(source, output, data)
    progress("load the model")
    if isinstance(source, Source) and source.kind == "pt2":
        register_operators()  # it may hold them
    loaded = load_torch(source) if isinstance(source, Source) else LoadedModel(evaluated(source), None)
    label = source.spec if isinstance(source, Source) else type(source).__name__
    _require_converted(loaded.module, label)
    example = make_example(loaded, inputs, dynamic)
    reference = _run_original(loaded, example, example.feeds, label)
    names = name_outputs(outputs, reference)
    with writing(output) as path:
        progress("export to ONNX")
        _write(loaded, example, names, opset_version, path, label)
        _lower(path, opset_version, label)
        _finish(path, target or getattr(loaded.module, "meta", {}).get(TRAINED_FOR, "onnxruntime"))
        progress("check the ONNX file")
        proto = load_checked(path)
        _require_axes(example, model_io(proto).inputs, label)
        if opset(proto) != opset_version:
            raise ExportError(
                f"{label}: opset {opset_version} was asked for; the exporter wrote {opset(proto)}",
                hint=f"give --opset {opset(proto)}",
            )
        checks = list(_checks(loaded, example, path, names, data, label, progress))
        _require(checks, label)
        manifest = commit(path, _manifest(proto, label, opset_version, checks))
    return Artifact(output, manifest)


def _require_converted(module: Any, label: str) -> None:
    """A model in training rounds by Python code, which ONNX has no form for."""
    from .qat.fake_quantize import FakeQuantize

    if any(isinstance(part, FakeQuantize) for part in module.modules()):
        raise ExportError(
            f"{label}: holds fake quantization that is still in training",
            hint="export qcompile.qat.convert(model)",
        )


def _write(
    loaded: LoadedModel,
    example: Example,
    names: Sequence[str],
    opset_version: int,
    path: Path,
    label: str,
) -> None:
    torch = import_torch()
    arguments, _ = example.arguments(example.feeds)
    common = {
        "input_names": [tensor.name for tensor in example.inputs],
        "output_names": list(names),
    }
    try:
        with quiet(), bags_without_loops():
            if isinstance(loaded.module, torch.jit.ScriptModule):
                # The dynamo exporter traces Python; a TorchScript archive has none left.
                torch.onnx.export(
                    loaded.module, arguments, str(path), dynamo=False, opset_version=opset_version,
                    dynamic_axes={t.name: t.dynamic_axes for t in example.inputs}, **common,
                )  # fmt: skip
                return
            # Captured here and not by the exporter, which would make an axis static without a word
            # where the model cannot have it dynamic.
            shapes = _dynamic_shapes(example)
            captured = _capture_within_limits(loaded, example)
            program = torch.onnx.export(
                captured, dynamo=True, verbose=False, dynamic_shapes=shapes,
                custom_translation_table=_translations(captured),
                opset_version=max(opset_version, _LOWEST_EXPORTED), **common,
            )  # fmt: skip
            program.save(str(path), external_data=_is_large(loaded.module))
    except Exception as error:
        raise explain_export_failure(error, label) from error


def _translations(captured: Any) -> dict[Any, Any] | None:
    """How the operators of a model with trained scales are written; None where it has none."""
    quantized = any("quantized_decomposed" in str(node.target) for node in captured.graph.nodes)
    return onnx_translations() if quantized else None


def _lower(path: Path, opset_version: int, label: str) -> None:
    """Bring what was exported to the opset that was asked for, where that is an older one."""
    proto = load_onnx(path)
    if opset(proto) <= opset_version:
        return
    try:
        save_onnx(lower_opset(proto, opset_version), path)
    except UnsupportedOperator as error:
        raise ExportError(
            f"{label}: opset {opset_version} was asked for; the exporter reached {opset(proto)}: "
            f"{error.message}",
            hint=f"give --opset {opset(proto)}; an operator has no older form",
        ) from error


def _finish(path: Path, target: Target) -> None:
    """Complete the Q/DQ of a model that was trained with it."""
    proto = load_onnx(path)
    if any(node.op_type == "QuantizeLinear" for node in proto.graph.node):
        save_onnx(finish_qdq(proto, target), path)


def _capture(module: Any, arguments: Any, keywords: Any, shapes: Any) -> Any:
    torch = import_torch()
    try:
        return torch.export.export(module, arguments, keywords, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        if "onstraints violated" in str(error):
            raise
        try:  # the other tracer takes some models that this one does not
            return torch.export.export(module, arguments, keywords, dynamic_shapes=shapes, strict=True)
        except Exception:
            raise error from None


_LIMITED = re.compile(r"^ *(\w+) = Dim\('\w+', (?:min=\d+, )?max=(\d+)\)$", re.M)
"""PyTorch's advice for an axis of which the model takes no more than so many."""


def _capture_within_limits(loaded: LoadedModel, example: Example) -> Any:
    """Capture the model; an axis that the model itself limits is dynamic up to that limit.

    A table of 512 positions is such a limit: the model raises on 513. Where it takes one more, the limit is
    that of a branch, which would be frozen, and the model is refused.
    """
    arguments, keywords = example.arguments(example.feeds)
    try:
        return _capture(loaded.module, arguments, keywords, _dynamic_shapes(example))
    except Exception as error:
        largest = {name: int(limit) for name, limit in _LIMITED.findall(str(error))}
        if not largest or any(_takes(loaded, example, {n: limit + 1}) for n, limit in largest.items()):
            raise
        return _capture(loaded.module, arguments, keywords, _dynamic_shapes(example, largest))


def _takes(loaded: LoadedModel, example: Example, extents: Mapping[str, int]) -> bool:
    """Whether the original runs with other extents of some axes."""
    shapes = {
        tensor.name: tuple(
            extents.get(tensor.dynamic_axes.get(axis, ""), extent)
            for axis, extent in enumerate(example.feeds[tensor.name].shape)
        )
        for tensor in example.inputs
    }
    try:
        with quiet():
            example.call(loaded.module, made_feeds(example.inputs, shapes=shapes))
    except Exception:  # whatever the model raises is its answer
        return False
    return True


def _dynamic_shapes(example: Example, largest: Mapping[str, int] | None = None) -> Any:
    torch = import_torch()
    dims: dict[str, Any] = {}
    shapes: list[dict[int, Any]] = []
    for tensor in example.inputs:
        axes = {}
        for axis, name in tensor.dynamic_axes.items():
            spelled = name if name != "?" else f"{tensor.name}_{axis}"
            dims.setdefault(name, torch.export.Dim(spelled, max=(largest or {}).get(spelled)))
            axes[axis] = dims[name]
        shapes.append(axes)
    if not any(shapes):
        return None
    if example.by_name:
        return {tensor.name: axes for tensor, axes in zip(example.inputs, shapes, strict=True)}
    return tuple(shapes)


def _is_large(module: Any) -> bool:
    total = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    return bool(total > (1 << 31) - (1 << 26))


def _run_original(loaded: LoadedModel, example: Example, feeds: Feeds, label: str) -> Any:
    try:
        with quiet():
            return example.call(loaded.module, feeds)
    except Exception as error:
        raise ModelError(
            f"{label}: raised {type(error).__name__} on its input: {first_line(error)}",
            hint="check the --input shapes and dtypes against forward()",
        ) from error


def _checks(
    loaded: LoadedModel,
    example: Example,
    path: Path,
    names: Sequence[str],
    data: str | None,
    label: str,
    progress: Progress,
) -> Iterator[Check]:
    yield Check("ONNX checker and shape inference", True, f"opset {opset(load_onnx(path))}")
    session = OnnxReference(path)
    lowest_db = _LOWEST_DB if graph_precision(load_onnx(path)) == "int8" else None

    def pair(feeds: Feeds) -> tuple[Outputs, Outputs]:
        return flat_outputs(_run_original(loaded, example, feeds, label))[1], session(feeds)

    if example.has_dynamic_batch:
        for extent in CHECK_EXTENTS:
            progress(f"compare with PyTorch at batch {extent}")
            yield compare_outputs(
                f"same outputs as PyTorch at batch {extent}", names, [pair(example.resized(extent))],
                lowest_db=lowest_db,
            )  # fmt: skip
    else:
        progress("compare with PyTorch")
        yield compare_outputs("same outputs as PyTorch", names, [pair(example.feeds)], lowest_db=lowest_db)
    if data is not None:
        batch = next(iter(Data(data, example.inputs)))
        yield compare_outputs(
            "same outputs as PyTorch on the data", names, [pair(batch.feeds)], lowest_db=lowest_db
        )


def _require_axes(example: Example, written: Sequence[TensorInfo], label: str) -> None:
    found = {tensor.name: tensor for tensor in written}
    for tensor in example.inputs:
        for axis in tensor.dynamic_axes:
            if tensor.name in found and axis not in found[tensor.name].dynamic_axes:
                raise ExportError(
                    f"{label}: axis {axis} of input {tensor.name!r} cannot be dynamic: the exporter "
                    f"wrote {found[tensor.name]}",
                    hint="the model fixes that axis; leave it out",
                )


def _require(checks: Sequence[Check], label: str) -> None:
    for check in checks:
        if not check.passed:
            raise ModelError(
                f"{label}: the exported file failed '{check.name}': {check.detail}",
                hint="is the model in evaluation mode and free of randomness? "
                "data-dependent Python branches are frozen at export",
            )


def _take_onnx(source: Source, output: Path, data: str | None) -> Artifact:
    """An ONNX file given as MODEL is checked and copied: the road starts from it."""
    proto = load_checked(source.file)
    with writing(output) as path:
        if external_files(source.file, load_onnx(source.file, external_data=False)):
            save_onnx(proto, path)  # the side file gets the new name
        else:
            shutil.copyfile(source.file, path)
        check_onnx(path)
        inputs = model_io(proto).inputs
        feeds = next(iter(Data(data, inputs))).feeds if data else made_feeds(inputs)
        OnnxReference(path)(feeds)
        checks = [
            Check("ONNX checker and shape inference", True, f"opset {opset(proto)}"),
            Check("runs in ONNX Runtime", True, "the data" if data else "one made input"),
        ]
        manifest = commit(path, _manifest(proto, source.spec, opset(proto), checks))
    return Artifact(output, manifest)


def _manifest(proto: Any, label: str, version: int, checks: Sequence[Check]) -> Manifest:
    return Manifest(
        kind="onnx",
        stage="export",
        precision=graph_precision(proto),
        io=model_io(proto),
        tools=tool_versions("torch", "onnx", "onnxscript", "onnxruntime"),
        options={"model": label, "opset": version},
        proof={"operators": count_operators(proto)},
        checks=checks,
    )
