"""Convert a graph to FP16 or BF16 where its operators support it, with casts in between.

ONNX's operator schemas decide which operand may be half. A Resize keeps its float32 scales; an operator of
another domain keeps all its types. A node remains in float32 mainly in these cases:

1. It is excluded by name, glob or operator type.
2. It contains a subgraph, processes sequences of tensors, or reads the bits of floats.
3. ONNX does not allow the half type for its operands, ONNX Runtime has no half kernel (a scatter with a
   reduction), or TensorRT's parser pads with float32 zeros (a recurrent layer with sequence lengths;
   TensorRT-RTX 1.7.1: "ISelectLayer must have `thenInput` and `elseInput` of same types but has Half and
   Float").
4. The scale of a QuantizeLinear or DequantizeLinear is computed, or below the smallest normal half. Or a
   QuantizeLinear reads a float32 tensor, such as a model input: rounding to half first may change the
   integers.
5. It is a quantized layer behind a DequantizeLinear of case 4: a cast between them would hide from TensorRT
   that the layer is INT8.
6. A tensor of the node has a finite value beyond the half type's largest number.
7. All known values of a tensor of the node are subnormal in half. Or the node divides by a tensor with only
   a subnormal lower bound, as `x / max(|x|, 1e-12)` does: in half it would divide by zero.
8. It computes positions or sizes from shapes only, such as a resampling to 1.25 times as many steps. float16
   skips whole numbers from 2048 on, and TensorRT rejects a half tensor as a shape.

Values are known for stored tensors, for the float side of Q/DQ (from their scale), and for activations in
`ranges`. bfloat16 has the range of float32, so the small scales of 4, and 6 and 7, in practice concern
float16.

A graph with Q/DQ becomes INT8 with half layers in between: its scales become half, too, and quantized weights
are stored as integers. Inputs and outputs of the model do not change their types, so all artifacts can use
the same data. The options `layers` and `float_precision` set the precision of layers that are not quantized
(`in_mixed_precision`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ....calibration import Method, Ranges
from ....calibration.qparams import FLOAT8_E4M3
from ....model.graph.graph import (
    ONNX_DOMAINS,
    WEIGHTED,
    attribute,
    captured_names,
    consumers,
    infer_types,
    opset,
    position_tensors,
    producers,
    subgraphs,
)
from ....model.graph.graph_edits import drop_initializer_inputs, store_constants
from ....model.graph.graph_names import name_nodes, rename_inputs
from ....model.graph.onnx_file import Graph, copy_model
from ....spec.words import HALVES
from ...opset.scatter_forms import reduces
from ..request import QuantizeRequest, match_nodes
from .casts import (
    QDQ,
    TYPE_BY_ATTRIBUTE,
    Casts,
    Half,
    HalfType,
    half_type,
    raise_opset,
    set_output_type,
    store_quantized_weights,
)

_LOWER_BOUNDS = frozenset(["Add", "Clip", "Max"])
_PASS_BOUND = frozenset("Expand Identity Reshape Sqrt Squeeze Transpose Unsqueeze".split())
_DIVISOR_CONSUMERS = _PASS_BOUND | {"Div", "Reciprocal"}
_RECURRENT = ("LSTM", "GRU", "RNN")
_KEEPS_TYPES = frozenset(
    """
    BitCast ConcatFromSequence SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert
    SplitToSequence
    """.split()
)
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")


def to_half(
    model: onnx.ModelProto,
    dtype: Half = "float16",
    *,
    block: Mapping[str, str] = MappingProxyType({}),
    ranges: Ranges | None = None,
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a half copy of a float32 model, and node name to reason for nodes that remain in float32.

    The opset is raised only as far as the half type requires: to 19 for float16 scales of Q/DQ, up to 22 for
    bfloat16.

    Args:
        model: The model, with or without Q/DQ; its inputs, outputs and float32 nodes retain their types.
        block: Node name to reason, for nodes to leave in float32.
    """
    half = half_type(dtype)
    copy = copy_model(model)
    drop_initializer_inputs(copy)  # before IR version 4 initializers are inputs, too; conversion renames them
    name_nodes(copy.graph)
    raise_opset(copy, half, block)
    store_constants(copy.graph, block)
    store_quantized_weights(copy.graph, half, block)
    conversion = _Conversion(copy, half, block, ranges)
    conversion.run()
    return copy, conversion.in_float32


