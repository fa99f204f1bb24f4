"""Sensitivity of each layer: the noise at the model's outputs when that layer alone is quantized.

Two graphs do it, with their weights stored once each. In the first, every layer is computed a second time
on its quantized operands, beside the float one; what comes out is the error of each layer's output, for one
sample. In the second, the float model takes such an error as an input behind each layer: it is run once per
layer, with that layer's error alone. Memory is that of one sample's activations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...calibration import Method, Ranges
from ...calibration.qparams import INT8, UINT8, choose_qparams, choose_weight_qparams, dequantize, quantize
from ...data.batches import Data
from ...files import temporary_folder
from ...model.graph import WEIGHTED, attribute, consumers
from ...model.graph_edits import set_nodes, store
from ...model.graph_rules import SaturatingKernels, graph_rules, saturating_kernels
from ...model.judgement import ErrorSums, decibels
from ...model.onnx_file import copy_model, save_onnx
from ...model.session import make_session, run_session, session_options
from ...processor import resolve_isa
from ...progress import Progress, silent
from ...spec.words import GraphTarget, Isa
from .int8.pair_limits import pair_limits
from .int8.placement import WRITES_FLOAT, Placement, plan
from .int8.static import activation_limits
from .prepare import prepare_graph

if TYPE_CHECKING:
    import onnx

Limits = Mapping[str, tuple[float, float]]
_TOGETHER = 32  # layers whose errors are held at once


@dataclass(frozen=True)
class LayerSensitivity:
    """What one layer does to the outputs when it alone is quantized.

    Attributes:
        layer: Name of the node.
        operator: Its type.
        noise: Energy of the outputs' error by energy of the outputs, the mean over samples and outputs.
    """

    layer: str
    operator: str
    noise: float

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
    ready = prepare_graph(model)
    kernels = saturating_kernels(target, resolve_isa(isa, target))
    placement = plan(ready, target, exclude=exclude, multiplies_activations=not kernels.activations)
    limits = activation_limits(ready, placement, ranges, method)
    layers = _layers(ready, placement)
    names = [layer.name for layer in layers]
    outputs = [value.name for value in ready.graph.output]
    total = np.zeros(len(names))
    begin, end = ((len(names) * edge) // part[1] for edge in (part[0] - 1, part[0]))
    with temporary_folder("tune") as folder:
        errors, injected = folder / "errors.onnx", folder / "injected.onnx"
        rules = graph_rules(target)
        writes_integers = rules.quantizes_chains and not rules.writes_floats
        written = _written_as_integers(ready, layers, placement) if writes_integers else {}
        save_onnx(_with_errors(ready, layers, limits, target, written, kernels), errors)
        save_onnx(_with_injection(ready, layers), injected)
        # That optimizer would round weights that stand between Q/DQ pairs once more, and by tensor.
        first = make_session(errors, session_options(integers=False), without=["WeightBiasQuantization"])
        second = make_session(injected, session_options())
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
                    total[index] += _noise(clean, noisy)
            samples += 1
    found_damage = [
        LayerSensitivity(layer.name, layer.op_type, float(value) / max(samples, 1))
        for layer, value in list(zip(layers, total, strict=True))[begin:end]
    ]
    return sorted(found_damage, key=lambda one: -one.noise)


def _noise(clean: Sequence[NDArray[Any]], noisy: Sequence[NDArray[Any]]) -> float:
    shares = []
    for expected, actual in zip(clean, noisy, strict=True):
        if expected.dtype.kind != "f":
            continue
        sums = ErrorSums()
        sums.add(expected, actual)
        shares.append(sums.noise / sums.signal if sums.signal > 0 else float(sums.noise > 0))
    return float(np.mean(shares)) if shares else 0.0


def _layers(model: onnx.ModelProto, placement: Placement) -> list[onnx.NodeProto]:
    planned = set(placement.nodes)
    return [node for node in model.graph.node if node.name in planned and node.op_type in WEIGHTED]


def _written_as_integers(
    model: onnx.ModelProto, layers: Sequence[onnx.NodeProto], placement: Placement
) -> dict[str, str]:
    """Layer to the tensor whose scale its results are written in: its own, or that of the Relu behind it.

    Kernels that write no floats write integers, whoever reads them: what this costs is the layer's doing.
    """
    readers, planned = consumers(model.graph), set(placement.nodes)
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


def _with_errors(
    model: onnx.ModelProto,
    layers: Sequence[onnx.NodeProto],
    limits: Limits,
    target: GraphTarget,
    written: Mapping[str, str],
    kernels: SaturatingKernels,
) -> onnx.ModelProto:
    """The model with each layer's error as an output: on quantized operands, less the float result."""
    from onnx import helper

    copy = copy_model(model)
    graph = copy.graph
    operands = _Operands(graph, limits, target, kernels)
    nodes = list(graph.node)
    for layer in layers:
        twin = type(layer)()
        twin.CopyFrom(layer)
        twin.name = f"{layer.name}/quantized"
        twin.output[0] = twin.name
        for index in range(min(2, len(twin.input))):
            twin.input[index] = operands.quantized(layer, index, nodes)
        nodes.append(twin)
        result = operands.rounded(twin.name, written.get(layer.name, ""), nodes)
        nodes.append(helper.make_node("Sub", [result, layer.output[0]], [_error(layer.name)]))
        graph.output.append(helper.make_tensor_value_info(_error(layer.name), 1, None))
    set_nodes(graph, nodes)
    return copy


class _Operands:
    """Quantized and dequantized again: activations by Q/DQ nodes, weights once and for all."""

    def __init__(
        self, graph: onnx.GraphProto, limits: Limits, target: GraphTarget, kernels: SaturatingKernels
    ) -> None:
        self.graph, self.limits, self.kernels = graph, limits, kernels
        self.rules = graph_rules(target)
        self.stored = {tensor.name: tensor for tensor in graph.initializer}
        self.made: set[str] = set()

    def quantized(self, layer: onnx.NodeProto, index: int, nodes: list[onnx.NodeProto]) -> str:
        name = str(layer.input[index])
        if name in self.stored:
            return self._weight(layer, name)
        return self.rounded(name, name, nodes)

    def rounded(self, name: str, like: str, nodes: list[onnx.NodeProto]) -> str:
        """A tensor in the scale of another; itself where that has none."""
        return self._activation(name, like, nodes) if like in self.limits else name

    def _weight(self, layer: onnx.NodeProto, name: str) -> str:
        from onnx import numpy_helper

        axis = _channel_axis(layer)
        result = f"{name}/rounded{axis}"
        if result not in self.made:
            self.made.add(result)
            values = numpy_helper.to_array(self.stored[name])
            qparams = choose_weight_qparams(values, axis)
            integers = quantize(values, qparams)
            if pairs := pair_limits(layer, values.shape, self.kernels):
                scales, integers = pairs.fitted(values)
                qparams = replace(qparams, scale=scales)
            store(self.graph, result, dequantize(integers, qparams))
        return result

    def _activation(self, name: str, like: str, nodes: list[onnx.NodeProto]) -> str:
        from onnx import helper

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
            nodes.append(helper.make_node("QuantizeLinear", [name, *how], [f"{name}/integer"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}/integer", *how], [result]))
        return result


def _channel_axis(layer: onnx.NodeProto) -> int:
    """Axis of the output channels in a layer's weight."""
    if layer.op_type == "Conv":
        return 0
    return 0 if layer.op_type == "Gemm" and attribute(layer, "transB", 0) else 1


def _with_injection(model: onnx.ModelProto, layers: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """The float model with an input behind each layer that is added to its result."""
    from onnx import helper

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
