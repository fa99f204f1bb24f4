"""Static INT8: `onnxruntime.quantization` inserts Q/DQ by our placement, with our ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ....calibration import Method, Ranges
from ....errors import CalibrationError, QuantizationError, first_line
from ....model.graph import producers
from ....model.graph_edits import drop_unused_initializers, sort_nodes
from ....progress import quiet
from ....spec.words import ARM_ISAS, GraphTarget, Isa
from .between import share_scales
from .gathers import gather_by_vectors
from .gemms import keep_adds_apart
from .pair_limits import PairLimits
from .placement import SAME_SCALE, WRITES_FLOAT, Placement, scaled_tensors
from .qdq_cleanup import keep_norms_apart, read_floats
from .residuals import join_with_convolutions
from .tables import quantize_tables
from .weights import all_channels_at_once

if TYPE_CHECKING:
    import onnx


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
        model: From `prepare.prepared`; it is changed.
        placement: From `placement.plan`.
        ranges: Tensor name to (min, max) in real units.
        isa: Instruction set of the processor that will run it: ONNX Runtime's kernels for ARM take int8
            activations.
        pairs: Weight to its limits, where kernels add two of its products in 16 bits.

    Raises:
        CalibrationError: If a tensor that gets a scale has no range.
        QuantizationError: If a scale is not positive and finite, or a planned node was passed over.
    """
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData

    for name, limits in ranges.items():
        if not np.isfinite(limits).all() or limits[0] > limits[1]:
            raise QuantizationError(
                f"tensor {name!r} has the range {limits}; two finite numbers in order are required",
                hint="calibrate again",
                tensor=name,
            )
    values = {
        name: TensorData(lowest=np.float32(low), highest=np.float32(high))
        for name, (low, high) in ranges.items()
    }
    operators = sorted({n.op_type for n in model.graph.node if n.name in set(placement.nodes)})
    planned = set(placement.nodes)
    _mark_inferred(model)
    try:
        with quiet(), all_channels_at_once(pairs) as quantizer_class:
            quantizer = quantizer_class(
                model,
                per_channel=True,
                reduce_range=False,
                weight_qType=QuantType.QInt8,
                activation_qType=_activation_type(placement.target, isa),
                tensors_range=TensorsData(CalibrationMethod.MinMax, values),
                nodes_to_quantize=list(placement.nodes),
                nodes_to_exclude=[],
                op_types_to_quantize=operators,
                extra_options=_options(placement.target, operators, ranges),
            )
            quantizer.quantize_model()
            quantizer.model.topological_sort()
            sort_nodes(quantizer.model.model.graph)  # its own sort does not see what subgraphs read
    except ValueError as error:
        raise _missing_range(error, ranges) from error
    quantized: onnx.ModelProto = quantizer.model.model
    join_with_convolutions(quantized.graph, placement.fused)
    read_floats(quantized.graph, planned, kernels_write_float=placement.target == "openvino")
    quantize_tables(quantized, set(placement.tables))
    if placement.target == "onnxruntime":
        keep_norms_apart(quantized.graph)
        keep_adds_apart(quantized, planned)
    if placement.target == "openvino":
        gather_by_vectors(quantized)
    drop_unused_initializers(quantized.graph)
    _check_scales(quantized)
    return quantized


def _activation_type(target: GraphTarget, isa: Isa) -> Any:
    from onnxruntime.quantization import QuantType

    signed = target == "tensorrt" or (target == "onnxruntime" and isa in ARM_ISAS)
    return QuantType.QInt8 if signed else QuantType.QUInt8