class _Conversion:
    """One walk over a graph in the order of execution."""

    def __init__(
        self, model: onnx.ModelProto, half: HalfType, block: Mapping[str, str], ranges: Ranges | None
    ) -> None:
        self.model, self.graph, self.half, self.block, self.ranges = model, model.graph, half, block, ranges
        # `fixed` are thresholds of a TensorRT calibration cache, which may be below the largest value.
        self.observed = set(ranges.names()) - set(ranges.fixed) if ranges else set()
        self.in_float32: dict[str, str] = {}
        self.unfit: dict[str, str] = {}  # those of `in_float32` with values outside the half type's range
        self.kept_dequantizers: dict[str, str] = {}  # output tensor to node name
        self.types = infer_types(model)
        self.stored = {tensor.name: tensor for tensor in self.graph.initializer}
        self.casts = Casts(self.graph, half)
        self.floats = {name for name, kind in self.types.items() if kind == "float32"}
        self.floats |= set(self.casts.weights)
        self.magnitudes: dict[str, float] = {}  # tensor to its largest magnitude, if its node determines it
        self.lower_bounds: dict[str, float] = {}  # tensor to its lower bound above zero
        self.reciprocals: set[str] = set()  # reciprocals of tensors in `lower_bounds`
        self.range_inputs: set[str] = set()  # inputs of Range, which does not allow half types
        self.places = position_tensors(self.graph)
        for node in self.graph.node:
            self._record_values(node)

    def run(self) -> None:
        for node in list(self.graph.node):
            reason = self._why_float32(node)
            if reason:
                self.in_float32[node.name] = reason
                self._leave_float32(node)
            else:
                self._convert(node)
            self.casts.nodes.append(node)
        self.casts.finish()

    def _why_float32(self, node: onnx.NodeProto) -> str | None:
        if node.name in self.block:
            return self.block[node.name]
        if node.op_type in _KEEPS_TYPES or any(True for _ in subgraphs(node)):
            return f"{node.op_type} keeps its types"
        if reduces(node):
            return "ONNX Runtime has no half kernel for its reduction"
        if node.op_type == "MeanVarianceNormalization":  # ONNX and ONNX Runtime expand it to other nodes
            return "its definition adds a float32 number"
        if node.op_type in _RECURRENT and "".join(node.input[4:5]):
            return "with sequence lengths, TensorRT's parser takes only float32"
        operands = self._half_operands(node)
        if not any(name in self.floats for name in (*node.input, *node.output)):
            return None
        if self.range_inputs.intersection(node.output):
            return "a Range reads it; half types cannot hold all its integers"
        if node.op_type in TYPE_BY_ATTRIBUTE:  # an attribute sets the output type
            fits = f"tensor({self.half.name})" in self._formal(node, "outputs", 1)[0][1]
        else:
            fits = any(operands)
        if not fits:
            return f"ONNX has no {self.half.name} form of it"
        if _is_qdq(node) and (reason := self._unfit_scale(node.input[1])):
            return reason
        if _is_qdq(node) and node.op_type == "QuantizeLinear" and node.input[0] not in self.casts.half:
            return f"it quantizes {node.input[0]!r}, which is float32"
        fp32_sources = [self.kept_dequantizers[n] for n in node.input[:2] if n in self.kept_dequantizers]
        if node.op_type in WEIGHTED and fp32_sources:
            return f"{fp32_sources[0]!r} in front of it stays in float32"
        halves = [name for name, becomes_half in zip(node.input, operands, strict=True) if becomes_half]
        floats = [*halves, *(name for name in node.output if name in self.floats)]
        reason = self._zero_divisor(node) or self._unfit_values(node, floats)
        if not reason and self.places.intersection(node.output):
            reason = f"it computes positions or sizes beyond {self.half.name}'s integers"
        if reason:
            self.unfit[node.name] = reason
        return reason

    def _unfit_values(self, node: onnx.NodeProto, tensors: list[str]) -> str | None:
        """Return the reason if the half type cannot represent the values of a tensor, else None."""
        for name in tensors:
            largest = self._largest(name)
            if largest > self.half.largest:
                self.casts.overflowing.update(node.output)
                return f"{name!r} reaches {largest:.3g}, beyond {self.half.name}'s {self.half.largest:.6g}"
            if 0 < largest < self.half.smallest_normal and not _is_qdq(node):
                if node.op_type in _LOWER_BOUNDS:
                    self.lower_bounds[node.output[0]] = largest
                return f"{name!r} reaches only {largest:.3g}, all subnormal in {self.half.name}"
        return None

    def _zero_divisor(self, node: onnx.NodeProto) -> str | None:
        """Track lower bounds of divisors; return the reason if half would round one to zero, else None."""
        small = {name: self.lower_bounds[name] for name in node.input if name in self.lower_bounds}
        first = small.get(node.input[0]) if node.input else None
        if first is not None and node.op_type in _PASS_BOUND:
            self.lower_bounds[node.output[0]] = float(np.sqrt(first)) if node.op_type == "Sqrt" else first
        divisors = node.input[1:] if node.op_type == "Div" else node.input[:1]
        divisors = divisors if node.op_type in _DIVISOR_CONSUMERS else []
        zeroed = [name for name in divisors if small.get(name, np.inf) < self.half.smallest_subnormal]
        if node.op_type == "Reciprocal" and first is not None and first < 1 / self.half.largest:
            zeroed = [node.input[0]]
            self.reciprocals.update(node.output)
        if node.op_type == "Mul":
            zeroed = [name for name in node.input if name in self.reciprocals]
        return f"{zeroed[0]!r} keeps a divisor from zero, but not in {self.half.name}" if zeroed else None

    def _unfit_scale(self, scale: str) -> str | None:
        if scale not in self.casts.weights:
            return "its scale is computed at run time"
        values = self.casts.values(scale)
        exact = self.half.rounded(values).astype(np.float32) == values
        if np.all(exact | (values >= self.half.smallest_normal)):
            return None
        limit = self.half.smallest_normal
        return f"its scale {values.min():.3g} is below {self.half.name}'s smallest normal number {limit:.3g}"

    def _largest(self, name: str) -> float:
        """Return the largest known finite magnitude of a tensor; 0 if unknown."""
        if name in self.casts.weights:
            return _amax(self.casts.values(name))
        if self.ranges is not None and name in self.observed:
            return self.ranges.amax(name, Method("minmax"))
        return self.magnitudes.get(name, 0.0)

    def _record_values(self, node: onnx.NodeProto) -> None:
        """Record the magnitudes of tensors that this node determines, and the inputs of Range."""
        if node.op_type == "Range":
            self.range_inputs.update(node.input)
        if node.op_type == "ConstantOfShape" and node.attribute:
            self.magnitudes[node.output[0]] = _amax(numpy_helper.to_array(node.attribute[0].t))
        if _is_qdq(node) and node.input[1] in self.casts.weights:
            quantizes = node.op_type == "QuantizeLinear"
            float_name, integer_name = (node.input[0], node.output[0])[:: 1 if quantizes else -1]
            scale = float(self.casts.values(node.input[1]).max(initial=0.0))
            zero_point = node.input[2] if len(node.input) > 2 else ""
            self.magnitudes[float_name] = scale * self._farthest_integer(integer_name, zero_point)

    def _farthest_integer(self, name: str, zero_point: str) -> float:
        """Return the largest distance of stored integers, else of the type, from zero_point; of float8
        E4M3 its largest number; else 0."""
        zeros = numpy_helper.to_array(self.stored[zero_point]) if zero_point in self.stored else np.zeros(1)
        if name in self.stored:
            integers = numpy_helper.to_array(self.stored[name]).astype(np.float64)
            low, high = float(integers.min(initial=0.0)), float(integers.max(initial=0.0))
        elif self.types.get(name) in _INTEGERS:
            limits = np.iinfo(self.types[name])
            low, high = limits.min, limits.max
        else:
            return float(FLOAT8_E4M3.qmax) if self.types.get(name) == "float8_e4m3fn" else 0.0
        return max(high - float(zeros.min()), float(zeros.max()) - low)

    def _convert(self, node: onnx.NodeProto) -> None:
        if _is_qdq(node) and node.op_type == "DequantizeLinear":
            self.casts.remember(node)
        for index, becomes_half in enumerate(self._half_operands(node)):
            if node.input[index] in self.floats:
                node.input[index] = self.casts.form(node.input[index], half=becomes_half)
        if node.op_type in TYPE_BY_ATTRIBUTE:
            set_output_type(node, self.half)
        outputs = self._half_results(node)
        self.casts.half.update(n for n, half in zip(node.output, outputs, strict=True) if half)

    def _leave_float32(self, node: onnx.NodeProto) -> None:
        if _is_qdq(node) and node.op_type == "DequantizeLinear":
            self.kept_dequantizers[node.output[0]] = node.name
        for index, name in enumerate(node.input):
            if name in self.floats:
                node.input[index] = self.casts.form(name, half=False)
        captured = captured_names(node) & self.casts.half
        outer = {name: self.casts.form(name, half=False) for name in captured}
        for inner in subgraphs(node):
            rename_inputs(inner, outer)

    def _half_operands(self, node: onnx.NodeProto) -> list[bool]:
        """Return for each input whether it is float32 now, and ONNX allows the half type for it."""
        formal = self._formal(node, "inputs", len(node.input))
        return [
            name in self.floats and f"tensor({self.half.name})" in allowed
            for name, (_, allowed) in zip(node.input, formal, strict=True)
        ]

    def _half_results(self, node: onnx.NodeProto) -> list[bool]:
        """Return for each output whether its type follows an operand that became half."""
        if node.op_type in TYPE_BY_ATTRIBUTE:
            return [name in self.floats for name in node.output]
        if _is_qdq(node) and node.op_type == "DequantizeLinear":  # its type may differ (opset 23)
            output_dtype = attribute(node, "output_dtype", 0)
            return [node.input[1] in self.casts.half and not output_dtype]
        formal = self._formal(node, "inputs", len(node.input))
        half = self.casts.half
        bound = {var for (var, _), name in zip(formal, node.input, strict=True) if name in half}
        results = self._formal(node, "outputs", len(node.output))
        return [
            name in self.floats and var in bound for name, (var, _) in zip(node.output, results, strict=True)
        ]

    def _formal(self, node: onnx.NodeProto, side: str, count: int) -> list[tuple[str, set[str]]]:
        """Return type variable and allowed types of each operand; empty for operators unknown to ONNX."""
        try:
            schema = onnx.defs.get_schema(node.op_type, opset(self.model, node.domain) or 1, node.domain)
        except onnx.defs.SchemaError:
            return [("", set())] * count
        parameters: Any = getattr(schema, side)
        formal = [(p.type_str, set(p.types)) for p in parameters]
        return [formal[min(index, len(formal) - 1)] for index in range(count)] if formal else []


