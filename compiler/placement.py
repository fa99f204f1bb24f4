"""Where Q/DQ goes: which nodes are quantized for which target, and why the others are not.

The target decides. ONNX Runtime on x86 with VNNI multiplies uint8 activations by int8 weights and adds
int32 bias; symmetric int8 activations are slower there than float. TensorRT wants symmetric int8 with
zero_point 0, float bias, Q/DQ in front of the layers that can use it, and on both inputs of the adds
that close a residual branch.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..errors import InvalidOption
from ..model.graph import WEIGHTED, constant_names, producers

if TYPE_CHECKING:
    import onnx

Target = Literal["onnxruntime", "tensorrt"]
TARGETS: tuple[Target, ...] = ("onnxruntime", "tensorrt")

# Operators for which ONNX Runtime's CPU provider has a kernel that reads and writes uint8 (or that only
# moves data). Softmax and normalizations stay in float: eight bits are too few for their outputs.
_ONNXRUNTIME = frozenset(
    """
    Conv MatMul Gemm Add Mul MaxPool AveragePool GlobalAveragePool Concat LeakyRelu Sigmoid Relu
    Clip Reshape Transpose Squeeze Unsqueeze Flatten Split Resize Gather Where
    """.split()
)
_TENSORRT = frozenset(["Conv", "ConvTranspose", "MatMul", "Gemm", "Add"])
_TRANSPARENT = frozenset(["Relu", "Clip", "BatchNormalization", "Identity", "Dropout", "LeakyRelu"])


@dataclass(frozen=True)
class Placement:
    """The plan of one quantization.

    Attributes:
        target: What it is for.
        nodes: Names of the nodes to quantize.
        left_in_float: Name to reason, for nodes of weighted operators that are not quantized.
    """

    target: Target
    nodes: tuple[str, ...]
    left_in_float: Mapping[str, str]


def plan(model: onnx.ModelProto, target: Target, *, exclude: Iterable[str] = ()) -> Placement:
    """Decide which nodes of a prepared model are quantized.

    Args:
        model: From `prepare.prepared`.
        target: What the result is for.
        exclude: Names, globs (`/head/*`) or operator types of nodes that stay in float.

    Raises:
        InvalidOption: If a pattern matches nothing, or the target is unknown.
    """
    if target not in TARGETS:
        raise InvalidOption(f"target {target!r} is unknown; known are {', '.join(TARGETS)}")
    excluded = matching(model.graph, exclude)
    constants = constant_names(model)
    stored = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    shared = _read_elsewhere(model.graph)
    made_by = producers(model.graph)
    operators = _ONNXRUNTIME if target == "onnxruntime" else _TENSORRT
    nodes, left = [], {}
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in operators | WEIGHTED:
            continue
        if node.op_type in ("Relu", "Clip") and node.input[0] in shared:
            continue  # it would be folded into its producer, whose own value is read elsewhere
        reason = excluded.get(node.name)
        if node.op_type not in operators:
            reason = reason or f"{target} has no integer kernel for {node.op_type}"
        reason = reason or _unfit(node, target, constants, stored, made_by)
        if reason is None:
            nodes.append(node.name)
        elif node.op_type in WEIGHTED:
            left[node.name] = reason
    return Placement(target, tuple(nodes), left)


def scaled_tensors(model: onnx.ModelProto, placement: Placement) -> set[str]:
    """Return the names of all tensors that a planned node reads or makes: those that may get a scale."""
    planned = set(placement.nodes)
    nodes = [node for node in model.graph.node if node.name in planned]
    return {name for node in nodes for name in (*node.input, *node.output) if name}


def _unfit(
    node: onnx.NodeProto,
    target: Target,
    constants: set[str],
    stored: Mapping[str, int],
    made_by: Mapping[str, onnx.NodeProto],
) -> str | None:
    """The reason why a node stays in float; None when it is quantized."""
    activations = [name for name in node.input if name and name not in constants]
    if not activations:
        return "all its inputs are constant"
    if node.op_type in ("Conv", "ConvTranspose") and node.input[1] not in constants:
        return "its weight is computed at run time"
    if node.op_type in WEIGHTED and node.input[1] in constants:
        if node.input[1] not in stored:
            return "its weight is made by nodes; simplify folds them"
        if node.op_type == "MatMul" and stored[node.input[1]] != 2:
            return f"its weight has {stored[node.input[1]]} axes; scales per channel need 2"
    if node.op_type == "Gemm" and len(node.input) > 2 and stored.get(node.input[2], 1) != 1:
        return "its bias is not one value per channel"
    if target == "tensorrt" and node.op_type == "Add":
        return None if _closes_residual(activations, made_by) else "not the add of a residual branch"
    if node.op_type == "MatMul" and node.input[0] in constants:
        return "its constant is the left operand"
    if node.op_type in ("Add", "Mul", "Where") and len(activations) < 2:
        # A constant operand's own scale costs a requantization and gains nothing.
        return "one operand is constant"
    return None


def _read_elsewhere(graph: onnx.GraphProto) -> set[str]:
    """Tensors that more than one node reads, or that are outputs of the model."""
    read = Counter(name for node in graph.node for name in node.input)
    return {name for name, count in read.items() if count > 1} | {v.name for v in graph.output}


def _closes_residual(activations: list[str], made_by: Mapping[str, onnx.NodeProto]) -> bool:
    """Two activations meet, and at least one comes from a convolution (through Relu and its like)."""
    return len(activations) == 2 and any(_from_convolution(name, made_by) for name in activations)


def _from_convolution(name: str, made_by: Mapping[str, onnx.NodeProto]) -> bool:
    node = made_by.get(name)
    while node is not None and node.op_type in _TRANSPARENT:
        node = made_by.get(node.input[0])
    return node is not None and node.op_type in ("Conv", "ConvTranspose")


def matching(graph: onnx.GraphProto, patterns: Iterable[str]) -> dict[str, str]:
    """Return name to reason for the nodes that names, globs or operator types exclude.

    Raises:
        InvalidOption: If a pattern matches nothing.
    """
    found: dict[str, str] = {}
    for pattern in patterns:
        hits = [
            node.name
            for node in graph.node
            if node.op_type == pattern or fnmatch.fnmatchcase(node.name, pattern)
        ]
        if not hits:
            raise InvalidOption(
                f"--exclude {pattern!r}: no node of that name, glob or operator type",
                hint="qcompile inspect MODEL --nodes lists them",
                option="--exclude",
            )
        found.update(dict.fromkeys(hits, f"excluded by {pattern!r}"))
    return found
