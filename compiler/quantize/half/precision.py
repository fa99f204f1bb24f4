"""Convert a graph to FP16 or BF16 where its operators support it, with casts in between.

Which operand may be half is read from ONNX's own operator schemas (a Resize keeps its float32 scales, an
operator of a foreign domain keeps everything), not from a list kept by hand. A node stays in float32

1. when it is excluded by name, glob or operator type,
2. when it holds a subgraph, is of lists of tensors, or reads the bits of floats,
3. when ONNX does not allow the half type for its operands, or ONNX Runtime, of a scatter that reduces, or
   TensorRT, of a recurrent layer with sequence lengths, whose parser pads with float32 zeros (RTX 1.7.1:
   "ISelectLayer must have `thenInput` and `elseInput` of same types but has Half and Float"),
4. when the scale of a QuantizeLinear or DequantizeLinear would lose precision or is not known, or when a
   QuantizeLinear reads float32, as an input of the model: rounded to half first, some values would become
   other integers,
5. when it is a quantized layer with such a DequantizeLinear in front: a cast between the two would hide
   from TensorRT that the layer is INT8,
6. when one of its tensors is known to be finite and beyond the half type's largest number,
7. when all that one of its tensors is known to hold is subnormal in the half type; and what divides by a
   number that such a tensor keeps from zero, as `x / max(|x|, 1e-12)` does: it would divide by zero,
8. when it computes places or sizes from shapes alone, as a resampling to 1.25 times as many steps does: from
   2048 on float16 has not all whole numbers, and TensorRT takes no halves for what becomes a shape.

Known are stored tensors, what Q/DQ can hold at their scale, and observed activations where ranges are given.

A graph with Q/DQ becomes INT8 with half in between: scales are half too, quantized weights are stored as
integers. bfloat16 has the range of float32, so 4, 6 and 7 are for float16, in practice.

Inputs and outputs of the model keep their types, so one set of data serves every artifact.

Precisions of single layers: what patterns ask for, and the halves among what is not quantized.
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
    places,
    producers,
    subgraphs,
)
from ....model.graph.graph_edits import fix_initializers, store_constants
from ....model.graph.graph_names import name_nodes, rename_inputs
from ....model.graph.onnx_file import Graph, copy_model
from ....spec.words import HALVES
from ...opset.scatter_forms import reduces
from ..request import QuantizeRequest, match_nodes
from .casts import (
    OWN_TYPE,
    QDQ,
    Casts,
    Half,
    HalfType,
    half_type,
    raise_for,
    set_own_type,
    store_quantized_weights,
)

_KEEPS_FROM_ZERO = frozenset(["Add", "Clip", "Max"])
_SAME_LEAST = frozenset("Expand Identity Reshape Sqrt Squeeze Transpose Unsqueeze".split())
_TO_DIVISORS = _SAME_LEAST | {"Div", "Reciprocal"}
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
    """Return a half copy of a float32 model, and node name to reason for what stayed in float32.

    The copy is of the lowest opset from the model's own on in which its operators may be half: 19 for
    float16 scales of Q/DQ, up to 22 for bfloat16.

    Args:
        model: The model, with or without Q/DQ; inputs, outputs and its float32 parts keep their types.
        block: Name to reason, for nodes that stay in float32.
    """
    half = half_type(dtype)
    copy = copy_model(model)
    fix_initializers(copy)  # files before IR version 4 list them as inputs, by names that they lose here
    name_nodes(copy.graph)
    raise_for(copy, half, block)
    store_constants(copy.graph, block)
    store_quantized_weights(copy.graph, half, block)
    conversion = _Conversion(copy, half, block, ranges)
    conversion.run()
    return copy, conversion.kept


class _Conversion:
    """One walk over a graph in the order of execution."""

    def __init__(
        self, model: onnx.ModelProto, half: HalfType, block: Mapping[str, str], ranges: Ranges | None
    ) -> None:
        self.model, self.graph, self.half, self.block, self.ranges = model, model.graph, half, block, ranges
        # A TensorRT cache has thresholds, which may clip: they are no largest values.
        self.observed = set(ranges.names()) - set(ranges.fixed) if ranges else set()
        self.kept: dict[str, str] = {}
        self.unfit: dict[str, str] = {}  # those of them whose values the half type cannot hold
        self.kept_dequantizers: dict[str, str] = {}  # tensor to the name of its node
        self.types = infer_types(model)
        self.stored = {tensor.name: tensor for tensor in self.graph.initializer}
        self.casts = Casts(self.graph, half)
        self.floats = {name for name, kind in self.types.items() if kind == "float32"}
        self.floats |= set(self.casts.weights)
        self.known: dict[str, float] = {}  # tensor to its largest magnitude, as far as nodes tell
        self.least: dict[str, float] = {}  # tensor to the small number that keeps it from zero
        self.huge: set[str] = set()  # reciprocals of such
        self.counts: set[str] = set()  # what a Range, which has no half form, counts from and to
        self.places = places(self.graph)
        for node in self.graph.node:
            self._learn(node)

    def run(self) -> None:
        for node in list(self.graph.node):
            reason = self._reason_to_keep(node)
            if reason:
                self.kept[node.name] = reason
                self._keep(node)
            else:
                self._convert(node)
            self.casts.nodes.append(node)
        self.casts.finish()

    def _reason_to_keep(self, node: onnx.NodeProto) -> str | None:
        if node.name in self.block:
            return self.block[node.name]
        if node.op_type in _KEEPS_TYPES or any(True for _ in subgraphs(node)):
            return f"{node.op_type} keeps its types"
        if reduces(node):
            return "sums of many numbers, for which ONNX Runtime has no half"
        if node.op_type == "MeanVarianceNormalization":  # as ONNX and ONNX Runtime write it out
            return "its definition adds a float32 number"
        if node.op_type in _RECURRENT and "".join(node.input[4:5]):
            return "beside its sequence lengths TensorRT's parser takes float32 alone"
        operands = self._half_operands(node)
        if not any(name in self.floats for name in (*node.input, *node.output)):
            return None
        if self.counts.intersection(node.output):
            return "a Range counts to it, beyond what a half type tells apart"
        if node.op_type in OWN_TYPE:  # whose attribute says the type of the output
            fits = f"tensor({self.half.name})" in self._formal(node, "outputs", 1)[0][1]
        else:
            fits = any(operands)
        if not fits:
            return f"ONNX has no {self.half.name} form of it"
        if _is_qdq(node) and (reason := self._unfit_scale(node.input[1])):
            return reason
        if _is_qdq(node) and node.op_type == "QuantizeLinear" and node.input[0] not in self.casts.half:
            return f"it quantizes {node.input[0]!r}, which is float32"
        behind = [self.kept_dequantizers[n] for n in node.input[:2] if n in self.kept_dequantizers]
        if node.op_type in WEIGHTED and behind:
            return f"{behind[0]!r} in front of it stays in float32"
        read = [name for name, becomes_half in zip(node.input, operands, strict=True) if becomes_half]
        floats = [*read, *(name for name in node.output if name in self.floats)]
        reason = self._divides_by_nothing(node) or self._unfit_values(node, floats)
        if not reason and self.places.intersection(node.output):
            reason = f"it computes places or sizes, of which {self.half.name} has too few"
        if reason:
            self.unfit[node.name] = reason
        return reason

    def _unfit_values(self, node: onnx.NodeProto, tensors: list[str]) -> str | None:
        """The tensor of a node that the half type cannot hold, if there is one."""
        for name in tensors:
            largest = self._largest(name)
            if largest > self.half.largest:
                self.casts.overflowing.update(node.output)
                return f"{name!r} reaches {largest:.3g}, beyond {self.half.name}'s {self.half.largest:.6g}"
            if 0 < largest < self.half.smallest_normal and not _is_qdq(node):
                if node.op_type in _KEEPS_FROM_ZERO:
                    self.least[node.output[0]] = largest
                return f"{name!r} reaches only {largest:.3g}, all subnormal in {self.half.name}"
        return None

    def _divides_by_nothing(self, node: onnx.NodeProto) -> str | None:
        """What keeps a divisor from zero, on its way to the division, where the half type would lose it."""
        small = {name: self.least[name] for name in node.input if name in self.least}
        first = small.get(node.input[0]) if node.input else None
        if first is not None and node.op_type in _SAME_LEAST:
            self.least[node.output[0]] = float(np.sqrt(first)) if node.op_type == "Sqrt" else first
        reads = node.input[1:] if node.op_type == "Div" else node.input[:1]
        reads = reads if node.op_type in _TO_DIVISORS else []
        lost = [name for name in reads if small.get(name, np.inf) < self.half.smallest_subnormal]
        if node.op_type == "Reciprocal" and first is not None and first < 1 / self.half.largest:
            lost = [node.input[0]]
            self.huge.update(node.output)
        if node.op_type == "Mul":
            lost = [name for name in node.input if name in self.huge]
        return f"{lost[0]!r} keeps a divisor from zero, which {self.half.name} would lose" if lost else None

    def _unfit_scale(self, scale: str) -> str | None:
        if scale not in self.casts.weights:
            return "its scale is computed at run time"
        values = self.casts.values(scale)
        exact = self.half.rounded(values).astype(np.float32) == values
        if np.all(exact | (values >= self.half.smallest_normal)):
            return None
        least = self.half.smallest_normal
        return f"its scale {values.min():.3g} is below {self.half.name}'s smallest normal number {least:.3g}"

    def _largest(self, name: str) -> float:
        """The largest finite magnitude known of a tensor; 0 where nothing is known."""
        if name in self.casts.weights:
            return _amax(self.casts.values(name))
        if self.ranges is not None and name in self.observed:
            return self.ranges.amax(name, Method("minmax"))
        return self.known.get(name, 0.0)

    def _learn(self, node: onnx.NodeProto) -> None:
        """Note how large a tensor is, where a node tells, and what is counted."""
        if node.op_type == "Range":
            self.counts.update(node.input)
        if node.op_type == "ConstantOfShape" and node.attribute:
            self.known[node.output[0]] = _amax(numpy_helper.to_array(node.attribute[0].t))
        if _is_qdq(node) and node.input[1] in self.casts.weights:
            quantizes = node.op_type == "QuantizeLinear"
            float_name, integer_name = (node.input[0], node.output[0])[:: 1 if quantizes else -1]
            scale = float(self.casts.values(node.input[1]).max(initial=0.0))
            zero_point = node.input[2] if len(node.input) > 2 else ""
            self.known[float_name] = scale * self._farthest_integer(integer_name, zero_point)

    def _farthest_integer(self, name: str, zero_point: str) -> float:
        """How far from zero_point a quantized tensor is, or can be by its type; 0 for other types."""
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
        if node.op_type in OWN_TYPE:
            set_own_type(node, self.half)
        outputs = self._half_results(node)
        self.casts.half.update(n for n, half in zip(node.output, outputs, strict=True) if half)

    def _keep(self, node: onnx.NodeProto) -> None:
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
        """For each input: float32 here, and ONNX allows the half type in its place."""
        formal = self._formal(node, "inputs", len(node.input))
        return [
            name in self.floats and f"tensor({self.half.name})" in allowed
            for name, (_, allowed) in zip(node.input, formal, strict=True)
        ]

    def _half_results(self, node: onnx.NodeProto) -> list[bool]:
        """For each output: its type follows an operand that became half."""
        if node.op_type in OWN_TYPE:
            return [name in self.floats for name in node.output]
        if _is_qdq(node) and node.op_type == "DequantizeLinear":  # from opset 23 on, with no common variable
            chosen = attribute(node, "output_dtype", 0)
            return [node.input[1] in self.casts.half and not chosen]
        formal = self._formal(node, "inputs", len(node.input))
        half = self.casts.half
        bound = {var for (var, _), name in zip(formal, node.input, strict=True) if name in half}
        results = self._formal(node, "outputs", len(node.output))
        return [
            name in self.floats and var in bound for name, (var, _) in zip(node.output, results, strict=True)
        ]

    def _formal(self, node: onnx.NodeProto, side: str, count: int) -> list[tuple[str, set[str]]]:
        """Type variable and allowed types of each operand; empty for operators ONNX does not define."""
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
    """The largest finite magnitude; 0 where there is none."""
    magnitudes = np.abs(values)
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))


def with_half_rest(graph: Graph, precision: str) -> list[str]:
    """Give the float parts of a quantized graph a precision; the Q/DQ stay as they are.

    A weakly typed TensorRT chose FP16 by a flag, for what the Q/DQ leave in float. A strongly typed one takes
    the types of the graph. It is left alone for "fp32", and where it has half types already. Returns the
    names of its nodes where it was converted.
    """
    if precision not in HALVES or {*HALVES.values()} & {*graph.types.values()}:
        return []
    graph.edited(to_half(graph.load(), HALVES[precision])[0])
    return [node.name for node in graph.model.graph.node]


_MEANS = ("ReduceMean", "GlobalAveragePool", "ReduceSum")
_REASON = "its statistics would overflow or round away"


def nodes_to_protect(model: onnx.ModelProto, dtype: Half, *, ranges: Ranges | None = None) -> dict[str, str]:
    """Return name of a node to why it must stay in float32, for a runtime that chooses types by itself.

    They are those that `to_half` leaves in float32 for their values, and the normalizations.

    Args:
        model: The float32 model, with or without Q/DQ; nodes without a name get one.
    """
    name_nodes(model.graph)
    conversion = _Conversion(copy_model(model), half_type(dtype), {}, ranges)  # in the opset that it has
    conversion.run()
    return {**dict.fromkeys(normalizations(model.graph), _REASON), **conversion.unfit}


def normalizations(graph: onnx.GraphProto) -> list[str]:
    """Return the nodes of each normalization that is written in primitives, whose squares overflow float16.

    x ─ ReduceMean ─ Sub ─ Pow or Mul ─ ReduceMean ─ Add epsilon ─ Sqrt ─ Div
    """
    made_by, readers = producers(graph), consumers(graph)

    def maker(node: onnx.NodeProto | None, *operators: str) -> onnx.NodeProto | None:
        """The node of these operators that makes an operand."""
        makers = [made_by[name] for name in node.input if name in made_by] if node is not None else []
        return next((made for made in makers if made.op_type in operators), None)

    found: list[onnx.NodeProto] = []
    for root in graph.node:
        epsilon = maker(root, "Add")
        mean = maker(epsilon if epsilon is not None else root, *_MEANS) if root.op_type == "Sqrt" else None
        square = maker(mean, "Pow", "Mul")
        if square is None or (square.op_type == "Mul" and square.input[0] != square.input[1]):
            continue
        centered = maker(square, "Sub")
        nodes = [root, epsilon, mean, square, centered, maker(centered, *_MEANS)]
        found += [node for node in nodes if node is not None]
        behind = readers.get(root.output[0], ())
        found += [reader for reader in behind if reader.op_type in ("Div", "Reciprocal")]
    return list(dict.fromkeys(node.name for node in found))


@dataclass(frozen=True)
class LayerRequest:
    """What a node was asked to be by name, and the pattern that says so."""

    kind: str
    reason: str


def layer_precisions(request: QuantizeRequest, graph: onnx.GraphProto) -> dict[str, LayerRequest]:
    """Node name to what it was asked to be: the last pattern that names a node decides."""
    return {
        name: LayerRequest(kind, reason)
        for pattern, kind in request.spec.layer_precisions.items()
        for name, reason in match_nodes(graph, [pattern]).items()
    }


def in_mixed_precision(
    request: QuantizeRequest, model: onnx.ModelProto, layers: Mapping[str, LayerRequest]
) -> tuple[onnx.ModelProto, dict[str, str], list[str]]:
    """What is not quantized in the precisions that were asked for; what stays in float32, and why; and
    what of that was to be half by name.
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
        in_float32 = [name for name in block if name in layers and layers[name].kind == "fp32"]
        block = {name: layers[name].reason for name in in_float32}
    mixed, kept = to_half(model, HALVES[half], block=block, ranges=request.half_ranges)
    expected = asked if request.spec.floats != half else kept.keys()
    kept = {name: reason for name, reason in kept.items() if name in expected}
    missed = [f"node {name!r} was to be {half}: {reason}" for name, reason in kept.items() if name in asked]
    return mixed, kept, missed
