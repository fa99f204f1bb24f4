"""Static INT8: Q/DQ placed by `onnxruntime.quantization` where our plan says, with our ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..calibration import Method, Ranges
from ..errors import CalibrationError, QuantizationError, first_line
from ..model.graph import drop_unused_initializers
from ..progress import quiet
from .finish import keep_norms_apart, read_floats
from .placement import WRITES_FLOAT, Placement, Target, scaled_tensors
from .tables import quantize_tables
from .weights import all_channels_at_once

if TYPE_CHECKING:
    import onnx


Processor = Literal["vnni", "avx2", "arm"]
PROCESSORS: tuple[Processor, ...] = ("vnni", "avx2", "arm")


def quantize_static(
    model: onnx.ModelProto,
    placement: Placement,
    ranges: Mapping[str, tuple[float, float]],
    *,
    processor: Processor = "vnni",
) -> onnx.ModelProto:
    """Return the prepared model with Q/DQ pairs.

    Args:
        model: From `prepare.prepared`; it is changed.
        placement: From `placement.plan`.
        ranges: Tensor name to (min, max) in real units.
        processor: What an artifact for ONNX Runtime will run on. "vnni": x86 that multiplies uint8 by int8
            into int32. "avx2": x86 that sums two products in int16, which overflows unless weights have
            7 bits. "arm": its kernels take int8 activations.

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
        with quiet(), all_channels_at_once() as quantizer_class:
            quantizer = quantizer_class(
                model,
                per_channel=True,
                reduce_range=processor == "avx2",
                weight_qType=QuantType.QInt8,
                activation_qType=_activation_type(placement.target, processor),
                tensors_range=TensorsData(CalibrationMethod.MinMax, values),
                nodes_to_quantize=list(placement.nodes),
                nodes_to_exclude=[],
                op_types_to_quantize=operators,
                extra_options=_options(placement.target, operators, ranges),
            )
            quantizer.quantize_model()
            quantizer.model.topological_sort()
    except ValueError as error:
        raise _missing_range(error, ranges) from error
    quantized: onnx.ModelProto = quantizer.model.model
    read_floats(quantized.graph, planned)
    quantize_tables(quantized, set(placement.tables))
    if placement.target == "onnxruntime":
        keep_norms_apart(quantized.graph)
    drop_unused_initializers(quantized.graph)
    _check_scales(quantized)
    return quantized


def _activation_type(target: Target, processor: Processor) -> Any:
    from onnxruntime.quantization import QuantType

    signed = target == "tensorrt" or (target == "onnxruntime" and processor == "arm")
    return QuantType.QInt8 if signed else QuantType.QUInt8


def _options(
    target: Target, operators: list[str], ranges: Mapping[str, tuple[float, float]]
) -> dict[str, Any]:
    """What ONNX Runtime's quantizer is told about a target."""
    from onnxruntime.quantization import QuantType

    found: dict[str, Any] = {"ActivationSymmetric": target == "tensorrt", "WeightSymmetric": True}
    if target == "tensorrt":
        # Its parser refuses int32 DequantizeLinear, so the bias is float; 8.5 takes weights as float
        # behind a pair, not as stored int8; no operator's output is quantized by itself.
        more = {"QuantizeBias": False, "AddQDQPairToWeight": True}
        return found | more | {"OpTypesToExcludeOutputQuantization": operators}
    found["OpTypesToExcludeOutputQuantization"] = sorted(WRITES_FLOAT)
    if target == "openvino":
        signed = [{"quant_type": QuantType.QInt8, "symmetric": True}]
        found["QuantizeBias"] = False
        found["TensorQuantOverrides"] = {name: signed for name, (low, _) in ranges.items() if low < 0}
    return found


def activation_limits(
    model: onnx.ModelProto, placement: Placement, ranges: Ranges, method: Method | None
) -> dict[str, tuple[float, float]]:
    """Return tensor name to (low, high) by the method, for the observed tensors that the plan may scale."""
    scaled = scaled_tensors(model, placement)
    sources = {name: ranges.sources(name) for name in ranges.names() if name in scaled}
    one_of = {source: name for name, source in sources.items()}
    limits = {source: _limits(ranges, name, method, placement.target) for source, name in one_of.items()}
    return {name: limits[source] for name, source in sources.items()}


def _limits(ranges: Ranges, name: str, method: Method | None, target: Target) -> tuple[float, float]:
    if target == "openvino" and not ranges.fixed:
        low, high = ranges.limits(name, method, symmetric=False)
        return (low, high) if low >= 0 else ranges.limits(name, method, symmetric=True)
    return ranges.limits(name, method, symmetric=target == "tensorrt")


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
            hint="ranges hold what the targets they were made for scale: calibrate for this --target",
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
