"""Sensitivity of each layer: the noise at the model's outputs when that layer alone is quantized.

The graph is cut into pieces of a few layers, so that everything in front of a piece is computed once. Each
piece has two sessions. The first computes every layer twice, on float and on quantized operands. Its outputs
are the error of each layer's output, for one sample, and the inputs of the next piece. The second computes
the rest of the graph, with an additional input behind each layer: it runs once per layer, with only that
layer's error. Memory holds few samples at a time.
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
from ...model.graph.choices import part_before, selection_inputs
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
from .int8.placement import WRITES_FLOAT, place_nodes
from .int8.static import activation_limits
from .prepare import outputs_first, prepare_graph
from .request import glob_for_name, match_nodes

Limits = Mapping[str, tuple[float, float]]
Tensors = dict[str, NDArray[Any]]
_LAYERS_AT_ONCE = 32  # layers with errors in memory at a time
_SAMPLES_AT_ONCE = 2  # samples in memory at a time, with the inputs of the next piece
_PIECES, _LAYERS = 6, 9  # maximum number of pieces; layers per piece if that gives fewer pieces
_DTYPES = frozenset("float32 float64 float16 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64".split())


@dataclass(frozen=True)
class LayerSensitivity:
    """Noise at the outputs when only this layer is quantized."""

    layer: str  # name of the node
    operator: str
    noise: float  # energy of the outputs' error / energy of the outputs, mean over samples and outputs

    @property
    def snr_db(self) -> float:
        """The noise as a signal-to-noise ratio, in decibels; infinite without noise."""
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
    """Return the noise of every layer that would be quantized, the most damaging layer first.

    Args:
        isa: Integer instruction set of the CPU that will run the graph; "auto" means this CPU's.
        part: (2, 3) ranks only the second third of the layers, in graph order. The sessions still contain
            all layers, so each layer's noise is the same as in a full ranking.
    """
    places = selection_inputs(model)
    ready = prepare_graph(part_before(model, places) if places else model)
    kernels = saturating_kernels(target, resolve_isa(isa, target))
    # Patterns may match nodes behind a choice of elements, which `ready` lacks.
    full_graph = prepare_graph(without_weights(model)).graph if places else ready.graph
    present = {node.name for node in ready.graph.node}
    excluded, allowed = (
        [glob_for_name(name) for name in match_nodes(full_graph, patterns) if name in present]
        for patterns in (exclude, only)
    )
    products = not kernels.activations
    placement = place_nodes(ready, target, exclude=excluded, only=allowed, multiplies_activations=products)
    limits = activation_limits(ready, placement, ranges, method)
    planned = set(placement.nodes)
    layers = [node for node in ready.graph.node if node.name in planned and node.op_type in WEIGHTED]
    names = [layer.name for layer in layers]
    start, end = ((len(names) * edge) // part[1] for edge in (part[0] - 1, part[0]))
    rules = graph_rules(target)
    writes_integers = rules.quantizes_chains and not rules.writes_floats
    written = _written_tensors(ready, layers, planned) if writes_integers else {}
    forms = output_forms(ready)
    noise, samples, batches = dict.fromkeys(names[start:end], 0.0), 0, iter(data)
    pieces = _cut(ready, layers)
    while pieces and not noise.keys() & {layer.name for layer in pieces[-1].layers}:
        pieces.pop()  # without requested layers
    while pieces and (chunk := [_Sample(batch) for batch in itertools.islice(batches, _SAMPLES_AT_ONCE)]):
        for piece, later in zip(pieces, [*pieces[1:], None], strict=True):
            progress("damage of each layer", samples)
            twins = _Twins(piece, limits, rules, kernels)
            for layer in piece.layers:
                twins.add(layer, written.get(layer.name, ""))
            for name, outputs, clean in _outputs(piece, twins.session(later), later, chunk, noise.keys()):
                noise[name] += _noise_ratio(forms, clean, outputs)
        samples += len(chunk)
    damage = [
        LayerSensitivity(layer.name, layer.op_type, noise[layer.name] / max(samples, 1))
        for layer in layers[start:end]
    ]
    return sorted(damage, key=lambda layer: -layer.noise)


def _noise_ratio(forms: Mapping[str, OutputForm], expected_outputs: Tensors, noisy: Tensors) -> float:
    """Return the mean noise-to-signal ratio of the outputs; outputs missing in `noisy` have no noise."""
    shares = []
    for name, expected in expected_outputs.items():
        if expected.dtype.kind != "f":
            continue
        output = OutputSums("", forms[name])
        output.add(expected, noisy.get(name, expected))
        groups = output.groups.values()
        shares += [sums.noise / sums.signal if sums.signal > 0 else float(sums.noise > 0) for sums in groups]
    return float(np.mean(shares)) if shares else 0.0


def _written_tensors(
    model: onnx.ModelProto, layers: Sequence[onnx.NodeProto], planned: set[str]
) -> dict[str, str]:
    """Return layer to the tensor with the scale of its result: its output, or that of the Relu behind it.

    Kernels that cannot write floats round their results for any consumer, so this error is the layer's, too.
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
    """Consecutive layers of a graph from node `begin`, and the rest of the graph behind them.

    `entry` lists the tensors that these nodes read but do not produce. `new` prefixes the names of additions.
    """

    def __init__(self, model: onnx.ModelProto, types: Mapping[str, str], begin: int, new: str) -> None:
        self.new = new
        self.model, self.types, self.begin, self.end = model, types, begin, len(model.graph.node)
        self.layers: list[onnx.NodeProto] = []
        nodes = model.graph.node[begin:]
        self.made = {name for node in nodes for name in node.output}
        used = {name for node in nodes for name in (*node.input, *captured_names(node))}
        self.outputs = [value.name for value in model.graph.output if not begin or value.name in self.made]
        if not begin:  # a graph input may also be a graph output
            used |= {value.name for value in model.graph.input}
        stored = {tensor.name for tensor in model.graph.initializer} | {""}
        stored |= {tensor.values.name for tensor in model.graph.sparse_initializer}
        self.entry = sorted(used - self.made - stored)

    def delta(self, layer: str) -> str:
        return f"{self.new}/{layer}/delta"

    def error(self, layer: str) -> str:
        return f"{self.new}/{layer}/error"

    @property
    def is_possible(self) -> bool:
        """Whether all entry tensors have types that NumPy arrays can feed."""
        return all(self.types.get(name, "") in _DTYPES for name in self.entry)

    def section(self, end: int, outputs: Collection[str]) -> onnx.ModelProto:
        """Return the nodes from `begin` to `end` as a model."""
        model, nodes = self.model, self.model.graph.node[self.begin : end]
        section = onnx.ModelProto(
            ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions
        )
        graph = section.graph
        graph.name = model.graph.name
        graph.node.extend(nodes)
        used = {name for node in nodes for name in (*node.input, *captured_names(node))} | set(outputs)
        graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in used)
        graph.sparse_initializer.extend(model.graph.sparse_initializer)
        io = {value.name: value for value in (*model.graph.input, *model.graph.output)}
        for values, names in ((graph.input, self.entry), (graph.output, outputs)):
            values.extend(io[name] if name in io else _value(name, self.types[name]) for name in names)
        return section

    def rest(self) -> Any:
        """Return a session from the entry to the outputs, with an input added to each layer's result."""
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
        """Return the model outputs behind this piece."""
        return dict(zip(self.outputs, run_session(session, self.outputs, feeds, where), strict=True))


