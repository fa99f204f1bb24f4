"""Static INT8: ONNX Runtime's quantizer inserts Q/DQ by our placement and calibrated ranges."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from ....calibration import Method, Ranges
from ....calibration.qparams import choose_weight_qparams
from ....core.files import temporary_folder
from ....core.progress import quiet
from ....errors import CalibrationError, QuantizationError, first_line
from ....model.graph.graph import attribute, count_weighted, producers, weighted_nodes
from ....model.graph.graph_edits import drop_unused_initializers, refill, sort_nodes
from ....model.graph.graph_names import Aliases
from ....model.graph.graph_rules import GraphRules
from ....model.graph.multiply_adds import ALLOWED_SHARE, format_layers, multiply_adds, shares
from ....model.graph.onnx_file import Graph, read_graph
from ....model.sessions.session import missed_nodes
from ....spec.words import Isa
from ...check import OnnxReference
from ...qdq import store_integers
from .pair_limits import PairLimits
from .placement import SAME_SCALE, WRITES_FLOAT, Placement, scaled_tensors
from .rewrites import gather_by_vectors, keep_adds_apart, keep_norms_apart, quantize_tables, read_floats
from .tensorrt import fuse_residual_adds, share_scales


def quantize_static(
    model: onnx.ModelProto,
    placement: Placement,
    ranges: Mapping[str, tuple[float, float]],
    *,
    isa: Isa = "avx512-vnni",
    pairs: Mapping[str, PairLimits] = MappingProxyType({}),
) -> onnx.ModelProto:
    """Return the prepared model with Q/DQ pairs.

    Args:
        ranges: Tensor name to (min, max) in real units.
        isa: Instruction set of the processor; on ARM, ONNX Runtime's kernels take int8 activations.
        pairs: Weight name to its limits, for kernels that add two products in 16 bits.
    """
    from onnxruntime.quantization import QDQQuantizer, QuantType
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData

    for name, limits in ranges.items():
        if not np.isfinite(limits).all() or limits[0] > limits[1]:
            raise QuantizationError(
                f"tensor {name!r} has the range {limits}; finite numbers min <= max are required",
                hint="calibrate again",
                tensor=name,
            )
    rules = placement.rules
    planned = set(placement.nodes)
    operators = sorted({node.op_type for node in model.graph.node if node.name in planned})
    outputs, input_names = list(model.graph.output), {value.name for value in model.graph.input}
    # For an output, the quantizer renames the result of its producer; an input has no producer.
    refill(model.graph.output, [value for value in outputs if value.name not in input_names])
    # With this entry the quantizer skips shape inference, which would write and reload the model.
    model.metadata_props.add(key="onnx.infer", value="onnxruntime.quant")
    aliases = Aliases(model)  # the quantizer derives names without a check for collisions
    alias = {name: name for name in ranges} | aliases.of
    ranges = {alias[name]: limits for name, limits in ranges.items()}
    pairs = {alias[name]: limits for name, limits in pairs.items()}
    nodes, integers = [alias[name] for name in placement.nodes], dict[str, NDArray[np.int8]]()
    weights = _weight_overrides(model.graph, set(nodes), pairs, integers)
    model_pairs = {node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    values = {
        name: TensorData(lowest=np.float32(low), highest=np.float32(high))
        for name, (low, high) in ranges.items()
        if name not in weights
    }
    options = _quantizer_options(rules, operators, ranges)
    options["TensorQuantOverrides"] |= weights
    try:
        with quiet():
            quantizer = QDQQuantizer(
                model,
                per_channel=True,
                reduce_range=False,
                weight_qType=QuantType.QInt8,
                activation_qType=QuantType.QInt8 if rules.signed(isa) else QuantType.QUInt8,
                tensors_range=TensorsData(CalibrationMethod.MinMax, values),
                nodes_to_quantize=nodes,
                nodes_to_exclude=[],
                op_types_to_quantize=operators,
                extra_options=options,
            )
            quantizer.model.__class__ = _index_consumers(type(quantizer.model))
            quantizer.quantize_model()
            if rules.quantizes_chains:
                store_integers(quantizer.model.model.graph, integers, kept=model_pairs)
            aliases.undo(quantizer.model.model)
            quantizer.model.topological_sort()
            sort_nodes(quantizer.model.model.graph)  # the quantizer's sort ignores inputs of subgraphs
    except ValueError as error:
        match = re.search(r"not specified for param (<\d+>)\. In static mode", str(error))
        if match and match.group(1) not in ranges:
            tensor = aliases.text(match.group(1))
            raise CalibrationError(
                f"tensor {tensor!r} needs a scale and has no range",
                hint="ranges cover only the tensors of their targets: calibrate for this `target`",
                tensor=tensor,
            ) from error
        message = aliases.text(first_line(error))
        raise QuantizationError(f"ONNX Runtime's quantizer failed: {message}") from error
    quantized: onnx.ModelProto = quantizer.model.model
    refill(quantized.graph.output, outputs)
    fuse_residual_adds(quantized.graph, placement.fused)
    read_floats(quantized.graph, planned, kernels_write_float=rules.writes_floats)
    quantize_tables(quantized, set(placement.tables))
    if rules.by_onnxruntime:
        keep_norms_apart(quantized.graph)
        keep_adds_apart(quantized, planned)
    if rules.gathers_by_vectors:
        gather_by_vectors(quantized)
    drop_unused_initializers(quantized.graph)
    _check_scales(quantized)
    return quantized


def _quantizer_options(
    rules: GraphRules, operators: list[str], ranges: Mapping[str, tuple[float, float]]
) -> dict[str, Any]:
    """Return the extra options of ONNX Runtime's quantizer."""
    from onnxruntime.quantization import QuantType

    options: dict[str, Any] = {
        "ActivationSymmetric": rules.symmetric, "WeightSymmetric": True, "AddQDQPairToWeight": True,
        "TensorQuantOverrides": {},
    }  # fmt: skip
    if not rules.quantizes_bias:
        options["QuantizeBias"] = False
    if not rules.quantizes_chains:
        # TensorRT's parser refuses int32 DequantizeLinear, so the bias is float. TensorRT 8.5 reads float
        # weights behind a pair, not stored int8. Only consumers quantize the output of an operator.
        tensorrt_options = {"ForceQuantizeNoInputCheck": True}
        return options | tensorrt_options | {"OpTypesToExcludeOutputQuantization": operators}
    options["OpTypesToExcludeOutputQuantization"] = sorted(WRITES_FLOAT)
    if rules.zero_points == "where free":
        signed = [{"quant_type": QuantType.QInt8, "symmetric": True}]
        # `activation_limits` has set symmetric limits for these tensors.
        symmetric = [name for name, limits in ranges.items() if rules.is_symmetric(*limits)]
        options["TensorQuantOverrides"] = dict.fromkeys(symmetric, signed)
    return options


