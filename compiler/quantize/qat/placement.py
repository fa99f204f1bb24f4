"""Placement of fake quantization in a captured PyTorch graph: the rules of `placement` on ATen operators.

    ONNX Runtime, OpenVINO              TensorRT
    x ─ FQ ─ conv ─ bn ─ relu ─ FQ ─┐   x ─ FQ ─ conv ─ bn ─ relu ─┬ FQ ─ conv ─ bn ─ add
                                    │                              └ FQ ─────────────┘ (a residual branch)
      everything reads the rounded ─┘     only what is quantized reads the rounded value

What moves values without changing them (max pooling, reshaping) keeps the scale of what it reads.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ....errors import InvalidOption
from ....spec.words import GraphTarget

if TYPE_CHECKING:
    import onnx
    import torch

_CONVOLUTIONS = frozenset(["conv1d", "conv2d", "conv3d"])
_TRANSPOSED = frozenset(["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"])
WEIGHTED = _CONVOLUTIONS | _TRANSPOSED | {"linear"}
VIEWS = frozenset(
    """
    view reshape flatten slice select permute transpose t squeeze unsqueeze expand detach alias split chunk
    """.split()
)
OPERATOR = "qcompile_operator"
"""Key in a node's `meta` for the operator that a module stands for: batch_norm, dropout."""
_ACTIVATIONS = frozenset(["relu", "relu6", "hardtanh", "clamp", "clamp_min"])
_BETWEEN = _ACTIVATIONS | frozenset(
    """
    add mul cat avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d mean leaky_relu sigmoid
    upsample_bilinear2d
    """.split()
)
_MOVES = frozenset(
    """
    max_pool1d max_pool2d view reshape _unsafe_view flatten permute transpose t squeeze unsqueeze slice select
    contiguous clone expand dropout feature_dropout upsample_nearest2d
    """.split()
)


_FUSED = _ACTIVATIONS | {"batch_norm", "dropout", "leaky_relu", "hardswish", "silu", "sigmoid", "tanh"}


@dataclass
class Spots:
    """The plan.

    Attributes:
        weighted: Nodes whose weight and first operand are rounded.
        results: Nodes whose value every reader gets rounded; to the node whose range it shares, or itself.
        operands: (reader, value) pairs: the reader alone gets the value rounded.
        left_in_float: Name of a weight to the reason why its node is not quantized.
    """

    weighted: list[torch.fx.Node] = field(default_factory=list)
    results: dict[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)
    operands: list[tuple[torch.fx.Node, torch.fx.Node]] = field(default_factory=list)
    left_in_float: dict[str, str] = field(default_factory=dict)


def operator(node: torch.fx.Node) -> str:
    """Return the name of a node's ATen operator without its overload, as `conv2d`; "" for others."""
    name = str(node.target) if node.op == "call_function" else ""
    return name.split(".")[1] if name.startswith("aten.") else str(node.meta.get(OPERATOR, ""))


def weight_axis(node: torch.fx.Node) -> int:
    """Return the axis of the output channels in a weighted node's weight."""
    return 1 if operator(node) in _TRANSPOSED else 0


def as_onnx(node: torch.fx.Node) -> onnx.NodeProto:
    """Return the operator of ONNX that a weighted node becomes, with its group."""
    from onnx import helper

    if operator(node) not in _CONVOLUTIONS | _TRANSPOSED:
        return helper.make_node("Gemm", [], [], transB=1)
    group = node.args[6] if len(node.args) > 6 else 1
    return helper.make_node("ConvTranspose" if operator(node) in _TRANSPOSED else "Conv", [], [], group=group)


def find_spots(graph: torch.fx.Graph, target: GraphTarget, exclude: Sequence[str]) -> Spots:
    """Decide where fake quantization goes.

    Args:
        graph: Captured by `torch.export`, with no operator that changes its operand; weights
            are `get_attr` nodes.
        target: What the model is for.
        exclude: Globs of module or weight names whose nodes stay in float.
    """
    spots = Spots()
    matched: set[str] = set()
    for node in graph.nodes:
        name = operator(node)
        if name in WEIGHTED:
            reason = _unfit(node, target) or _excluded(node, exclude, matched)
            if reason is None:
                _take_weighted(node, target, spots)
            else:
                spots.left_in_float[_weight_name(node)] = reason
        elif target == "tensorrt":
            if name == "add" and _closes_residual(node):
                fused = _fused_operand(node, spots)
                spots.operands += [(node, value) for value in _values(node) if value is not fused]
        elif name in _BETWEEN | _MOVES and _is_integer(node, spots):
            if name in _MOVES:
                source = _values(node)[0]
                spots.results[node] = spots.results[source]
            else:
                end = _end_of_chain(node, norm=False)
                spots.results[end] = end
    missing = [pattern for pattern in exclude if pattern not in matched]
    if missing:
        raise InvalidOption(
            f"exclude {missing[0]!r}: no quantizable weight of that name or glob",
            hint="name modules as in model.named_modules(), such as 'fc' or 'stages.0.*'",
            option="exclude",
        )
    return spots


