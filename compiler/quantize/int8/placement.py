"""Placement of Q/DQ: the nodes to quantize for a target, and why other nodes with weights stay in float.

The rules of the target decide (`model.graph.graph_rules`).

- ONNX Runtime on x86 with VNNI multiplies uint8 activations by int8 weights and adds an int32 bias; symmetric
  int8 activations are slower there than float. A product of a stored weight writes float at no cost, so its
  consumers read float. A product of two activations (attention) is faster in float.
- TensorRT requires symmetric int8 with zero_point 0, float bias, and Q/DQ by the rules in `tensorrt`.

Operators between convolutions (adds, pools, concatenations) are quantized if integer kernels produce all
their inputs. Elsewhere quantization would cost a conversion and precision, and gain nothing.
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
from .tensorrt import ChainPlacement, ResidualAdds, TensorRTKernels

# Operators that have integer kernels on CPU runtimes, or only move data.
# Softmax and normalizations are float: eight bits are too few for their outputs.
_CHAIN_OPERATORS = frozenset(
    """
    Add Mul MaxPool AveragePool GlobalAveragePool Concat LeakyRelu Sigmoid Relu
    Clip Reshape Transpose Squeeze Unsqueeze Flatten Split Resize Gather Where
    """.split()
)
SAME_SCALE = frozenset(
    ["MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Split", "Resize"]
)
"""Operators with one scale for input and output."""

_NEVER_SCALED = frozenset(["float64", "int32", "int64", "uint32", "uint64"])  # types that MatMul accepts

WRITES_FLOAT = frozenset(["MatMul", "Gemm"])
"""Operators with kernels that write float at no cost: their output is quantized only for a consumer."""


@dataclass(frozen=True)
class Placement:
    """The nodes to quantize for a target, and the reasons for other nodes with weights."""

    rules: GraphRules
    nodes: tuple[str, ...]  # names of the nodes to quantize
    # reasons by node name, for nodes of `WEIGHTED` that are not quantized
    left_in_float: Mapping[str, str] = field(default_factory=dict)
    # names of Gather nodes with a stored float table (an embedding) that becomes int8
    tables: tuple[str, ...] = ()
    # by name of an Add: the operand without Q/DQ, as the kernel of its convolution adds the other operand
    fused: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def place_nodes(
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
        exclude: Names, globs (`/head/*`) or operator types of nodes to leave in float.
        only: Names, globs or types of the weighted nodes that may be quantized; empty for all.
        chosen: As `only`, for nodes that TensorRT quantizes even without a good kernel; `only` implies it.
        float8: Whether to plan for FP8, which has fewer kernels.
        multiplies_activations: Whether the kernels multiply two activations without overflow.
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
    planner.chosen = weighted  # the user requested INT8
    name, reason = next(iter(placement.left_in_float.items()))
    warning = f"TensorRT has no good kernel for any layer, and all are quantized; node {name!r}: {reason}"
    placement = planner.run()
    return replace(placement, warnings=(warning,)) if weighted & set(placement.nodes) else placement


class _Planner:
    """Decides which nodes of one model are quantized, in the order of execution."""

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
        reads = Counter(name for node in model.graph.node for name in node.input)
        self.shared = {name for name, count in reads.items() if count > 1}  # tensors with several consumers
        self.shared |= {value.name for value in model.graph.output}
        self.of_places = products_of_places(model.graph)
        self.residuals = ResidualAdds(model.graph, self.constants)

    def run(self) -> Placement:
        self.integer = set[str]()  # outputs of integer kernels
        self.planned = set[str]()
        nodes, tables, left = [], [], {}
        fused: dict[str, str] = {}
        for node in self.graph.node:
            if node.domain not in ("", "ai.onnx"):
                continue
            if is_table(node, self.stored):
                if self.rules.quantizes_chains and node.name not in self.weighted_excluded:
                    tables.append(node.name)  # TensorRT can gather only floats
                continue
            if node.op_type in WEIGHTED:
                reason = self.weighted_excluded.get(node.name) or self._float_reason(node)
                if reason is not None:
                    left[node.name] = reason
                    continue
            elif node.name in self.excluded or not self._is_chained(node):
                continue
            elif not self.rules.quantizes_chains and node.op_type == "Add":
                operand = self.residuals.fused_operand(node, self.planned)
                fused |= {node.name: operand} if operand is not None else {}
            nodes.append(node.name)
            self.planned.add(node.name)
            if node.op_type not in WRITES_FLOAT and self.rules.quantizes_chains:
                self.integer.update(node.output)
        if not self.rules.quantizes_chains:
            between = ChainPlacement(self.graph, self.constants)
            rest = [node for node in self.graph.node if node.name not in self.planned | self.excluded.keys()]
            for node in rest:
                if between.quantizes(node, self.planned):
                    self.planned.add(node.name)
                    nodes.append(node.name)
        if self.rules.writes_floats:
            # Every kernel writes float at no cost: drop nodes without an integer consumer.
            readers = consumers(self.graph)
            for node in reversed(self.graph.node):
                behind = {reader.name for output in node.output for reader in readers.get(output, ())}
                if node.op_type not in WEIGHTED and not behind & self.planned:
                    self.planned.discard(node.name)
            nodes = [name for name in nodes if name in self.planned]
        return Placement(self.rules, tuple(nodes), left, tuple(tables), fused)

    def _is_chained(self, node: onnx.NodeProto) -> bool:
        if not self.rules.quantizes_chains:
            return self.residuals.closes(node, self.planned)
        if node.op_type not in _CHAIN_OPERATORS:
            return False
        if node.op_type in ("Relu", "Clip") and node.input[0] in self.shared:
            return False  # it would be folded into its producer, whose output has another consumer
        return all(name in self.integer for name in _value_inputs(node))

    def _float_reason(self, node: onnx.NodeProto) -> str | None:
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
                return "its weight is computed by nodes; simplify folds them"
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
        """TensorRT's kernels; cached on first use because calibration needs no shape inference."""
        return TensorRTKernels(self.model, self.constants, float8=self.float8)


def scaled_tensors(model: onnx.ModelProto, placement: Placement) -> set[str]:
    """Return the names of the inputs and outputs of planned nodes: the tensors that may get a scale."""
    planned = set(placement.nodes)
    nodes = [node for node in model.graph.node if node.name in planned]
    inputs = {name for node in nodes for name in node.input}
    # TensorRT's Q/DQ graph needs no scales of outputs; its calibration cache does.
    unscaled = WRITES_FLOAT if placement.rules.quantizes_chains else frozenset[str]()
    outputs = {name for node in nodes if node.op_type not in unscaled for name in node.output}
    return (inputs | outputs) - {""}


def _value_inputs(node: onnx.NodeProto) -> list[str]:
    """Return the inputs with values that pass to the output, without shapes, indices and limits."""
    if node.op_type in ("Add", "Mul", "Concat"):
        return list(node.input)
    return list(node.input[1:]) if node.op_type == "Where" else list(node.input[:1])
