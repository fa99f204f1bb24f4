"""Convert a model to an older or newer opset, and compare its outputs before and after."""

from __future__ import annotations

from pathlib import Path

import onnx

from ...core.artifact import Check
from ...errors import ModelError, UnsupportedOperator, first_line
from ...model.graph.graph import (
    ONNX_DOMAINS,
    every_graph,
    graph_precision,
    opset,
    producers,
    without_weights,
)
from ...model.graph.graph_edits import refill, set_nodes
from ...model.graph.graph_names import Aliases, name_nodes
from ...model.graph.onnx_file import Graph, report_as_defect
from ..check import OnnxReference, compare_outputs, sample_feeds
from .lower import lower_opset

_NOT_COMPARED = "the rewritten graph could not be compared in ONNX Runtime"
_DOMAINS = (*ONNX_DOMAINS, "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft", "com.ms.internal.nhwc")
_LOWEST_DB = 80.0  # minimum SQNR after a rewrite; reordered float32 sums exceed it
_LOWEST_ROUNDED_DB = 30.0  # for graphs of fewer bits: values near the middle of two steps may round to either


def in_older_opset(graph: Graph, highest: int) -> tuple[Graph, list[str]]:
    """Return the graph in opset `highest`, checked and compared; the graph itself if its opset is not newer.

    Args:
        highest: The newest opset that the parser reads: 17 for TensorRT 8.5 and 8.6.

    Returns:
        The graph, and a warning if ONNX Runtime lacks an operator of the graph and cannot compare outputs.

    Raises:
        ModelError: If the checker rejects a graph, or the outputs differ.
    """
    if graph.opset <= highest:
        return graph, []
    lowered, foreign = Graph(lower_opset(graph.load(), highest), graph.path), _foreign_operators(graph.model)
    if not foreign:
        _require_same(graph, lowered, None)
    return lowered, foreign


def _require_same(graph: Graph, converted: Graph, data: str | None) -> None:
    """Raise ModelError if a graph and its conversion differ on samples of `data`; None is random input."""
    reference = OnnxReference(graph)
    feeds = list(sample_feeds(graph.model, data, reference))
    with report_as_defect(graph.path, "another opset"):
        converted_outputs = OnnxReference(converted)
        pairs = [(reference(item), converted_outputs(item)) for item in feeds]
    check = compare_outputs("same outputs as before", reference.names, pairs)
    _require_equal(check, graph.path, "another opset", "if not, export it to that opset")


def _require_equal(check: Check, model: Path, form: str, way: str) -> None:
    if not check.passed:
        raise ModelError(
            f"{model}: its outputs differ in {form}: {check.detail}",
            hint=f"does the model draw random numbers? {way}",
            file=model,
        )


def rewritten_outputs(graph: Graph, rewritten: Graph) -> list[str]:
    """Raise ModelError if a rewrite changes outputs; return a warning if ONNX Runtime cannot compare them."""
    if foreign := _foreign_operators(graph.model):
        return foreign
    try:
        reference = OnnxReference(graph, integers=False)  # the graph itself, without integer kernels
        feeds = list(sample_feeds(graph.model, None, reference))
        before = [reference(item) for item in feeds]
    except ModelError as error:
        return [f"{_NOT_COMPARED}: {error.message}"]
    with report_as_defect(graph.path, "a rewrite"):
        after = OnnxReference(rewritten, integers=False)
        pairs = [(outputs, after(item)) for outputs, item in zip(before, feeds, strict=True)]
    lowest = _LOWEST_DB if graph_precision(graph.model) == "fp32" else _LOWEST_ROUNDED_DB
    check = compare_outputs("same outputs as before", reference.names, pairs, lowest_db=lowest)
    _require_equal(check, graph.path, "other operators", "if not, `ignore_faults` all skips such rewrites")
    return []


def _foreign_operators(model: onnx.ModelProto) -> list[str]:
    """Return a warning that lists operators of domains unknown to ONNX Runtime and the model, if any."""
    defined = {(function.domain, function.name) for function in model.functions}
    nodes = {(node.domain, node.op_type) for graph in every_graph(model.graph) for node in graph.node}
    names = sorted(f"{domain}::{name}" for domain, name in nodes - defined if domain not in _DOMAINS)
    return [f"{_NOT_COMPARED}: it has {', '.join(names)}"] if names else []


def in_newer_opset(graph: Graph, lowest: int, *, data: str | None = None) -> onnx.ModelProto:
    """Return the model in opset `lowest`, compared on `data`; the model itself if its opset is not older."""
    if graph.opset >= lowest:
        return graph.model
    upgraded = graph.copy()
    upgrade_in_place(upgraded.model, lowest)
    _require_same(graph, upgraded, data)
    return upgraded.model


def upgrade_opset(model: onnx.ModelProto, lowest: int) -> onnx.ModelProto:
    """Return the model in opset `lowest`; the model itself if its opset is not older."""
    current = opset(model)
    if current >= lowest:
        return model
    aliases = Aliases(model)  # the converter derives new names from existing ones, and may create duplicates
    try:
        upgraded = onnx.version_converter.convert_version(model, lowest)
        if lost_names := producers(model.graph).keys() - producers(upgraded.graph).keys():
            # The converter renames results of Upsample, except model outputs; calibration uses the old names.
            with_outputs = onnx.ModelProto()
            with_outputs.CopyFrom(model)
            with_outputs.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(lost_names))
            upgraded = onnx.version_converter.convert_version(with_outputs, lowest)
            del upgraded.graph.output[len(model.graph.output) :]
    except Exception as error:  # RuntimeError or ConvertError
        raise UnsupportedOperator(
            f"opset {current} cannot be converted to {lowest}: {aliases.text(first_line(error))}",
            hint=f"export the model again with opset {lowest} or newer",
        ) from error
    finally:
        aliases.undo(model)
    aliases.undo(upgraded)
    name_nodes(upgraded.graph)  # nodes that the converter adds have an empty name
    return upgraded


def upgrade_in_place(model: onnx.ModelProto, lowest: int) -> None:
    """Convert a model to opset `lowest` in place if it is older, without a copy of large weights."""
    if opset(model) < lowest:
        light = without_weights(model)
        small = {tensor.name for tensor in light.graph.initializer}
        upgraded = upgrade_opset(light, lowest)
        stored = model.graph.initializer
        for index in reversed(range(len(stored))):
            if stored[index].name in small:
                del stored[index]
        stored.extend(upgraded.graph.initializer)
        set_nodes(model.graph, upgraded.graph.node)
        refill(model.opset_import, upgraded.opset_import)
    imports = [item for item in model.opset_import if item.domain in ("", "ai.onnx")]
    model.ir_version = max(model.ir_version, onnx.helper.find_min_ir_version_for(imports))