def _take_weighted(node: torch.fx.Node, target: GraphTarget, spots: Spots) -> None:
    spots.weighted.append(node)
    value = node.all_input_nodes[0]
    if value not in spots.results:
        spots.operands.append((node, value))
    if target != "tensorrt" and operator(node) != "linear":
        end = _end_of_chain(node, norm=True)
        spots.results[end] = end  # a linear layer's kernel writes float for free


def _end_of_chain(node: torch.fx.Node, *, norm: bool) -> torch.fx.Node:
    """The last node that is fused into this one: one BatchNorm if it may be, and ReLU and its like."""
    while len(node.users) == 1:
        reader = next(iter(node.users))
        folded = norm and operator(reader) == "batch_norm" and reader.args[0] is node
        if not folded and operator(reader) not in _ACTIVATIONS:
            break
        node, norm = reader, False
    return node


def _is_integer(node: torch.fx.Node, spots: Spots) -> bool:
    """Whether all that the node computes with is made by integer kernels."""
    values = _values(node)
    if operator(node) in ("add", "mul") and len(values) != 2:
        return False  # a stored number; a float operation
    return bool(values) and node not in spots.results and all(value in spots.results for value in values)


def _values(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The operands that are tensors of floats; extents of axes are not."""
    if operator(node) in _MOVES:
        return node.all_input_nodes[:1]
    return [value for value in node.all_input_nodes if not operator(value).startswith("sym_")]


def _unfit(node: torch.fx.Node, target: GraphTarget) -> str | None:
    name, weight = operator(node), node.args[1]
    if name in _TRANSPOSED and target == "onnxruntime":
        return "onnxruntime has no integer kernel for it"
    if name in _TRANSPOSED and len(node.args) > 6 and node.args[6] != 1:
        return "its weight has groups; scales per channel need one"
    if getattr(weight, "op", "") != "get_attr":
        return "its weight is computed at run time"
    return None


def _excluded(node: torch.fx.Node, exclude: Sequence[str], matched: set[str]) -> str | None:
    name = _weight_name(node)
    module = name.rpartition(".")[0]
    hits = [
        pattern
        for pattern in exclude
        if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(module, pattern)
    ]
    matched.update(hits)
    return f"excluded by {hits[0]!r}" if hits else None


def _weight_name(node: torch.fx.Node) -> str:
    return str(getattr(node.args[1], "target", node.args[1]))


def _closes_residual(node: torch.fx.Node) -> bool:
    """Whether `int8.tensorrt` plans it: of two activations, a convolution makes one and begins no other."""
    values = [value for value in _values(node) if value.op != "get_attr"]
    if len(values) != 2:
        return False
    first, second = (_convolution(value) for value in values)
    if first is not None and second is not None:
        return True
    made, other = (first, values[1]) if first is not None else (second, values[0])
    return made is not None and made not in _branch(other)


def _fused_operand(node: torch.fx.Node, spots: Spots) -> torch.fx.Node | None:
    """The operand that its convolution's kernel adds to, by the rules of `int8.tensorrt`."""
    fusible = []
    for value in _values(node):
        convolution = _convolution(value)
        if convolution in spots.weighted and _is_read_once(value, convolution):
            fusible.append(value)
    if len(fusible) < 2:
        return fusible[0] if fusible else None
    first, second = (_branch(value) for value in fusible)
    return fusible[0] if len(first - second) > len(second - first) else fusible[1]


def _convolution(node: torch.fx.Node) -> torch.fx.Node | None:
    """The convolution that makes a value, through what is fused with it."""
    while operator(node) in _FUSED:
        node = node.all_input_nodes[0]
    return node if operator(node) in _CONVOLUTIONS | _TRANSPOSED else None


def _is_read_once(node: torch.fx.Node, convolution: torch.fx.Node | None) -> bool:
    """Whether nothing else reads a value, nor what lies between it and its convolution."""
    while node is not convolution and len(node.users) == 1:
        node = node.all_input_nodes[0]
    return len(node.users) == 1


def _branch(node: torch.fx.Node) -> set[torch.fx.Node]:
    """The nodes that a value is computed by, its own among them."""
    seen, ahead = set[Any](), [node]
    while ahead:
        node = ahead.pop()
        if node not in seen and node.op != "get_attr":
            seen.add(node)
            ahead += node.all_input_nodes
    return seen