def _is_qdq(node: onnx.NodeProto) -> bool:
    return node.op_type in QDQ and node.domain in ONNX_DOMAINS


def _amax(values: Any) -> float:
    """Return the largest finite magnitude, or 0 for an array without finite values."""
    magnitudes = np.abs(values)
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))


def convert_float_layers(graph: Graph, precision: str) -> list[str]:
    """Convert the float parts of a quantized graph to a precision; quantized values do not change.

    Weakly typed TensorRT chooses FP16 by a flag; strongly typed TensorRT follows the types of the graph.
    Return the names of all nodes; an empty list if nothing was converted: the precision is "fp32", or the
    graph has half types already.
    """
    if precision not in HALVES or {*HALVES.values()} & {*graph.types.values()}:
        return []
    graph.edited(to_half(graph.load(), HALVES[precision])[0])
    return [node.name for node in graph.model.graph.node]


_MEANS = ("ReduceMean", "GlobalAveragePool", "ReduceSum")
_OVERFLOWING_STATISTICS = "its statistics would overflow or round away"


def nodes_to_protect(model: onnx.ModelProto, dtype: Half, *, ranges: Ranges | None = None) -> dict[str, str]:
    """Return node name to reason for nodes to protect in a runtime that chooses types: they need float32.

    These are the nodes that `to_half` leaves in float32 because of their values, and the normalizations.

    Args:
        model: The float32 model, with or without Q/DQ; nodes without a name get one.
    """
    name_nodes(model.graph)
    conversion = _Conversion(copy_model(model), half_type(dtype), {}, ranges)  # in its present opset
    conversion.run()
    return {**dict.fromkeys(normalizations(model.graph), _OVERFLOWING_STATISTICS), **conversion.unfit}


