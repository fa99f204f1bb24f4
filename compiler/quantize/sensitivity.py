"""Sensitivity of each layer: the noise at the model's outputs when that layer alone is quantized.

The graph is cut into pieces of some layers each, so that what is in front of them is computed once. Two
sessions do it for each piece. In the first, every layer of the piece is computed a second time on its
quantized operands, beside the float one; what comes out is the error of each layer's output, for one sample,
and what the next piece reads. The second computes all that is behind, and takes such an error as an input
behind each layer: it is run once per layer, with that layer's error alone. Memory is that of few samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from ...calibration import Method, Ranges
from ...calibration.qparams import INT8, UINT8, choose_qparams, choose_weight_qparams, dequantize, quantize
from ...core.processor import resolve_isa
from ...core.progress import Progress, silent
from ...data.batches import Data
from ...data.readers import Batch
from ...model.graph.choices import before_choices, part_before
from ...model.graph.graph import (
    WEIGHTED,
    captured_names,
    consumers,
    infer_types,
    tensor_values,
    without_weights,
)
from ...model.graph.graph_edits import set_nodes, store
from ...model.graph.graph_names import Names
from ...model.graph.graph_rules import GraphRules, SaturatingKernels, graph_rules
from ...model.graph.onnx_file import Graph, is_large
from ...model.graph.saturating_kernels import saturating_kernels
from ...model.outputs.judgement import OutputSums, decibels
from ...model.outputs.output_forms import OutputForm, output_forms
from ...model.sessions.session import WEIGHT_BIAS_QUANTIZATION, make_session, run_session, session_options
from ...spec.tensors import Feeds
from ...spec.words import GraphTarget, Isa
from .int8.pair_limits import pair_limits
from .int8.placement import WRITES_FLOAT, plan
from .int8.static import activation_limits
from .prepare import by_output, prepare_graph
from .request import exactly, match_nodes

Limits = Mapping[str, tuple[float, float]]
Tensors = dict[str, NDArray[Any]]
_TOGETHER = 32  # layers whose errors are held at once
_SAMPLES = 2  # samples of which what a piece reads is held at once
_PIECES, _LAYERS = 6, 9  # at most so many; the layers of each, where that is fewer pieces
_FED = frozenset("float32 float64 float16 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64".split())


@dataclass(frozen=True)
class LayerSensitivity:
    """What one layer does to the outputs when it alone is quantized."""

    layer: str  # name of the node
    operator: str
    noise: float  # energy of the outputs' error by energy of the outputs, the mean over samples and outputs

    @property
    def snr_db(self) -> float:
        """The same as a signal-to-noise ratio; infinite without noise."""
        return decibels(1.0, self.noise)


def rank_layers(
    model: onnx.ModelProto,
    target: GraphTarget,
    ranges: Ranges,
    data: Data,
    *,
    isa: Isa = "auto",
    method: Method | None = None,
    exclude: Sequence[str] = (),
    only: Sequence[str] = (),
    part: tuple[int, int] = (1, 1),
    progress: Progress = silent,
) -> list[LayerSensitivity]:
    """Return the damage of every layer that would be quantized, the most damaging first.

    Args:
        isa: What the CPU that runs it multiplies integers with; "auto" is this one's.
        part: (2, 3) looks at the second of three parts of the layers alone, in the order of the graph. The
            graphs that are run are those of all layers, so that a part tells what the whole does.
    """
    places = before_choices(model)
    ready = prepare_graph(part_before(model, places) if places else model)
    kernels = saturating_kernels(target, resolve_isa(isa, target))
    # Patterns may name what is behind a choice of elements.
    whole = prepare_graph(without_weights(model)).graph if places else ready.graph
    names_here = {node.name for node in ready.graph.node}
    excluded, allowed = (
        [exactly(name) for name in match_nodes(whole, patterns) if name in names_here]
        for patterns in (exclude, only)
    )
    products = not kernels.activations
    placement = plan(ready, target, exclude=excluded, only=allowed, multiplies_activations=products)
    limits = activation_limits(ready, placement, ranges, method)
    planned = set(placement.nodes)
    layers = [node for node in ready.graph.node if node.name in planned and node.op_type in WEIGHTED]
    names = [layer.name for layer in layers]
    begin, end = ((len(names) * edge) // part[1] for edge in (part[0] - 1, part[0]))
    rules = graph_rules(target)
    writes_integers = rules.quantizes_chains and not rules.writes_floats
    written = _written_as_integers(ready, layers, planned) if writes_integers else {}
    forms = output_forms(ready)
    noise, samples, batches = dict.fromkeys(names[begin:end], 0.0), 0, iter(data)
    pieces = _pieces(ready, layers)
    while pieces and not noise.keys() & {layer.name for layer in pieces[-1].layers}:
        pieces.pop()  # nothing of it is asked for
    while pieces and (few := [_Sample(batch) for batch in itertools.islice(batches, _SAMPLES)]):
        for piece, behind in zip(pieces, [*pieces[1:], None], strict=True):
            progress("damage of each layer", samples)
            twins = _Twins(piece, limits, rules, kernels)
            for layer in piece.layers:
                twins.add(layer, written.get(layer.name, ""))
            for name, outputs, clean in _outputs(piece, twins.session(behind), behind, few, noise.keys()):
                noise[name] += _noise(forms, clean, outputs)
        samples += len(few)
    damage = [
        LayerSensitivity(layer.name, layer.op_type, noise[layer.name] / max(samples, 1))
        for layer in layers[begin:end]
    ]
    return sorted(damage, key=lambda layer: -layer.noise)


def _noise(forms: Mapping[str, OutputForm], clean: Tensors, noisy: Tensors) -> float:
    """The noise of outputs; those that are not among the `noisy` have none."""
    shares = []
    for name, expected in clean.items():
        if expected.dtype.kind != "f":
            continue
        output = OutputSums("", forms[name])
        output.add(expected, noisy.get(name, expected))
        groups = output.groups.values()
        shares += [sums.noise / sums.signal if sums.signal > 0 else float(sums.noise > 0) for sums in groups]
    return float(np.mean(shares)) if shares else 0.0


def _written_as_integers(
    model: onnx.ModelProto, layers: Sequence[onnx.NodeProto], planned: set[str]
) -> dict[str, str]:
    """Layer to the tensor whose scale its results are written in: its own, or that of the Relu behind it.

    Kernels that write no floats write integers, whoever reads them: what this costs is the layer's doing.
    """
    readers = consumers(model.graph)
    written: dict[str, str] = {}
    for layer in layers:
        if layer.op_type not in WRITES_FLOAT:
            behind = readers.get(layer.output[0], [])
            folded = [node for node in behind if node.op_type in ("Relu", "Clip") and node.name in planned]
            written[layer.name] = (folded[0] if len(behind) == len(folded) == 1 else layer).output[0]
    return written


class _Piece:
    """Layers that follow each other in a graph, from its node `begin` on, and what is behind.

    `entry` are the tensors that all this reads and does not make. Names of what is added begin with `new`.
    """

    def __init__(self, model: onnx.ModelProto, types: Mapping[str, str], begin: int, new: str) -> None:
        self.new = new
        self.model, self.types, self.begin, self.end = model, types, begin, len(model.graph.node)
        self.layers: list[onnx.NodeProto] = []
        nodes = model.graph.node[begin:]
        self.made = {name for node in nodes for name in node.output}
        read = {name for node in nodes for name in (*node.input, *captured_names(node))}
        self.outputs = [value.name for value in model.graph.output if not begin or value.name in self.made]
        if not begin:  # they may be outputs, too
            read |= {value.name for value in model.graph.input}
        stored = {tensor.name for tensor in model.graph.initializer} | {""}
        stored |= {tensor.values.name for tensor in model.graph.sparse_initializer}
        self.entry = sorted(read - self.made - stored)

    def delta(self, layer: str) -> str:
        return f"{self.new}/{layer}/delta"

    def error(self, layer: str) -> str:
        return f"{self.new}/{layer}/error"

    @property
    def is_possible(self) -> bool:
        """Whether arrays can hold what it reads."""
        return all(self.types.get(name, "") in _FED for name in self.entry)

    def section(self, end: int, outputs: Collection[str]) -> onnx.ModelProto:
        """Its nodes up to another as a model."""
        whole, nodes = self.model, self.model.graph.node[self.begin : end]
        section = onnx.ModelProto(
            ir_version=whole.ir_version, opset_import=whole.opset_import, functions=whole.functions
        )
        graph = section.graph
        graph.name = whole.graph.name
        graph.node.extend(nodes)
        read = {name for node in nodes for name in (*node.input, *captured_names(node))} | set(outputs)
        graph.initializer.extend(tensor for tensor in whole.graph.initializer if tensor.name in read)
        graph.sparse_initializer.extend(whole.graph.sparse_initializer)
        known = {value.name: value for value in (*whole.graph.input, *whole.graph.output)}
        for values, names in ((graph.input, self.entry), (graph.output, outputs)):
            values.extend(known[name] if name in known else _value(name, self.types[name]) for name in names)
        return section

    def rest(self) -> Any:
        """A session from its entry to the outputs, with an input behind each layer, added to its result."""
        section = self.section(len(self.model.graph.node), self.outputs)
        graph, names = section.graph, {layer.name for layer in self.layers}
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            nodes.append(node)
            if node.name in names:
                result = node.output[0]
                node.output[0] = f"{self.new}/{node.name}/clean"
                nodes.append(helper.make_node("Add", [node.output[0], self.delta(node.name)], [result]))
                graph.input.append(_value(self.delta(node.name), "float32"))
        set_nodes(graph, nodes)
        return make_session(Graph(section, Path("injected.onnx")), session_options())

    def run(self, session: Any, feeds: Feeds, where: str) -> Tensors:
        """Return the outputs that are behind it."""
        return dict(zip(self.outputs, run_session(session, self.outputs, feeds, where), strict=True))


def _value(name: str, dtype: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)


def _pieces(model: onnx.ModelProto, layers: Sequence[onnx.NodeProto]) -> list[_Piece]:
    """The graph in pieces: what is in front of the layers of one is computed once for all of them.

    A graph of which a session is made by way of a file is one.
    """
    place = {node.name: number for number, node in enumerate(model.graph.node)}
    most = 1 if is_large(model, loaded=True) else min(_PIECES, -(-len(layers) // _LAYERS))
    types, new = infer_types(model), Names(model.graph).stem("damage")
    pieces = [_Piece(model, types, 0, new)]
    for number, layer in enumerate(layers):
        if number and number * most // len(layers) > (number - 1) * most // len(layers):
            piece = _Piece(model, types, place[layer.name], new)
            if piece.is_possible:
                pieces[-1].end = piece.begin
                pieces.append(piece)
        pieces[-1].layers.append(layer)
    return pieces


class _Sample:
    """A sample: what the next piece reads of it, and the outputs without errors."""

    def __init__(self, batch: Batch) -> None:
        self.where, self.tensors = batch.where, dict(batch.feeds)
        self.clean: Tensors = {}


def _outputs(
    piece: _Piece, first: Any, behind: _Piece | None, few: Sequence[_Sample], asked: Collection[str]
) -> Iterator[tuple[str, Tensors, Tensors]]:
    """Yield the layers that are asked for, the outputs with the error of each, and those without."""
    second = piece.rest()
    none = {piece.delta(layer.name): np.zeros((), np.float32) for layer in piece.layers}
    names = [layer.name for layer in piece.layers if layer.name in asked]
    for sample in few:
        entry = {name: sample.tensors[name] for name in piece.entry}
        feeds = {**entry, **none}
        sample.clean |= piece.run(second, feeds, sample.where)
        for start in range(0, len(names), _TOGETHER):
            together = names[start : start + _TOGETHER]
            errors = run_session(first, [piece.error(name) for name in together], entry, sample.where)
            for name, error in zip(together, errors, strict=True):
                yield name, piece.run(second, {**feeds, piece.delta(name): error}, sample.where), sample.clean
        made = [name for name in behind.entry if name not in entry] if behind is not None else []
        read = run_session(first, made, entry, sample.where) if made else []
        sample.tensors = {**entry, **dict(zip(made, read, strict=True))}


class _Twins:
    """A piece with each layer's error as an output: on quantized operands, less the float result.

    Activations are quantized and dequantized again by Q/DQ nodes, weights once and for all.
    """

    def __init__(self, piece: _Piece, limits: Limits, rules: GraphRules, kernels: SaturatingKernels) -> None:
        self.piece, self.limits, self.rules, self.kernels = piece, limits, rules, kernels
        self.model = piece.section(piece.end, [])
        self.graph = self.model.graph
        self.stored = {tensor.name: tensor for tensor in self.graph.initializer}
        self.nodes = list(self.graph.node)
        self.made: set[str] = set()

    def add(self, layer: onnx.NodeProto, written: str) -> None:
        """Add a layer's error; its result is in the scale of the tensor `written`, if that has one."""
        twin = onnx.NodeProto()
        twin.CopyFrom(layer)
        twin.name = twin.output[0] = f"{self.piece.new}/{layer.name}/quantized"
        for index in range(min(2, len(twin.input))):
            twin.input[index] = self.quantized(layer, index)
        self.nodes.append(twin)
        result = self.rounded(twin.name, written)
        self.nodes.append(helper.make_node("Sub", [result, layer.output[0]], [self.piece.error(layer.name)]))
        self.graph.output.append(helper.make_tensor_value_info(self.piece.error(layer.name), 1, None))

    def session(self, behind: _Piece | None) -> Any:
        """A session of all that was added, and of what is read behind."""
        set_nodes(self.graph, self.nodes)
        read = behind.entry if behind is not None else []
        passed = [_value(name, self.piece.types[name]) for name in read if name not in self.piece.entry]
        self.graph.output.extend(passed)
        options = session_options(integers=False, layouts=False)  # it runs too seldom for other layouts
        # That optimizer would round weights that stand between Q/DQ pairs once more, and by tensor.
        errors = Graph(self.model, Path("errors.onnx"))
        return make_session(errors, options, without=[WEIGHT_BIAS_QUANTIZATION])

    def quantized(self, layer: onnx.NodeProto, index: int) -> str:
        name = str(layer.input[index])
        if name not in self.stored:
            return self.rounded(name, name)
        axis = 0 if by_output(layer) else 1
        result = f"{self.piece.new}/{name}/rounded{axis}"
        if result not in self.made:
            self.made.add(result)
            values = tensor_values(self.stored[name])
            qparams = choose_weight_qparams(values, axis)
            integers = quantize(values, qparams)
            if pairs := pair_limits(layer, values.shape, self.kernels):
                scales, integers = pairs.fitted(values)
                qparams = replace(qparams, scale=scales)
            store(self.graph, result, dequantize(integers, qparams))
        return result

    def rounded(self, name: str, like: str) -> str:
        """A tensor in the scale of another; itself where that has none."""
        if like not in self.limits:
            return name
        stem = f"{self.piece.new}/{name}"
        result = f"{stem}/rounded"
        if result not in self.made:
            self.made.add(result)
            low, high = self.limits[like]
            # `activation_limits` made symmetric what is to be int8.
            signed = self.rules.is_symmetric(low, high)
            qparams = choose_qparams(low, high, INT8 if signed else UINT8)
            how = [f"{stem}/scale", f"{stem}/zero_point"]
            for parameter, value in zip(how, (qparams.scale, qparams.zero_point), strict=True):
                store(self.graph, parameter, value)
            self.nodes.append(helper.make_node("QuantizeLinear", [name, *how], [f"{stem}/integer"]))
            self.nodes.append(helper.make_node("DequantizeLinear", [f"{stem}/integer", *how], [result]))
        return result