def _options(
    target: GraphTarget, operators: list[str], ranges: Mapping[str, tuple[float, float]]
) -> dict[str, Any]:
    """Extra options of ONNX Runtime's quantizer for a target."""
    from onnxruntime.quantization import QuantType

    options: dict[str, Any] = {"ActivationSymmetric": target == "tensorrt", "WeightSymmetric": True}
    if target == "tensorrt":
        # Its parser refuses int32 DequantizeLinear, so the bias is float; 8.5 takes weights as float
        # behind a pair, not as stored int8; no operator's output is quantized by itself.
        more = {"QuantizeBias": False, "AddQDQPairToWeight": True, "ForceQuantizeNoInputCheck": True}
        return options | more | {"OpTypesToExcludeOutputQuantization": operators}
    options["OpTypesToExcludeOutputQuantization"] = sorted(WRITES_FLOAT)
    if target == "openvino":
        signed = [{"quant_type": QuantType.QInt8, "symmetric": True}]
        options["QuantizeBias"] = False
        # `activation_limits` made symmetric what is to be symmetric.
        symmetric = [name for name, (low, high) in ranges.items() if low < 0 and low == -high]
        options["TensorQuantOverrides"] = dict.fromkeys(symmetric, signed)
    return options


def activation_limits(
    model: onnx.ModelProto, placement: Placement, ranges: Ranges, method: Method | None
) -> dict[str, tuple[float, float]]:
    """Return tensor name to (low, high) by the method, for the observed tensors that the plan may scale."""
    scaled = scaled_tensors(model, placement)
    sources = {name: ranges.sources(name) for name in ranges.names() if name in scaled}
    one_of = {source: name for name, source in sources.items()}
    if placement.target != "openvino":
        symmetric = placement.target == "tensorrt"
        limits = {source: ranges.limits(name, method, symmetric=symmetric) for source, name in one_of.items()}
        result = {name: limits[source] for name, source in sources.items()}
        if symmetric:
            share_scales(model.graph, placement.nodes, result)
        return result
    uneven = {sources[name] for name in _with_zero_point(model, placement) if name in sources}
    limits = {source: ranges.limits(name, method, symmetric=False) for source, name in one_of.items()}
    for source, name in one_of.items():
        low, high = limits[source]
        if low < 0 and source not in uneven:
            limits[source] = ranges.limits(name, method, symmetric=True)
        elif low < 0 and low == -high:  # clipped on both sides: it is not to be taken for symmetric
            limits[source] = low, high * (1 + 1e-6)
    return {name: limits[source] for name, source in sources.items()}


def _with_zero_point(model: onnx.ModelProto, placement: Placement) -> set[str]:
    """Tensors that OpenVINO needs as uint8 with a zero point, although they hold negative values.

    Symmetric int8 through a Concat loses 10 dB there (2026.4); and the quantizer takes a Clip out, whose
    lower limit a symmetric range would not keep. A product or a convolution with a stored weight takes a
    zero point at no cost (its kernels read uint8 in any case), and what a GELU makes, down to -0.17, has
    twice as many levels by it: 5 dB of a sentence encoder. A product of two activations does not: in float
    it stays with one (2026.4).
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


def _mark_inferred(model: onnx.ModelProto) -> None:
    """Tell the quantizer that shapes are inferred, so that it does not write and read the model again."""
    entry = model.metadata_props.add()
    entry.key, entry.value = "onnx.infer", "onnxruntime.quant"


def _missing_range(error: ValueError, ranges: Iterable[str]) -> Exception:
    import re

    match = re.search(r"not specified for param (.+?)\. In static mode", str(error))
    name = match.group(1) if match else ""
    if name and name not in set(ranges):
        return CalibrationError(
            f"tensor {name!r} needs a scale and has no range",
            hint="ranges cover the tensors that their targets scale: calibrate for this `target`",
            tensor=name,
        )
    return QuantizationError(f"ONNX Runtime's quantizer failed: {first_line(error)}")


def _check_scales(model: onnx.ModelProto) -> None:
    from onnx import numpy_helper

    scales = {
        node.input[1]: node.input[0]
        for node in model.graph.node
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    }
    for tensor in model.graph.initializer:
        if tensor.name in scales:
            values = numpy_helper.to_array(tensor)
            if not (np.isfinite(values).all() and (values > 0).all()):
                raise QuantizationError(
                    f"tensor {scales[tensor.name]!r} got a scale of {values.min()}; "
                    "above zero and finite is required",
                    hint="exclude its node, or calibrate on more samples",
                    tensor=scales[tensor.name],
                )
