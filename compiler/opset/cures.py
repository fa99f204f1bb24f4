"""Registry of the graphs that runtimes are known to compute wrongly: what finds them, and what rewrites them.

The names are those of the engine's table of known faults, which says what holds for which version.

Patterns of nodes that have no rewrite:

Resize ← Transpose ← If
MatMul ─ (Mul, Add, ...) ─ Softmax ─ MatMul     an attention; an operand may be a transposed input
  keys ← MatMul ← LayerNormalization ← Transpose ← Reshape ← Conv (stride = kernel) ← Reshape     SegFormer
  operand ← Concat ← Add ← two Mul     rotated but for the first tokens, as in DINOv3
Add ← Mul ← ... ← Sub (x, ReduceMin (x))     Add reads ReduceMin (x) again: normalized, and back
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...model.graph import attribute, constant_names, consumers, every_graph, producers
from . import exact_forms as exact
from . import fusions_apart as apart
from . import grid_samples as samples
from .rewrites import group_normalization, slice_shape
from .scope import Cure, Finder, Rewrite, find_nodes, node_name, reached, rewriting

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class FaultyGraph:
    """A known fault, as the graph shows it.

    Attributes:
        find: Returns the names of the nodes that are affected.
        cure: Rewrites them in place, as far as it can; None where there is no rewrite.
        quantized: Whether only a quantized graph shows it, which is then what is compared.
    """

    find: Finder
    cure: Cure | None = None
    quantized: bool = False


_SAME = ("Identity", "Cast")
_SCALING = frozenset("Mul Div Add Sub Where Cast Identity".split())
_PLACES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze")
_SCALES = ("Mul", "Div")
_PROJECTIONS = ("MatMul", "Gemm", "Add", "LayerNormalization")
_TO_VALUES = frozenset("Cast Identity Dropout Where".split())


def find_reducing_scatters(model: onnx.ModelProto) -> list[str]:
    """Return ScatterElements and ScatterND nodes that combine what is there with what comes."""
    scatters = ("ScatterElements", "ScatterND")
    return find_nodes(model, scatters, lambda node: attribute(node, "reduction", "none") != "none")


def find_resizes_behind_if(model: onnx.ModelProto) -> list[str]:
    """Return Resizes of a transposed result of an If."""
    names = []
    for graph in every_graph(model.graph):
        made_by = producers(graph)
        for node in graph.node:
            if node.op_type == "Resize":
                turned = _behind(made_by.get(node.input[0]), made_by, _SAME)
                if turned is not None and turned.op_type == "Transpose":
                    source = _behind(made_by.get(turned.input[0]), made_by, _SAME)
                    names += [node_name(node)] * (source is not None and source.op_type == "If")
    return names


def find_attention(model: onnx.ModelProto) -> list[str]:
    """Return the first MatMul of each attention."""
    return [node_name(first) for first, _ in _attentions(model)]


def find_attention_of_transposed_inputs(model: onnx.ModelProto) -> list[str]:
    """Return MatMuls of an attention of which an operand is a transposed input of the model."""
    made_by, fed = producers(model.graph), {value.name for value in model.graph.input}
    stored = {tensor.name for tensor in model.graph.initializer}
    names = []
    for pair in _attentions(model):
        for node in pair:
            for operand in node.input:
                turned = _behind(made_by.get(operand), made_by, _SAME)
                if turned is not None and turned.op_type == "Transpose" and turned.input[0] in fed - stored:
                    names.append(node_name(node))
    return list(dict.fromkeys(names))


def find_reduced_keys(model: onnx.ModelProto) -> list[str]:
    """Return the first MatMul of attentions whose keys a strided convolution reduced, but of batch 1."""
    batch = model.graph.input[0].type.tensor_type.shape.dim[:1] if model.graph.input else ()
    if [dim.dim_value for dim in batch] == [1]:
        return []
    made_by, constants = producers(model.graph), constant_names(model)

    def reduced(operand: str) -> bool:
        node = _operand(operand, made_by, constants, (*_SAME, *_PLACES, *_SCALES, *_PROJECTIONS))
        if node is None or node.op_type != "Conv":
            return False
        strides = list(attribute(node, "strides", []))
        tokens = _behind(made_by.get(node.input[0]), made_by, (*_SAME, "Transpose"))
        folds = max(strides, default=1) > 1 and strides == list(attribute(node, "kernel_shape", []))
        return folds and tokens is not None and tokens.op_type == "Reshape"

    return [node_name(first) for first, _ in _attentions(model) if any(map(reduced, first.input))]


def find_partly_rotated(model: onnx.ModelProto) -> list[str]:
    """Return the first MatMul of attentions that rotate queries or keys but for the first tokens."""
    made_by, constants = producers(model.graph), constant_names(model)

    def sums(name: str) -> bool:
        node = made_by.get(name)
        terms = [made_by.get(term) for term in node.input] if node and node.op_type == "Add" else [None]
        return all(term is not None and term.op_type == "Mul" for term in terms)

    def rotated(operand: str) -> bool:
        node = _operand(operand, made_by, constants, (*_SAME, *_PLACES, *_SCALES))
        if node is None or node.op_type != "Concat":
            return False
        return len({sums(name) for name in node.input}) > 1

    return [node_name(first) for first, _ in _attentions(model) if any(map(rotated, first.input))]


def find_normalized_and_back(model: onnx.ModelProto) -> list[str]:
    """Return ReduceMin of what a ReduceMax reads too, where a Sub reads the minimum, and an Add again."""
    read_by = consumers(model.graph)

    def fits(node: onnx.NodeProto) -> bool:
        beside = {reader.op_type for reader in read_by[node.input[0]]}
        behind = reached(node.output[0], read_by, (*_SAME, *_PLACES, "Expand"))
        return "ReduceMax" in beside and {"Sub", "Add"} <= {reader.op_type for reader in behind}

    return [node_name(node) for node in model.graph.node if node.op_type == "ReduceMin" and fits(node)]


def find_dynamic_inputs(model: onnx.ModelProto) -> list[str]:
    """Return the inputs with a dynamic axis."""
    shapes = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    return [name for name, dims in shapes.items() if not all(dim.HasField("dim_value") for dim in dims)]


def _operand(
    name: str, made_by: dict[str, onnx.NodeProto], constants: set[str], passed: tuple[str, ...]
) -> onnx.NodeProto | None:
    """The nearest node above that is none of those passed, each of which has one operand that varies."""
    while (node := made_by.get(name)) is not None and node.op_type in passed:
        varying = [operand for operand in node.input if operand not in constants]
        if node.op_type in _PLACES:  # a shape may be computed
            varying = varying[:1]
        if len(varying) != 1:
            return None
        name = varying[0]
    return node


def _attentions(model: onnx.ModelProto) -> list[tuple[onnx.NodeProto, onnx.NodeProto]]:
    """The two MatMuls of each attention of the model's own graph."""
    made_by, read_by = producers(model.graph), consumers(model.graph)
    pairs = []
    for node in model.graph.node:
        if node.op_type != "Softmax":
            continue
        first = _upwards(node.input[0], made_by)
        behind = reached(node.output[0], read_by, _TO_VALUES)
        second = next((reader for reader in behind if reader.op_type == "MatMul"), None)
        if first is not None and second is not None:
            pairs.append((first, second))
    return pairs