def activation_limits(
    model: onnx.ModelProto, placement: Placement, ranges: Ranges, method: Method | None
) -> dict[str, tuple[float, float]]:
    """Return the (low, high) limits by `method` of each observed tensor that the placement may scale."""
    rules, scaled = placement.rules, scaled_tensors(model, placement)
    sources = {name: ranges.sources(name) for name in ranges.names() if name in scaled}
    name_of = {source: name for name, source in sources.items()}
    if rules.zero_points != "where free":
        limits = {
            source: ranges.limits(name, method, symmetric=rules.symmetric) for source, name in name_of.items()
        }
        result = {name: limits[source] for name, source in sources.items()}
        if not rules.quantizes_chains:
            share_scales(model.graph, placement.nodes, result)
        return result
    asymmetric = {sources[name] for name in _with_zero_point(model, placement) if name in sources}
    limits = {source: ranges.limits(name, method, symmetric=False) for source, name in name_of.items()}
    for source, name in name_of.items():
        low, high = limits[source]
        if low < 0 and source not in asymmetric:
            limits[source] = ranges.limits(name, method, symmetric=True)
        elif low < 0 and low == -high:  # clipped on both sides; must not count as symmetric
            limits[source] = low, high * (1 + 1e-6)
    return {name: limits[source] for name, source in sources.items()}


