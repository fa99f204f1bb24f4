"""Placement of Q/DQ: the nodes to quantize for a target, and the reason for each other node.

The target's rules decide (`model.graph.graph_rules`).

- ONNX Runtime on x86 with VNNI multiplies uint8 activations by int8 weights and adds int32 bias; symmetric
  int8 activations are slower there than float. A product of a stored weight writes float for free, so
  what follows it stays in float; a product of two activations (attention) is faster in float.
- TensorRT wants symmetric int8 with zero_point 0, float bias, and Q/DQ where `tensorrt` says.

What lies between convolutions (adds, pools, concatenations) is quantized where all that it reads is made
by integer kernels anyway: elsewhere it would cost a conversion and precision, and gain nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx

from ....model.graph.graph import WEIGHTED, constant_names, consumers, dtype_name
from ....model.graph.graph_rules import GraphRules, graph_rules
from ....spec.words import GraphTarget
from ..prepare import products_of_places
from ..request import match_nodes
from .rewrites import is_table, unfit_for_float8
from .tensorrt import Between, ResidualAdds, TensorRTKernels

# Operators for which a CPU runtime has a kernel that reads and writes integers (or that only moves data).
# Softmax and normalizations stay in float: eight bits are too few for their outputs.
_BETWEEN = frozenset(
    """
    Add Mul MaxPool AveragePool GlobalAveragePool Concat LeakyRelu Sigmoid Relu
    Clip Reshape Transpose Squeeze Unsqueeze Flatten Split Resize Gather Where
    """.split()
)
SAME_SCALE = frozenset(
    ["MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Split", "Resize"]
)
"""Operators whose results are quantized as their input is."""

_NEVER_SCALED = frozenset(["float64", "int32", "int64", "uint32", "uint64"])  # a MatMul takes them, too

WRITES_FLOAT = frozenset(["MatMul", "Gemm"])
"""Operators whose results are never quantized by themselves: their kernels write float for free."""


@dataclass(frozen=True)
class Placement:
    """The plan of one quantization."""

    rules: GraphRules
    nodes: tuple[str, ...]  # names of those to quantize
    # name to reason, for nodes of weighted operators that are not quantized
    left_in_float: Mapping[str, str] = field(default_factory=dict)
    # names of Gather nodes whose stored table of floats (an embedding) becomes int8
    tables: tuple[str, ...] = ()
    # name of an Add to its operand that stays in float, as a convolution's kernel adds to it
    fused: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def plan(
    model: onnx.ModelProto,
    target: GraphTarget,
    *,
    exclude: Iterable[str] = (),
    only: Iterable[str] = (),
    chosen: Iterable[str] = (),
    float8: bool = False,
    multiplies_activations: bool = True,
) -> Placement:
    """Decide which nodes of a prepared model are quantized.

    Args:
        exclude: Names, globs (`/head/*`) or operator types of nodes that stay in float.
        only: The same, for the nodes that may be quantized; empty for all.
        chosen: The same, for nodes that TensorRT gets in INT8 although it has no good kernel; as `only`.
        float8: Whether it is for FP8, for which there are fewer kernels.
        multiplies_activations: Whether its kernels multiply two activations rightly.
    """
    planner = _Planner(model, target, exclude, only)
    planner.float8, planner.multiplies_activations = float8, multiplies_activations
    if planner.rules.quantizes_chains:
        return planner.run()
    planner.chosen = set(match_nodes(model.graph, (*chosen, *only)))
    placement = planner.run()
    weighted = {node.name for node in model.graph.node if node.op_type in WEIGHTED}
    if weighted & set(placement.nodes) or not placement.left_in_float:
        return placement
    planner.chosen = weighted  # INT8 was asked for
    name, reason = next(iter(placement.left_in_float.items()))
    warning = f"TensorRT has no good kernel for any layer, and all are quantized; node {name!r}: {reason}"
    placement = planner.run()
    return replace(placement, warnings=(warning,)) if weighted & set(placement.nodes) else placement


class _Planner:
    """One walk over a graph in the order of execution."""

    def __init__(
        self,
        model: onnx.ModelProto,
        target: GraphTarget,
        exclude: Iterable[str],
        only: Iterable[str],
    ) -> None:
        self.model, self.graph, self.target, self.rules = model, model.graph, target, graph_rules(target)
        self.excluded = match_nodes(model.graph, exclude)
        self.weighted_excluded = match_nodes(model.graph, (), only=only) | self.excluded
        self.chosen: set[str] = set()
        self.float8, self.multiplies_activations = False, True
        self.constants = constant_names(model)
        self.stored = {tensor.name: tensor for tensor in model.graph.initializer}
        values = (*model.graph.input, *model.graph.value_info)
        self.types = {value.name: dtype_name(value.type.tensor_type.elem_type) for value in values}
        read = Counter(name for node in model.graph.node for name in node.input)
        self.shared = {name for name, count in read.items() if count > 1}  # read by more than one node
        self.shared |= {value.name for value in model.graph.output}
        self.of_places = products_of_places(model.graph)
        self.residuals = ResidualAdds(model.graph, self.constants)

    def run(self) -> Placement:
        self.integer = set[str]()  # tensors that an integer kernel makes
        self.planned = set[str]()
        nodes, tables, left = [], [], {}
        fused: dict[str, str] = {}
        for node in self.graph.node:
            if node.domain not in ("", "ai.onnx"):
                continue
            if is_table(node, self.stored):
                if self.rules.quantizes_chains and node.name not in self.weighted_excluded:
                    tables.append(node.name)  # TensorRT gathers floats only
                continue
            if node.op_type in WEIGHTED:
                reason = self.weighted_excluded.get(node.name) or self._unfit(node)
                if reason is not None:
                    left[node.name] = reason
                    continue
            elif node.name in self.excluded or not self._goes_along(node):
                continue
            elif not self.rules.quantizes_chains and node.op_type == "Add":
                operand = self.residuals.fused_operand(node, self.planned)
                fused |= {node.name: operand} if operand is not None else {}
            nodes.append(node.name)
            self.planned.add(node.name)
            if node.op_type not in WRITES_FLOAT and self.rules.quantizes_chains:
                self.integer.update(node.output)
        if not self.rules.quantizes_chains:
            between = Between(self.graph, self.constants)
            rest = [node for node in self.graph.node if node.name not in self.planned | self.excluded.keys()]
            for node in rest:
                if between.quantizes(node, self.planned):
                    self.planned.add(node.name)
                    nodes.append(node.name)
        if self.rules.writes_floats:
            # Every kernel writes float for nothing: what no integer kernel reads is left out.
            readers = consumers(self.graph)
            for node in reversed(self.graph.node):
                behind = {reader.name for output in node.output for reader in readers.get(output, ())}
                if node.op_type not in WEIGHTED and not behind & self.planned:
                    self.planned.discard(node.name)
            nodes = [name for name in nodes if name in self.planned]
        return Placement(self.rules, tuple(nodes), left, tuple(tables), fused)

    def _goes_along(self, node: onnx.NodeProto) -> bool:
        """Whether an operator without weights is quantized with those around it."""
        if not self.rules.quantizes_chains:
            return self.residuals.closes(node, self.planned)
        if node.op_type not in _BETWEEN:
            return False
        if node.op_type in ("Relu", "Clip") and node.input[0] in self.shared:
            return False  # it would be folded into its producer, whose own value is read elsewhere
        return all(name in self.integer for name in _values(node))

    def _unfit(self, node: onnx.NodeProto) -> str | None:
        """The reason why a weighted node stays in float; None when it is quantized."""
        if node.op_type not in self.rules.weighted:
            return f"{self.target} has no integer kernel for {node.op_type}"
        activations = [name for name in node.input if name and name not in self.constants]
        if not activations:
            return "all its inputs are constant"
        if (kind := self.types.get(activations[0], "")) in _NEVER_SCALED:
            return f"it multiplies {kind}; float32 is required"
        if node.name in self.of_places:
            return self.of_places[node.name]
        if node.op_type in ("Conv", "ConvTranspose") and node.input[1] not in self.constants:
            return "its weight is computed at run time"
        if node.input[1] in self.constants:
            if node.input[1] not in self.stored:
                return "its weight is made by nodes; simplify folds them"
            axes = len(self.stored[node.input[1]].dims)
            if node.op_type == "MatMul" and axes != 2:
                return f"its weight has {axes} axes; scales per channel need 2"
        elif self.rules.slow_products and len(activations) > 1:
            return f"it multiplies two activations, which {self.rules.slow_products} does faster in float"
        elif not self.multiplies_activations and len(activations) > 1:
            return "it multiplies two activations, whose products overflow without VNNI"
        bias = self.stored.get(node.input[2]) if len(node.input) > 2 else None
        if node.op_type == "Gemm" and bias is not None and len(bias.dims) != 1:
            return "its bias is not one value per channel"
        if node.op_type == "MatMul" and node.input[0] in self.constants:
            return "its constant is the left operand"
        if self.float8 and (reason := unfit_for_float8(node, self.stored)):
            return reason
        if self.rules.quantizes_chains or node.name in self.chosen:
            return None
        return self._kernels.unfit(node)

    @cached_property
    def _kernels(self) -> TensorRTKernels:
        """It infers shapes, which calibration does not need."""
        return TensorRTKernels(self.model, self.constants, float8=self.float8)


def scaled_tensors(model: onnx.ModelProto, placement: Placement) -> set[str]:
    """Return the names of all tensors that a planned node reads or makes: those that may get a scale."""
    planned = set(placement.nodes)
    nodes = [node for node in model.graph.node if node.name in planned]
    read = {name for node in nodes for name in node.input}
    # TensorRT's Q/DQ graph needs no scale of what an operator makes; its calibration cache does.
    without = WRITES_FLOAT if placement.rules.quantizes_chains else frozenset[str]()
    made = {name for node in nodes if node.op_type not in without for name in node.output}
    return (read | made) - {""}


def _values(node: onnx.NodeProto) -> list[str]:
    """The inputs whose values come out; the others are shapes, indices and limits."""
    if node.op_type in ("Add", "Mul", "Concat"):
        return list(node.input)
    return list(node.input[1:]) if node.op_type == "Where" else list(node.input[:1])