def _value(name: str, dtype: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)


def _cut(model: onnx.ModelProto, layers: Sequence[onnx.NodeProto]) -> list[_Piece]:
    """Return the graph in pieces; a graph so large that its session needs a file remains one piece."""
    position = {node.name: number for number, node in enumerate(model.graph.node)}
    max_pieces = 1 if is_large(model, loaded=True) else min(_PIECES, -(-len(layers) // _LAYERS))
    types, prefix = infer_types(model), Names(model.graph).stem("damage")
    pieces = [_Piece(model, types, 0, prefix)]
    for number, layer in enumerate(layers):
        if number and number * max_pieces // len(layers) > (number - 1) * max_pieces // len(layers):
            piece = _Piece(model, types, position[layer.name], prefix)
            if piece.is_possible:
                pieces[-1].end = piece.begin
                pieces.append(piece)
        pieces[-1].layers.append(layer)
    return pieces


class _Sample:
    """A sample with the inputs of the next piece, and the outputs without errors."""

    def __init__(self, batch: Batch) -> None:
        self.where, self.tensors = batch.where, dict(batch.feeds)
        self.clean: Tensors = {}


def _outputs(
    piece: _Piece, first: Any, later: _Piece | None, chunk: Sequence[_Sample], requested: Collection[str]
) -> Iterator[tuple[str, Tensors, Tensors]]:
    """Yield each requested layer, the outputs with its error, and the outputs without errors."""
    second = piece.rest()
    no_errors = {piece.delta(layer.name): np.zeros((), np.float32) for layer in piece.layers}
    names = [layer.name for layer in piece.layers if layer.name in requested]
    for sample in chunk:
        entry = {name: sample.tensors[name] for name in piece.entry}
        feeds = {**entry, **no_errors}
        sample.clean |= piece.run(second, feeds, sample.where)
        for start in range(0, len(names), _LAYERS_AT_ONCE):
            group = names[start : start + _LAYERS_AT_ONCE]
            errors = run_session(first, [piece.error(name) for name in group], entry, sample.where)
            for name, error in zip(group, errors, strict=True):
                yield name, piece.run(second, {**feeds, piece.delta(name): error}, sample.where), sample.clean
        inputs = [name for name in later.entry if name not in entry] if later is not None else []
        values = run_session(first, inputs, entry, sample.where) if inputs else []
        sample.tensors = {**entry, **dict(zip(inputs, values, strict=True))}


class _Twins:
    """A piece with an output per layer for its error (quantized minus float); weights are rounded once."""

    def __init__(self, piece: _Piece, limits: Limits, rules: GraphRules, kernels: SaturatingKernels) -> None:
        self.piece, self.limits, self.rules, self.kernels = piece, limits, rules, kernels
        self.model = piece.section(piece.end, [])
        self.graph = self.model.graph
        self.stored = {tensor.name: tensor for tensor in self.graph.initializer}
        self.nodes = list(self.graph.node)
        self.added: set[str] = set()

    def add(self, layer: onnx.NodeProto, written: str) -> None:
        """Add a layer's error; its result is rounded with the scale of the tensor `written`, if any."""
        twin = onnx.NodeProto()
        twin.CopyFrom(layer)
        twin.name = twin.output[0] = f"{self.piece.new}/{layer.name}/quantized"
        for index in range(min(2, len(twin.input))):
            twin.input[index] = self.quantized(layer, index)
        self.nodes.append(twin)
        result = self.rounded(twin.name, written)
        self.nodes.append(helper.make_node("Sub", [result, layer.output[0]], [self.piece.error(layer.name)]))
        self.graph.output.append(helper.make_tensor_value_info(self.piece.error(layer.name), 1, None))

    def session(self, later: _Piece | None) -> Any:
        """Return a session that outputs the errors, and the inputs of the piece behind."""
        set_nodes(self.graph, self.nodes)
        entry = later.entry if later is not None else []
        passed = [_value(name, self.piece.types[name]) for name in entry if name not in self.piece.entry]
        self.graph.output.extend(passed)
        options = session_options(integers=False, layouts=False)  # too few runs to pay for layouts
        # That optimizer would round weights between Q/DQ pairs a second time, and per tensor.
        errors = Graph(self.model, Path("errors.onnx"))
        return make_session(errors, options, without=[WEIGHT_BIAS_QUANTIZATION])

    def quantized(self, layer: onnx.NodeProto, index: int) -> str:
        name = str(layer.input[index])
        if name not in self.stored:
            return self.rounded(name, name)
        axis = 0 if outputs_first(layer) else 1
        result = f"{self.piece.new}/{name}/rounded{axis}"
        if result not in self.added:
            self.added.add(result)
            values = tensor_values(self.stored[name])
            qparams = choose_weight_qparams(values, axis)
            integers = quantize(values, qparams)
            if pairs := pair_limits(layer, values.shape, self.kernels):
                scales, integers = pairs.quantize(values)
                qparams = replace(qparams, scale=scales)
            store(self.graph, result, dequantize(integers, qparams))
        return result

    def rounded(self, name: str, like: str) -> str:
        """Return a tensor rounded with the scale of `like`, or unchanged if `like` lacks limits."""
        if like not in self.limits:
            return name
        stem = f"{self.piece.new}/{name}"
        result = f"{stem}/rounded"
        if result not in self.added:
            self.added.add(result)
            low, high = self.limits[like]
            # `activation_limits` returns symmetric limits for int8 tensors.
            signed = self.rules.is_symmetric(low, high)
            qparams = choose_qparams(low, high, INT8 if signed else UINT8)
            pair = [f"{stem}/scale", f"{stem}/zero_point"]
            for parameter, value in zip(pair, (qparams.scale, qparams.zero_point), strict=True):
                store(self.graph, parameter, value)
            self.nodes.append(helper.make_node("QuantizeLinear", [name, *pair], [f"{stem}/integer"]))
            self.nodes.append(helper.make_node("DequantizeLinear", [f"{stem}/integer", *pair], [result]))
        return result