def _with_zero_point(model: onnx.ModelProto, placement: Placement) -> set[str]:
    """Return the tensors that are uint8 with a zero point although they contain negative values.

    Symmetric int8 through a Concat loses 10 dB on OpenVINO (2026.4). The quantizer removes a Clip, and a
    symmetric range would lose its lower limit. Products and convolutions with a stored weight read uint8 in
    any case, so a zero point costs nothing. It doubles the levels of the output of a GELU, with a minimum of
    -0.17: 5 dB of a sentence encoder. A product of two activations with a zero point runs in float (2026.4).
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    planned, made_by = set(placement.nodes), producers(model.graph)
    asymmetric: set[str] = set()
    for node in model.graph.node:
        if node.name not in planned:
            continue
        if node.op_type == "Clip":
            asymmetric.update(node.output)
        elif node.op_type in ("MatMul", "Gemm", "Conv") and node.input[1] in stored:
            asymmetric.add(node.input[0])
        elif node.op_type == "Concat":
            asymmetric.update(node.output)
            for name in node.input:
                asymmetric.add(name)
                while name in made_by and made_by[name].op_type in SAME_SCALE:
                    name = made_by[name].input[0]
                    asymmetric.add(name)
    return asymmetric


def _check_scales(model: onnx.ModelProto) -> None:
    pairs = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    scaled = {node.input[1]: node.input[0] for node in pairs}
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor) if tensor.name in scaled else np.ones(1)
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise QuantizationError(
                f"tensor {scaled[tensor.name]!r} got a scale of {values.min()}; "
                "above zero and finite is required",
                hint="exclude its node, or calibrate on more samples",
                tensor=scaled[tensor.name],
            )


def _weight_overrides(
    graph: onnx.GraphProto,
    nodes: Collection[str],
    limits: Mapping[str, PairLimits],
    integers: dict[str, NDArray[np.int8]],
) -> dict[str, list[dict[str, Any]]]:
    """Return the `TensorQuantOverrides` of nodes' stored weights: a scale for each output channel.

    `limits` maps weights to pair limits; their fitted integers are added to `integers`.
    """
    from onnxruntime.quantization import QuantType

    stored = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT}
    axes: dict[str, int] = {}
    for node in graph.node:
        if node.name in nodes and node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            axis = int(node.op_type != "Conv" and not attribute(node, "transB", 0))
            weights = node.input[:2] if node.op_type == "MatMul" else node.input[1:2]
            axes |= {name: axis for name in weights if name in stored and axis < len(stored[name].dims)}
    overrides: dict[str, list[dict[str, Any]]] = {}
    for name, axis in axes.items():
        values = numpy_helper.to_array(stored[name])
        if name in limits:
            scales, integers[name] = limits[name].quantize(values)
        else:
            scales = choose_weight_qparams(values, axis).scale
        common = {"quant_type": QuantType.QInt8, "zero_point": np.int8(0), "axis": axis}
        overrides[name] = [common | {"scale": scale} for scale in scales]
    return overrides


def _index_consumers(base: type) -> type:
    """Return a subclass of the quantizer's model class with an index of the consumers of each tensor.

    This is the only patch of ONNX Runtime's quantizer. The original searches all nodes and initializers for
    each tensor, in quadratic time (BERT-base: 0.73 s of processor time instead of 0.63; ONNX Runtime 1.31.1,
    2026-11-29). The instance holds the index: a class lives until garbage collection, with the model.
    """

    class Indexed(base):  # type: ignore[misc]
        _readers: dict[str, list[Any]]
        _indexed_count = 0

        def _pop_consumers(self, name: str) -> list[Any]:
            nodes = self.model.graph.node
            if not 0 < self._indexed_count <= len(nodes):  # first call, or nodes were removed
                self._readers, self._indexed_count = {}, 0
            for node in nodes[self._indexed_count :]:  # nodes are only appended
                for source in dict.fromkeys(node.input):
                    self._readers.setdefault(source, []).append(node)
            self._indexed_count = len(nodes)
            return self._readers.pop(name, [])

        def initializer_extend(self, inits: Sequence[onnx.TensorProto]) -> None:
            # The original checks all existing initializers each time.
            self.model.graph.initializer.extend(map(self._check_init, inits))

        def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str) -> None:
            readers = self._pop_consumers(old_input_name)
            for node in readers:
                self.replace_node_input(node, old_input_name, new_input_name)
            self._readers.setdefault(new_input_name, []).extend(readers)

        def replace_input_of_nodes(
            self, old_input_name: str, new_input_name: str, node_names_set: Collection[str]
        ) -> None:
            for node in self._pop_consumers(old_input_name):
                is_named = node.name in node_names_set
                if is_named:
                    self.replace_node_input(node, old_input_name, new_input_name)
                name = new_input_name if is_named else old_input_name
                self._readers.setdefault(name, []).append(node)

    return Indexed


def inspect_execution(
    graph: Graph, planned: Sequence[str], *, signed: bool = False
) -> tuple[dict[str, dict[str, int]], dict[str, str], OnnxReference]:
    """Return the operators that ONNX Runtime executes, the planned nodes that run in float, and the session.

    The first is precision to operator to number of weighted nodes, the second node name to reason. `signed`
    makes ONNX Runtime fuse int8 activations, meant for ARM, on x86, too.
    """
    with temporary_folder("executed", graph.path) as folder:
        optimized = folder / "optimized.onnx"
        run = OnnxReference(graph, layouts=True, optimized=optimized, signed=signed)
        model = read_graph(optimized).model
    planned_layers = [node for node in weighted_nodes(graph.model)["int8"] if node.name in set(planned)]
    missed, unknown = missed_nodes(planned_layers, graph.model, model, "int8")
    reasons = {name: f"ONNX Runtime computes it in {kind}" for name, kind in missed.items()}
    reasons |= dict.fromkeys(unknown, "ONNX Runtime does not compute it as an integer")
    return count_weighted(model, as_executed=True), reasons, run


def require_executed(model: onnx.ModelProto, planned: Sequence[str], missed: Mapping[str, str]) -> list[str]:
    """Return a warning about planned nodes in float; raise QuantizationError if their share is too large."""
    if not missed:
        return []
    share, counted = shares(planned, multiply_adds(model))
    total = sum(share[name] for name in missed)
    text = (
        f"ONNX Runtime executes {len(planned) - len(missed)} of {len(planned)} planned nodes as integers; "
        f"{total:.1%} of the planned {counted} stay in float: {format_layers(missed, share)}"
    )
    if total > ALLOWED_SHARE:
        raise QuantizationError(
            text,
            hint="leave them in float with `exclude`: now their Q/DQ only adds conversions",
            nodes=list(missed),
        )
    return [text]
