"""Sensitivity of each layer: the noise at the model's outputs when that layer alone is quantized.

Two graphs do it, with their weights stored once each. In the first, every layer is computed a second time
on its quantized operands, beside the float one; what comes out is the error of each layer's output, for one
sample. In the second, the float model takes such an error as an input behind each layer: it is run once per
layer, with that layer's error alone. Memory is that of one sample's activations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from ...calibration import Method, Ranges
from ...calibration.qparams import INT8, UINT8, choose_qparams, choose_weight_qparams, dequantize, quantize
from ...data.batches import Data
from ...model.choices import before_choices, part_before
from ...model.graph import WEIGHTED, attribute, consumers, tensor_values
from ...model.graph_edits import set_nodes, store
from ...model.graph_rules import GraphRules, SaturatingKernels, graph_rules
from ...model.judgement import OutputSums, decibels
from ...model.onnx_file import Graph, copy_model
from ...model.output_forms import OutputForm, output_forms
from ...model.saturating_kernels import saturating_kernels
from ...model.session import WEIGHT_BIAS_QUANTIZATION, make_session, run_session, session_options
from ...processor import resolve_isa
from ...progress import Progress, silent
from ...spec.words import GraphTarget, Isa
from .int8.pair_limits import pair_limits
from .int8.placement import WRITES_FLOAT, plan
from .int8.static import activation_limits
from .prepare import prepare_graph

Limits = Mapping[str, tuple[float, float]]
_TOGETHER = 32  # layers whose errors are held at once


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
    placement = plan(ready, target, exclude=exclude, multiplies_activations=not kernels.activations)
    limits = activation_limits(ready, placement, ranges, method)
    planned = set(placement.nodes)
    layers = [node for node in ready.graph.node if node.name in planned and node.op_type in WEIGHTED]
    names = [layer.name for layer in layers]
    outputs = [value.name for value in ready.graph.output]
    forms = list(output_forms(ready).values())
    total = np.zeros(len(names))
    begin, end = ((len(names) * edge) // part[1] for edge in (part[0] - 1, part[0]))
    rules = graph_rules(target)
    writes_integers = rules.quantizes_chains and not rules.writes_floats
    written = _written_as_integers(ready, layers, planned) if writes_integers else {}
    twins = _Twins(ready, limits, rules, kernels)
    for layer in layers:
        twins.add(layer, written.get(layer.name, ""))
    kinds = [layer.op_type for layer in layers]
    second = make_session(Graph(_with_injection(ready, layers), Path("injected.onnx")), session_options())
    del ready, layers  # each holds all weights, as do the sessions
    first = twins.session()
    del twins
    samples = 0
    for batch in data:
        progress("damage of each layer", samples)
        none = {_delta(name): np.zeros((), np.float32) for name in names}
        clean = run_session(second, outputs, {**batch.feeds, **none}, batch.where)
        for start in range(begin, end, _TOGETHER):
            few = names[start : min(start + _TOGETHER, end)]
            errors_of_few = run_session(first, [_error(name) for name in few], batch.feeds, batch.where)
            for index, (name, error) in enumerate(zip(few, errors_of_few, strict=True), start):
                noisy = run_session(
                    second, outputs, {**batch.feeds, **none, _delta(name): error}, batch.where
                )
                total[index] += _noise(forms, clean, noisy)
        samples += 1
    damage = [
        LayerSensitivity(name, kind, float(value) / max(samples, 1))
        for name, kind, value in list(zip(names, kinds, total, strict=True))[begin:end]
    ]
    return sorted(damage, key=lambda layer: -layer.noise)


def _noise(
    forms: Sequence[OutputForm], clean: Sequence[NDArray[Any]], noisy: Sequence[NDArray[Any]]
) -> float:
    shares = []
    for form, expected, actual in zip(forms, clean, noisy, strict=True):
        if expected.dtype.kind != "f":
            continue
        output = OutputSums("", form)
        output.add(expected, actual)
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


def _delta(name: str) -> str:
    return f"{name}/delta"


def _error(name: str) -> str:
    return f"{name}/error"


class _Twins:
    """The model with each layer's error as an output: on quantized operands, less the float result.

    Activations are quantized and dequantized again by Q/DQ nodes, weights once and for all.
    """

    def __init__(
        self, model: onnx.ModelProto, limits: Limits, rules: GraphRules, kernels: SaturatingKernels
    ) -> None:
        self.model, self.limits, self.rules, self.kernels = copy_model(model), limits, rules, kernels
        self.graph = self.model.graph
        self.stored = {tensor.name: tensor for tensor in self.graph.initializer}
        self.nodes = list(self.graph.node)
        self.made: set[str] = set()

    def add(self, layer: onnx.NodeProto, written: str) -> None:
        """Add a layer's error; its result is in the scale of the tensor `written`, if that has one."""
        twin = onnx.NodeProto()
        twin.CopyFrom(layer)
        twin.name = twin.output[0] = f"{layer.name}/quantized"
        for index in range(min(2, len(twin.input))):
            twin.input[index] = self.quantized(layer, index)
        self.nodes.append(twin)
        result = self.rounded(twin.name, written)
        self.nodes.append(helper.make_node("Sub", [result, layer.output[0]], [_error(layer.name)]))
        self.graph.output.append(helper.make_tensor_value_info(_error(layer.name), 1, None))

    def session(self) -> Any:
        """A session of all that was added."""
        set_nodes(self.graph, self.nodes)
        options = session_options(integers=False, layouts=False)  # it runs too seldom for other layouts
        # That optimizer would round weights that stand between Q/DQ pairs once more, and by tensor.
        errors = Graph(self.model, Path("errors.onnx"))
        return make_session(errors, options, without=[WEIGHT_BIAS_QUANTIZATION])

    def quantized(self, layer: onnx.NodeProto, index: int) -> str:
        name = str(layer.input[index])
        if name not in self.stored:
            return self.rounded(name, name)
        by_output = layer.op_type == "Conv" or (layer.op_type == "Gemm" and attribute(layer, "transB", 0))
        axis = 0 if by_output else 1
        result = f"{name}/rounded{axis}"
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
        result = f"{name}/rounded"
        if result not in self.made:
            self.made.add(result)
            low, high = self.limits[like]
            # `activation_limits` made symmetric what is to be int8.
            signed = self.rules.is_symmetric(low, high)
            qparams = choose_qparams(low, high, INT8 if signed else UINT8)
            how = [f"{name}/scale", f"{name}/zero_point"]
            for parameter, value in zip(how, (qparams.scale, qparams.zero_point), strict=True):
                store(self.graph, parameter, value)
            self.nodes.append(helper.make_node("QuantizeLinear", [name, *how], [f"{name}/integer"]))
            self.nodes.append(helper.make_node("DequantizeLinear", [f"{name}/integer", *how], [result]))
        return result


def _with_injection(model: onnx.ModelProto, layers: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """The float model with an input behind each layer that is added to its result."""
    copy = copy_model(model)
    graph, names = copy.graph, {layer.name for layer in layers}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        if node.name in names:
            result = node.output[0]
            node.output[0] = f"{node.name}/clean"
            nodes.append(helper.make_node("Add", [node.output[0], _delta(node.name)], [result]))
            graph.input.append(helper.make_tensor_value_info(_delta(node.name), 1, None))
    del graph.value_info[:]
    set_nodes(graph, nodes)
    return copy
