"""Bring a model or a file to another opset, older or newer, and compare it with what it was."""

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
from ...model.graph.onnx_file import Graph, written_here
from ..check import OnnxReference, compare_outputs, sample_feeds
from .lower import lower_opset

_NOT_COMPARED = "what was rewritten could not be compared in ONNX Runtime"
_DOMAINS = (*ONNX_DOMAINS, "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft", "com.ms.internal.nhwc")
_LOWEST_DB = 80.0  # of what is rewritten in other operators: float32 sums in another order keep it
_LOWEST_ROUNDED_DB = 30.0  # of a graph that rounds to fewer bits, where a value may go either way


def in_older_opset(graph: Graph, highest: int) -> tuple[Graph, list[str]]:
    """Return the graph in opset `highest`, or itself where it is no newer, after it was checked and compared.

    Args:
        highest: The newest opset that the reader knows: 17 for TensorRT 8.5 and 8.6.

    Returns:
        The graph, and warnings: with operators that ONNX Runtime does not have it is not compared.

    Raises:
        ModelError: If the checker refuses either graph, or they do not compute the same.
    """
    if graph.opset <= highest:
        return graph, []
    lowered, foreign = Graph(lower_opset(graph.load(), highest), graph.path), _foreign(graph.model)
    if not foreign:
        _require_same(graph, lowered, None)
    return lowered, foreign


def _require_same(graph: Graph, converted: Graph, data: str | None) -> None:
    """Compare a graph with the same in another opset, on samples or random input."""
    reference = OnnxReference(graph)
    feeds = list(sample_feeds(graph.model, data, reference))
    with written_here(graph.path, "another opset"):
        converted_outputs = OnnxReference(converted)
        pairs = [(reference(item), converted_outputs(item)) for item in feeds]
    check = compare_outputs("same outputs as before", reference.names, pairs)
    _require_equal(check, graph.path, "another opset", "otherwise export it to that opset")


def _require_equal(check: Check, model: Path, form: str, way: str) -> None:
    if not check.passed:
        raise ModelError(
            f"{model}: in {form} it computes something else: {check.detail}",
            hint=f"is the model free of randomness? {way}",
            file=model,
        )


def rewritten_outputs(graph: Graph, rewritten: Graph) -> list[str]:
    """Compare a graph with the same in other operators; say so where ONNX Runtime refuses the graph."""
    if foreign := _foreign(graph.model):
        return foreign
    try:
        reference = OnnxReference(graph, integers=False)  # what the graph says, not what kernels make of it
        feeds = list(sample_feeds(graph.model, None, reference))
        before = [reference(item) for item in feeds]
    except ModelError as error:
        return [f"{_NOT_COMPARED}: {error.message}"]
    with written_here(graph.path, "a rewrite"):
        after = OnnxReference(rewritten, integers=False)
        pairs = [(outputs, after(item)) for outputs, item in zip(before, feeds, strict=True)]
    lowest = _LOWEST_DB if graph_precision(graph.model) == "fp32" else _LOWEST_ROUNDED_DB
    check = compare_outputs("same outputs as before", reference.names, pairs, lowest_db=lowest)
    _require_equal(check, graph.path, "other operators", "`ignore_faults` all leaves known faults alone")
    return []


def _foreign(model: onnx.ModelProto) -> list[str]:
    """The warning that names what neither ONNX Runtime has nor the model defines, if there is any."""
    defined = {(function.domain, function.name) for function in model.functions}
    nodes = {(node.domain, node.op_type) for graph in every_graph(model.graph) for node in graph.node}
    names = sorted(f"{domain}::{name}" for domain, name in nodes - defined if domain not in _DOMAINS)
    return [f"{_NOT_COMPARED}: it has {', '.join(names)}"] if names else []


def in_newer_opset(graph: Graph, lowest: int, *, data: str | None = None) -> onnx.ModelProto:
    """Return the model in opset `lowest` or newer; itself where it is no older."""
    if graph.opset >= lowest:
        return graph.model
    raised = graph.copy()
    upgrade_in_place(raised.model, lowest)
    _require_same(graph, raised, data)
    return raised.model


def upgrade_opset(model: onnx.ModelProto, lowest: int) -> onnx.ModelProto:
    """Return the model in opset `lowest` or newer."""
    current = opset(model)
    if current >= lowest:
        return model
    aliases = Aliases(model)  # the converter makes names of those that are there, without a look at them
    try:
        raised = onnx.version_converter.convert_version(model, lowest)
        if lost := producers(model.graph).keys() - producers(raised.graph).keys():
            # The converter gives results of Upsample other names, but for outputs, which calibration knows.
            returned = onnx.ModelProto()
            returned.CopyFrom(model)
            returned.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(lost))
            raised = onnx.version_converter.convert_version(returned, lowest)
            del raised.graph.output[len(model.graph.output) :]
    except Exception as error:  # RuntimeError and ConvertError, by the converter's mood
        raise UnsupportedOperator(
            f"opset {current} cannot be converted to {lowest}: {aliases.text(first_line(error))}",
            hint=f"export the model again with opset {lowest} or newer",
        ) from error
    finally:
        aliases.undo(model)
    aliases.undo(raised)
    name_nodes(raised.graph)  # its own have no names
    return raised


def upgrade_in_place(model: onnx.ModelProto, lowest: int) -> None:
    """Bring a model to opset `lowest` where it is older; large weights are not copied."""
    if opset(model) < lowest:
        light = without_weights(model)
        small = {tensor.name for tensor in light.graph.initializer}
        raised = upgrade_opset(light, lowest)
        stored = model.graph.initializer
        for index in reversed(range(len(stored))):
            if stored[index].name in small:
                del stored[index]
        stored.extend(raised.graph.initializer)
        set_nodes(model.graph, raised.graph.node)
        refill(model.opset_import, raised.opset_import)
    known = [item for item in model.opset_import if item.domain in ("", "ai.onnx")]
    model.ir_version = max(model.ir_version, onnx.helper.find_min_ir_version_for(known))