def normalizations(graph: onnx.GraphProto) -> list[str]:
    """Return the names of the nodes of normalizations in primitives; their squares may overflow float16.

    x ─ ReduceMean ─ Sub ─ Pow or Mul ─ ReduceMean ─ Add epsilon ─ Sqrt ─ Div
    """
    made_by, readers = producers(graph), consumers(graph)

    def maker(node: onnx.NodeProto | None, *operators: str) -> onnx.NodeProto | None:
        """Return the producer of an operand of `node`, if its operator is among `operators`."""
        candidates = [made_by[name] for name in node.input if name in made_by] if node is not None else []
        return next((producer for producer in candidates if producer.op_type in operators), None)

    members: list[onnx.NodeProto] = []
    for root in graph.node:
        epsilon = maker(root, "Add")
        mean = maker(epsilon if epsilon is not None else root, *_MEANS) if root.op_type == "Sqrt" else None
        square = maker(mean, "Pow", "Mul")
        if square is None or (square.op_type == "Mul" and square.input[0] != square.input[1]):
            continue
        centered = maker(square, "Sub")
        nodes = [root, epsilon, mean, square, centered, maker(centered, *_MEANS)]
        members += [node for node in nodes if node is not None]
        divisions = readers.get(root.output[0], ())
        members += [reader for reader in divisions if reader.op_type in ("Div", "Reciprocal")]
    return list(dict.fromkeys(node.name for node in members))


