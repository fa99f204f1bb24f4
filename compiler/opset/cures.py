"""Registry of the graphs that runtimes compute wrongly: how to find each of them, and how to rewrite it.

The keys are the names in the runtimes' tables `KNOWN_FAULTS`, which list the affected versions. Patterns
without a rewrite:

Resize ← Transpose ← If
MatMul ─ (Mul, Add, ...) ─ Softmax ─ MatMul     attention; an operand may be a transposed input
  keys ← MatMul ← LayerNormalization ← Transpose ← Reshape ← Conv (stride = kernel) ← Reshape     SegFormer
  operand ← Concat ← Add ← two Mul     rotary embedding of all but the first tokens, as in DINOv3
Add ← Mul ← ... ← Sub (x, ReduceMin (x))     Add reads ReduceMin (x) again: normalization and its inverse
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx

from ...model.graph.graph import attribute, constant_names, consumers, opset, producers
from . import exact_forms as exact
from .fusions import (
    find_gathered_scales,
    find_merged_biases,
    find_moved_scales,
    find_quantized_extrema,
    find_quantized_factors,
    find_reduced_channels,
    find_reduced_scales,
    find_shifted_counts,
    with_max,
)
from .rewrites import group_normalization, slice_shape
from .scatter_forms import reduces
from .scope import (
    PLACES,
    SAME,
    Links,
    NodeQuery,
    Replace,
    find_producer_chain,
    iterate_consumers,
    nearest_producer,
    node_name,
    node_query,
    replace_nodes,
)


@dataclass(frozen=True)
class FaultyGraph:
    """How to find the nodes that a known fault affects, and how to rewrite them.

    Attributes:
        rewrite: Rewrites the affected nodes in place where possible; None if the fault has no rewrite.
        quantized: Whether the fault needs a quantized graph. If so, the rewrite is compared on that graph.
    """

    find: NodeQuery
    rewrite: Callable[[onnx.ModelProto], object] | None = None
    quantized: bool = False


_SCALING = frozenset("Mul Div Add Sub Where Cast Identity".split())
_SCALES = ("Mul", "Div")
_PROJECTIONS = ("MatMul", "Gemm", "Add", "LayerNormalization")
_TO_VALUES = frozenset("Cast Identity Dropout Where".split())


@node_query("Resize")
def find_resizes_behind_if(node: onnx.NodeProto, links: Links) -> object:
    """Match a Resize of a transposed output of an If."""
    return find_producer_chain(node.input[0], links.producers, "Transpose", "If")


def find_attention(model: onnx.ModelProto) -> list[str]:
    """Return the first MatMul of each attention."""
    return [node_name(first) for first, _ in _attentions(model)]


def find_attention_of_transposed_inputs(model: onnx.ModelProto) -> list[str]:
    """Return the MatMuls of attentions that read a transposed input of the model."""
    made_by, input_names = producers(model.graph), {value.name for value in model.graph.input}
    input_names -= {tensor.name for tensor in model.graph.initializer}

    def matches(operand: str) -> bool:
        node = find_producer_chain(operand, made_by, "Transpose")
        return node is not None and node.input[0] in input_names

    names = [node_name(node) for pair in _attentions(model) for node in pair if any(map(matches, node.input))]
    return list(dict.fromkeys(names))


def find_reduced_keys(model: onnx.ModelProto) -> list[str]:
    """Return the first MatMul of attentions with keys from a strided convolution; none for a batch of 1."""
    batch = model.graph.input[0].type.tensor_type.shape.dim[:1] if model.graph.input else ()
    if [dim.dim_value for dim in batch] == [1]:
        return []
    made_by, constants = producers(model.graph), constant_names(model)

    def is_reduced(operand: str) -> bool:
        node = nearest_producer(operand, made_by, (*SAME, *PLACES, *_SCALES, *_PROJECTIONS), constants)
        if node is None or node.op_type != "Conv":
            return False
        strides = list(attribute(node, "strides", []))
        tokens = nearest_producer(node.input[0], made_by, (*SAME, "Transpose"))
        is_patching = max(strides, default=1) > 1 and strides == list(attribute(node, "kernel_shape", []))
        return is_patching and tokens is not None and tokens.op_type == "Reshape"

    return [node_name(first) for first, _ in _attentions(model) if any(map(is_reduced, first.input))]


def find_partly_rotated(model: onnx.ModelProto) -> list[str]:
    """Return the first MatMul of attentions that rotate queries or keys except for the first tokens."""
    made_by, constants = producers(model.graph), constant_names(model)

    def is_rotated(name: str) -> bool:
        node = made_by.get(name)
        terms = [made_by.get(term) for term in node.input] if node and node.op_type == "Add" else [None]
        return all(term is not None and term.op_type == "Mul" for term in terms)

    def is_partly_rotated(operand: str) -> bool:
        node = nearest_producer(operand, made_by, (*SAME, *PLACES, *_SCALES), constants)
        return node is not None and node.op_type == "Concat" and len({*map(is_rotated, node.input)}) > 1

    return [node_name(first) for first, _ in _attentions(model) if any(map(is_partly_rotated, first.input))]


def find_normalized_and_back(model: onnx.ModelProto) -> list[str]:
    """Return the ReduceMins followed by a Sub and an Add, if a ReduceMax reads the same input."""
    read_by = consumers(model.graph)

    def fits(node: onnx.NodeProto) -> bool:
        siblings = {reader.op_type for reader in read_by[node.input[0]]}
        downstream = iterate_consumers(node.output[0], read_by, (*SAME, *PLACES, "Expand"))
        return "ReduceMax" in siblings and {"Sub", "Add"} <= {reader.op_type for reader in downstream}

    return [node_name(node) for node in model.graph.node if node.op_type == "ReduceMin" and fits(node)]


def find_dynamic_inputs(model: onnx.ModelProto) -> list[str]:
    """Return the inputs with a dynamic axis."""
    shapes = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    return [name for name, dims in shapes.items() if not all(dim.HasField("dim_value") for dim in dims)]


def _attentions(model: onnx.ModelProto) -> list[tuple[onnx.NodeProto, onnx.NodeProto]]:
    """Return the two MatMuls of each attention in the main graph."""
    made_by, read_by = producers(model.graph), consumers(model.graph)
    pairs = []
    for node in model.graph.node:
        if node.op_type == "Softmax":
            pending, first = [node.input[0]], None
            while pending and first is None:
                producer = made_by.get(pending.pop())
                if producer is not None and producer.op_type == "MatMul":
                    first = producer
                elif producer is not None and producer.op_type in _SCALING:
                    pending.extend(reversed(producer.input))
            downstream = iterate_consumers(node.output[0], read_by, _TO_VALUES)
            second = next((reader for reader in downstream if reader.op_type == "MatMul"), None)
            if first is not None and second is not None:
                pairs.append((first, second))
    return pairs


def _with_rewrite(find: NodeQuery, rewrite: Replace, *, quantized: bool = False) -> FaultyGraph:
    def cure(model: onnx.ModelProto) -> None:
        if names := set(find(model)):
            replace_nodes(
                model,
                opset(model),
                lambda node, scope: rewrite(node, scope) if node_name(node) in names else None,
            )

    return FaultyGraph(find, cure, quantized)


FAULTY_GRAPHS: Mapping[str, FaultyGraph] = {
    # A rewrite that removes the GridSample comes before the rewrite that only drops its mode.
    "deformable-attention": _with_rewrite(exact.find_deformable_attention, exact.gathered_corners),
    "grid-sample-mode": _with_rewrite(exact.find_renamed_modes, exact.mode_left_out),
    "cumsum-axes": _with_rewrite(exact.find_mixed_cumsums, exact.cumsum_by_product),
    "mod-by-float": _with_rewrite(exact.find_integer_mods, exact.exact_mod),
    "group-norm-of-one": _with_rewrite(
        node_query("GroupNormalization")(lambda node, _: attribute(node, "num_groups") == 1),
        group_normalization,
    ),
    "recurrent-layout": _with_rewrite(
        node_query("LSTM GRU RNN")(lambda node, _: attribute(node, "layout", 0) == 1), exact.time_first
    ),
    "requantized-layer": FaultyGraph(exact.find_requantized, exact.keep_layers_apart),
    "reduced-axes": _with_rewrite(exact.find_reduced_axes, exact.by_sum),
    "quantized-extremum": _with_rewrite(find_quantized_extrema, with_max, quantized=True),
    "reduced-channels": _with_rewrite(find_reduced_channels, with_max, quantized=True),
    "quantized-factors": _with_rewrite(find_quantized_factors, with_max, quantized=True),
    "merged-bias": _with_rewrite(find_merged_biases, with_max, quantized=True),
    "moved-scale": _with_rewrite(find_moved_scales, with_max, quantized=True),
    "gathered-scale": _with_rewrite(find_gathered_scales, with_max, quantized=True),
    "shifted-count": _with_rewrite(find_shifted_counts, with_max),
    "reduced-scale": _with_rewrite(find_reduced_scales, with_max, quantized=True),
    "shape-slice": _with_rewrite(
        node_query("Shape")(
            lambda node, _: attribute(node, "start", 0) or attribute(node, "end") is not None
        ),
        slice_shape,
    ),
    "scatter-reduction": FaultyGraph(node_query("ScatterElements ScatterND")(lambda node, _: reduces(node))),
    "resize-behind-if": FaultyGraph(find_resizes_behind_if),
    "transposed-input-attention": FaultyGraph(find_attention_of_transposed_inputs),
    "fused-attention-sm120": FaultyGraph(find_attention),
    "batched-reduced-keys": FaultyGraph(find_reduced_keys),
    "partly-rotated-attention": FaultyGraph(find_partly_rotated),
    "normalized-and-back": FaultyGraph(find_normalized_and_back),
    "several-profiles": FaultyGraph(find_dynamic_inputs),
}
