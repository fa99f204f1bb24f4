"""Quantization methods: each takes a request and returns the graph to write, with facts for its manifest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import onnx
from numpy.typing import NDArray

from ...calibration import Ranges, float_activations, observe, parse_method
from ...calibration.taps import choose_taps
from ...errors import InvalidOption, QuantizationError
from ...model.graph.graph import WEIGHTED, attribute, count_weighted, weighted_nodes
from ...model.graph.graph_rules import NONE, graph_rules
from ...model.graph.onnx_file import Graph
from ...model.graph.saturating_kernels import saturating_kernels
from ...model.sessions.session import import_onnxruntime
from ...spec.opsets import FLOAT8
from ...spec.words import ARM_ISAS, HALVES
from ..opset.exact_forms import keep_layers_apart
from ..opset.fit import in_newer_opset
from ..opset.recurrent_products import float_recurrences, quantize_states, rewrite_recurrences
from .half.casts import half_type
from .half.precision import in_mixed_precision, layer_precisions, to_half
from .int8.corrections import correct_biases, round_weights
from .int8.dynamic import dynamic_nodes, quantize_dynamic, quantize_lstms
from .int8.pair_limits import find_pair_limits
from .int8.placement import place_nodes
from .int8.rewrites import (
    is_table,
    join_biases,
    keep_norms_apart,
    keep_relus_apart,
    quantize_tables,
    to_float8,
)
from .int8.static import activation_limits, inspect_execution, quantize_static, require_executed
from .judge import Judge
from .prepare import copy_shared_weights, prepare_graph, products_of_places
from .request import (
    Outcome,
    QuantizeRequest,
    glob_for_name,
    hint_without_static,
    match_nodes,
    nothing_to_quantize,
    require_reached,
)
from .search import GOOD_DB, best_static
from .weights.hessians import collect_hessians
from .weights.rewrite import quantize_weights

_GPTQ_SAMPLES = 128  # samples for GPTQ
_HINT_DB = 6.0  # gain of dynamic over static INT8 that warrants a warning
_PROBED_ON = 16  # samples in which FP16 looks for activations that overflow


def quantize_graph(request: QuantizeRequest, judge: Judge) -> Outcome:
    """Quantize according to the request, in memory."""
    if request.spec.precision in HALVES:
        return _convert_to_half(request)
    import_onnxruntime()  # all three modes use its quantizer, for any target
    floats = {request.spec.floats, *request.spec.layer_precisions.values()}
    if "fp16" in floats and request.spec.data is not None:
        request = replace(request, observed=_observe_floats(request))
    by_mode: dict[str, Callable[[QuantizeRequest], Outcome]] = {
        "static": lambda request: _try_dynamic(request, best_static(request, _quantize_static, judge), judge),
        "dynamic": _quantize_dynamic,
        "weights": _quantize_weights,
    }
    return by_mode[request.spec.mode](request)


def _try_dynamic(request: QuantizeRequest, outcome: Outcome, judge: Judge) -> Outcome:
    """Add a warning if dynamic INT8, with scales found at run time, loses much less than static INT8."""
    static_db = outcome.judged.rank_db if outcome.judged else math.inf
    rules = graph_rules(request.spec.target)
    if static_db >= GOOD_DB or not rules.by_onnxruntime or request.spec.precision != "int8":
        return outcome
    if 2 * len(dynamic_nodes(prepare_graph(request.model), ())) < sum(
        count_weighted(outcome.model)["int8"].values()
    ):
        return outcome  # dynamic INT8 would leave most layers in float
    try:
        dynamic = judge(_quantize_dynamic(request))
    except QuantizationError:
        return outcome
    if dynamic.failed or dynamic.broken or dynamic.rank_db < static_db + _HINT_DB:
        return outcome
    text = (
        f"`mode` dynamic has {dynamic.snr_db:.1f} dB on the data, where static INT8 has "
        f"{outcome.judged.snr_db if outcome.judged else static_db:.1f}: compare both with `qcompile bench`"
    )
    return replace(outcome, warnings=[*outcome.warnings, text])


def _convert_to_half(request: QuantizeRequest) -> Outcome:
    ranges, warnings = request.ranges, []
    if request.spec.precision == "bf16":
        pass  # its range is that of float32
    elif ranges is not None:
        warnings = _unobserved_warnings(request.model, ranges)
    elif request.spec.data is not None:
        ranges = _observe_floats(request)
    else:
        warnings = ["no data was given: values beyond float16's 65504 were not looked for"]
    dtype = HALVES[request.spec.precision]
    graph = request.model.graph
    blocked = match_nodes(graph, request.spec.exclude, only=request.spec.only)
    layers = layer_precisions(request, graph)
    blocked |= {name: layer.reason for name, layer in layers.items() if layer.kind == "fp32"}
    half, in_float32 = to_half(request.model, dtype, block=blocked, ranges=ranges)
    casts = {attribute(node, "to") for node in half.graph.node if node.op_type == "Cast"}
    if half_type(dtype).elem_type not in casts.union(tensor.data_type for tensor in half.graph.initializer):
        raise QuantizationError(
            f"{request.path}: no node could become {dtype}: "
            f"{next(iter(in_float32.values()), 'it has no tensor of float32')}",
            hint="see `exclude`, `only` and `layers`, and the types of the model's tensors",
        )
    proof = {"nodes_by_precision": count_weighted(half), "left_in_float": in_float32}
    return Outcome(half, proof, warnings)


def _observe_floats(request: QuantizeRequest) -> Ranges:
    request.progress("look for values beyond float16")
    tensors = float_activations(request.model)
    return observe(request.graph, request.samples(_PROBED_ON, is_spread=True), tensors=tensors, infinite=True)


def _quantize_weights(request: QuantizeRequest) -> Outcome:
    options = request.spec
    rules = graph_rules(options.target)
    quant_format = options.quant_format or ("nbits" if rules.by_onnxruntime else "qdq")
    ready = prepare_graph(request.model)
    if quant_format == "nbits" and not rules.reads_nbits:
        raise InvalidOption(
            "`quant_format` 'nbits' needs ONNX Runtime's own operators; `target` is " + options.target,
            hint="leave `quant_format` out",
            option="quant_format",
        )
    excluded = match_nodes(ready.graph, options.exclude, only=options.only)
    excluded |= products_of_places(ready.graph)

    def hessians(keys: set[str]) -> Mapping[str, NDArray[Any]]:
        samples = request.samples(_GPTQ_SAMPLES)
        observed = collect_hessians(request.graph, keys, samples, _GPTQ_SAMPLES, request.progress)
        request.progress("round the weights")
        return observed

    model, proof = quantize_weights(
        ready,
        bits=4 if request.spec.precision == "int4" else 8,
        block_size=options.block_size,
        quant_format=quant_format,
        excluded=excluded,
        hessians=hessians if options.rounding == "gptq" else None,
    )
    return Outcome(model, {**proof, "quant_format": quant_format})


def _quantize_dynamic(request: QuantizeRequest) -> Outcome:
    model = prepare_graph(request.model)
    excluded = match_nodes(model.graph, request.spec.exclude, only=request.spec.only)
    excluded |= products_of_places(model.graph)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    tables = {node.name for node in model.graph.node if is_table(node, stored)} - excluded.keys()
    quantized, planned, reached = model, dict[str, int](), dict[str, int]()
    if not tables or dynamic_nodes(model, excluded):
        quantized, planned, reached = quantize_dynamic(
            model, excluded=excluded, weight_type=request.spec.weight_type,
            kernels=saturating_kernels(request.spec.target, request.spec.isa),
        )  # fmt: skip
    quantize_tables(quantized, tables)
    keep_norms_apart(quantized.graph)
    return Outcome(quantized, {"planned": planned, "quantized": reached, "tables": sorted(tables)})


def _quantize_static(request: QuantizeRequest) -> Outcome:
    assert request.ranges is not None, "check_ranges comes first"
    method = parse_method(request.spec.method) if request.spec.method else None
    float8 = request.spec.precision == "fp8"
    model = request.model
    if float8:
        model = in_newer_opset(request.graph, FLOAT8, data=request.spec.data)
    ready = prepare_graph(model)
    layers = layer_precisions(request, ready.graph)
    blocked = {name: layer.reason for name, layer in layers.items() if layer.kind != "int8"}
    blocked |= {**match_nodes(ready.graph, request.spec.exclude), **request.in_float}
    unselected = match_nodes(ready.graph, (), only=request.spec.only)  # before rewrites change the names
    rules = graph_rules(request.spec.target)
    if rules.by_onnxruntime:
        join_biases(Graph(ready, request.path), exclude=blocked)
    opens = rules.opens_recurrences and request.spec.precision == "int8"
    recurrent = rewrite_recurrences(ready, exclude=blocked | unselected) if opens else []
    # `only` restricts layers and tables; operators between quantized layers are quantized with them.
    stored = {tensor.name: tensor for tensor in ready.graph.initializer}
    nodes = {n.name for n in ready.graph.node if n.op_type in WEIGHTED or is_table(n, stored)}
    chosen_nodes = {name for name, layer in layers.items() if layer.kind == "int8"}
    chosen_nodes = nodes & (chosen_nodes | (nodes - unselected.keys() if request.spec.only else set()))
    kernels = NONE if float8 else saturating_kernels(request.spec.target, request.spec.isa)
    placement = place_nodes(
        ready,
        request.spec.target,
        exclude=map(glob_for_name, blocked.keys() | (nodes & unselected.keys())),
        chosen=map(glob_for_name, chosen_nodes),
        float8=float8,
        multiplies_activations=not kernels.activations,
    )
    floats = {**placement.left_in_float, **(float_recurrences(ready) if opens else {})}
    floats = {name: (unselected | blocked).get(name, reason) for name, reason in floats.items()}
    placement = replace(placement, left_in_float=floats)
    operators = {node.name: node.op_type for node in ready.graph.node}
    planned = [name for name in placement.nodes if operators[name] in WEIGHTED]
    if not planned:
        raise nothing_to_quantize(
            placement.left_in_float,
            "no Conv, ConvTranspose, MatMul or Gemm",
            hint_without_static({*operators.values()}, by_onnxruntime=rules.by_onnxruntime),
        )
    copy_shared_weights(ready.graph, planned)
    limits = activation_limits(ready, placement, request.ranges, method)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in ready.graph.initializer}
    pairs = find_pair_limits(
        [node for node in ready.graph.node if node.name in set(planned)], shapes, kernels
    )
    result = quantize_static(ready, placement, limits, isa=request.spec.isa, pairs=pairs)
    states = quantize_states(result) if recurrent else 0
    if float8:
        to_float8(
            result, half_scales="fp16" in (request.spec.floats, *request.spec.layer_precisions.values())
        )
    rounded = 0
    if request.spec.rounding == "gptq":
        samples = request.samples(_GPTQ_SAMPLES)
        rounded = round_weights(request.graph, result, samples, _GPTQ_SAMPLES, request.progress, pairs=pairs)
    corrected = 0
    if request.spec.correct_bias and request.spec.data is not None:
        samples = request.samples(request.corrected_on)
        result, corrected = correct_biases(request.graph, result, samples, progress=request.progress)
    result, in_float32, missed = in_mixed_precision(request, result, layers)
    if rules.by_onnxruntime:
        keep_layers_apart(result)
        keep_relus_apart(result, set(planned))
    lstms = list[str]()
    if request.dynamic_lstms:
        lstms = [node.name for node in dynamic_nodes(result, blocked | unselected) if node.op_type == "LSTM"]
        quantize_lstms(result, lstms, weight_type=request.spec.weight_type, kernels=kernels)
    require_reached(planned, [node.name for node in weighted_nodes(result).get(request.spec.precision, ())])
    proof: dict[str, object] = {
        "nodes_by_precision": count_weighted(result),
        "left_in_float": {n: why for n, why in placement.left_in_float.items() if n not in lstms},
        "left_in_fp32": in_float32,
        "corrected_biases": corrected,
        "rounded_weights": rounded,
        "tables": list(placement.tables),
        "lstms": {"opened": recurrent, "state_products": states, "dynamic": lstms},
    }

    warnings = [*_unfused_warnings(request.model.graph), *missed, *placement.warnings]

    if not rules.by_onnxruntime:
        return Outcome(result, proof, warnings)
    request.progress("check what ONNX Runtime executes")
    counts, in_float, run = inspect_execution(
        Graph(result, request.path), planned, signed=request.spec.isa in ARM_ISAS
    )
    if in_float.keys() - request.in_float.keys():
        # Their Q/DQ only cost conversions. Plan again without them; their producers may drop out as well.
        return _quantize_static(replace(request, in_float={**request.in_float, **in_float}))
    warnings += require_executed(result, planned, in_float)
    return Outcome(result, {**proof, "as_executed": counts}, warnings, run=run)


def _unfused_warnings(graph: onnx.GraphProto) -> list[str]:
    """Warn of BatchNormalization behind Conv: in float, it costs two conversions."""
    convolved = {node.output[0] for node in graph.node if node.op_type == "Conv"}
    count = sum(node.op_type == "BatchNormalization" and node.input[0] in convolved for node in graph.node)
    text = f"{count} BatchNormalization behind a Conv stay in float: simplify first, then calibrate"
    return [text] if count else []


def _unobserved_warnings(proto: onnx.ModelProto, ranges: Ranges) -> list[str]:
    """Warn if ranges lack activations: they cover what INT8 scales, but more may overflow in float16."""
    activations = set(choose_taps(proto, float_activations(proto)).names)
    unobserved = activations - set(ranges.names())
    if not unobserved:
        return []
    return [
        f"{len(unobserved)} of {len(activations)} activations are not in the ranges: values beyond float16's "
        "65504 were not looked for there; `data` without `ranges` looks everywhere"
    ]