@dataclass(frozen=True)
class LayerRequest:
    """Precision that `layers` requests for a node, and the reason, which contains the pattern."""

    kind: str
    reason: str


def layer_precisions(request: QuantizeRequest, graph: onnx.GraphProto) -> dict[str, LayerRequest]:
    """Return node name to requested precision; the last matching pattern decides."""
    return {
        name: LayerRequest(kind, reason)
        for pattern, kind in request.spec.layer_precisions.items()
        for name, reason in match_nodes(graph, [pattern]).items()
    }


def in_mixed_precision(
    request: QuantizeRequest, model: onnx.ModelProto, layers: Mapping[str, LayerRequest]
) -> tuple[onnx.ModelProto, dict[str, str], list[str]]:
    """Convert the float layers of a quantized graph to the requested half precision.

    Return the graph; the reason of each node that stays in float32, by name; and a message for each node that
    `layers` requests in half and that stays in float32.
    """
    halves = {
        kind for kind in (request.spec.floats, *request.spec.layer_precisions.values()) if kind in HALVES
    }
    if not halves:
        return model, {}, []
    (half,) = halves
    names = [node.name for node in model.graph.node]
    asked = {name for name, layer in layers.items() if layer.kind == half}
    block = {name: "not among the layers" for name in names if name not in asked}
    if request.spec.floats == half:
        fp32_names = [name for name in block if name in layers and layers[name].kind == "fp32"]
        block = {name: layers[name].reason for name in fp32_names}
    mixed, in_float32 = to_half(model, HALVES[half], block=block, ranges=request.half_ranges)
    expected = asked if request.spec.floats != half else in_float32.keys()
    in_float32 = {name: reason for name, reason in in_float32.items() if name in expected}
    missed = [f"node {n!r} was to be {half}: {reason}" for n, reason in in_float32.items() if n in asked]
    return mixed, in_float32, missed