def _upwards(name: str, made_by: dict[str, onnx.NodeProto]) -> onnx.NodeProto | None:
    waiting = [name]
    while waiting:
        node = made_by.get(waiting.pop())
        if node is not None and node.op_type == "MatMul":
            return node
        if node is not None and node.op_type in _SCALING:
            waiting.extend(reversed(node.input))
    return None


def _behind(
    node: onnx.NodeProto | None, made_by: dict[str, onnx.NodeProto], skipped: tuple[str, ...]
) -> onnx.NodeProto | None:
    """The nearest node above that is none of the skipped operators."""
    while node is not None and node.op_type in skipped:
        node = made_by.get(node.input[0])
    return node


def _rewritten(find: Finder, rewrite: Rewrite, *, quantized: bool = False) -> FaultyGraph:
    return FaultyGraph(find, rewriting(find, rewrite), quantized)


FAULTY_GRAPHS: Mapping[str, FaultyGraph] = {
    # A rewrite that leaves no node of its kind comes before one that only renames.
    "deformable-attention": FaultyGraph(samples.find_deformable_attention, samples.samples_to_gathers),
    "grid-sample-mode": FaultyGraph(samples.find_renamed_modes, samples.modes_left_out),
    "cumsum-axes": FaultyGraph(exact.find_mixed_cumsums, exact.cumsums_to_products),
    "mod-by-float": _rewritten(exact.find_integer_mods, exact.exact_mod),
    "group-norm-of-one": _rewritten(exact.find_one_group, group_normalization),
    "recurrent-layout": _rewritten(exact.find_batch_first, exact.time_first),
    "requantized-layer": FaultyGraph(exact.find_requantized, exact.keep_layers_apart),
    "reduced-axes": _rewritten(exact.find_reduced_axes, exact.by_sum),
    "quantized-extremum": _rewritten(apart.find_quantized_extrema, apart.with_max, quantized=True),
    "merged-bias": _rewritten(apart.find_merged_biases, apart.with_max, quantized=True),
    "moved-scale": _rewritten(apart.find_moved_scales, apart.with_max, quantized=True),
    "shape-slice": _rewritten(exact.find_sliced_shapes, slice_shape),
    "scatter-reduction": FaultyGraph(find_reducing_scatters),
    "resize-behind-if": FaultyGraph(find_resizes_behind_if),
    "transposed-input-attention": FaultyGraph(find_attention_of_transposed_inputs),
    "fused-attention-sm120": FaultyGraph(find_attention),
    "batched-reduced-keys": FaultyGraph(find_reduced_keys),
    "partly-rotated-attention": FaultyGraph(find_partly_rotated),
    "normalized-and-back": FaultyGraph(find_normalized_and_back),
    "several-profiles": FaultyGraph(find_dynamic_inputs),
}
