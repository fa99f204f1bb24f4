"""Static INT8: Q/DQ placed by `onnxruntime.quantization` where our plan says, with our ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..calibration import Method, Ranges
from ..errors import CalibrationError, QuantizationError, first_line
from ..model.graph import consumers, drop_unused_initializers, producers
from ..progress import quiet
from .placement import Placement, scaled_tensors
from .weights import all_channels_at_once

if TYPE_CHECKING:
    import onnx


def quantize_static(
    model: onnx.ModelProto, placement: Placement, ranges: Mapping[str, tuple[float, float]]
) -> onnx.ModelProto:
    """Return the prepared model with Q/DQ pairs.

    Args:
        model: From `prepare.prepared`; it is changed.
        placement: From `placement.plan`.
        ranges: Tensor name to (min, max) in real units.

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
    tensorrt = placement.target == "tensorrt"
    operators = sorted({n.op_type for n in model.graph.node if n.name in set(placement.nodes)})
    _mark_inferred(model)
    try:
        with quiet(), all_channels_at_once() as quantizer_class:
            quantizer = quantizer_class(
                model,
                per_channel=True,
                reduce_range=False,
                weight_qType=QuantType.QInt8,
                activation_qType=QuantType.QInt8 if tensorrt else QuantType.QUInt8,
                tensors_range=TensorsData(CalibrationMethod.MinMax, values),
                nodes_to_quantize=list(placement.nodes),
                nodes_to_exclude=[],
                op_types_to_quantize=operators,
                extra_options=_TENSORRT_OPTIONS | {"OpTypesToExcludeOutputQuantization": operators}
                if tensorrt
                else _ONNXRUNTIME_OPTIONS,
            )
            quantizer.quantize_model()
            quantizer.model.topological_sort()
    except ValueError as error:
        raise _missing_range(error, ranges) from error
    quantized: onnx.ModelProto = quantizer.model.model
    if not tensorrt:
        _float_outputs(quantized.graph)
    drop_unused_initializers(quantized.graph)
    _check_scales(quantized)
    return quantized


_ONNXRUNTIME_OPTIONS: dict[str, Any] = {"ActivationSymmetric": False, "WeightSymmetric": True}

_TENSORRT_OPTIONS: dict[str, Any] = {
    "ActivationSymmetric": True,
    "WeightSymmetric": True,
    "QuantizeBias": False,  # its parser refuses int32 DequantizeLinear
    "AddQDQPairToWeight": True,  # 8.5 takes weights as float behind a pair, not as stored int8
}


def activation_limits(
    model: onnx.ModelProto, placement: Placement, ranges: Ranges, method: Method | None
) -> dict[str, tuple[float, float]]:
    """Return tensor name to (low, high) by the method, for the observed tensors that the plan may scale."""
    scaled = scaled_tensors(model, placement)
    symmetric = placement.target == "tensorrt"
    sources = {name: ranges.sources(name) for name in ranges.names() if name in scaled}
    one_of = {source: name for name, source in sources.items()}
    limits = {source: ranges.limits(name, method, symmetric=symmetric) for source, name in one_of.items()}
    return {name: limits[source] for name, source in sources.items()}


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


def _float_outputs(graph: onnx.GraphProto) -> None:
    """Take Q/DQ off model outputs that a MatMul or Gemm makes: those kernels write float for free.

    Gemm ─ Q ─ DQ ─ output      becomes      Gemm ─ output
    """
    made_by, readers = producers(graph), consumers(graph)
    for output in graph.output:
        dequantize = _maker(made_by, output.name, "DequantizeLinear")
        quantize = _maker(made_by, dequantize.input[0], "QuantizeLinear") if dequantize else None
        source = _maker(made_by, quantize.input[0], "MatMul", "Gemm") if quantize else None
        if dequantize is None or quantize is None or source is None:
            continue
        value = quantize.input[0]
        sole = len(readers[value]) == 1 and len(readers[quantize.output[0]]) == 1
        if sole and output.name not in readers:
            source.output[list(source.output).index(value)] = output.name
            graph.node.remove(quantize)
            graph.node.remove(dequantize)


def _maker(made_by: Mapping[str, onnx.NodeProto], name: str, *operators: str) -> onnx.NodeProto | None:
    """The node that makes a tensor, if it is one of the operators."""
    node = made_by.get(name)
    return node if node is not None and node.op_type in operators else None


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
