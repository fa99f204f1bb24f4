"""ONNX translations of quantized PyTorch operators for `torch.onnx.export`: one node each.

quantize_per_tensor, quantize_per_channel        QuantizeLinear
dequantize_per_tensor, dequantize_per_channel    DequantizeLinear
"""

from __future__ import annotations

from typing import Any

from ....model.pytorch import import_torch

TRAINED_FOR = "qat_target"
"""Key in a module's `meta` for the target that its scales were trained for."""


def onnx_translations() -> dict[Any, Any]:
    """Return a `custom_translation_table` for `torch.onnx.export(..., dynamo=True)`.

    It writes what `convert`, and torchao's `convert_pt2e`, leave in a graph (`quantized_decomposed`) as
    QuantizeLinear and DequantizeLinear with the trained scales; exporters before onnxscript 0.7 cannot
    do so for scales per channel. Importing them is also what `torch.export.load` of such a model needs.

    Raises:
        EngineUnavailable: If PyTorch is not installed.
    """
    torch = import_torch()
    register_operators()
    operators = torch.ops.quantized_decomposed
    quantize, dequantize = _onnx_functions()
    table: dict[Any, Any] = {}
    for granularity in ("tensor", "channel"):
        for verb, function in (("quantize", quantize), ("dequantize", dequantize)):
            packet = getattr(operators, f"{verb}_per_{granularity}")
            for overload in packet.overloads():
                if overload in ("default", "tensor", "tensor2"):
                    table[getattr(packet, overload)] = function[granularity]
    return table


def register_operators() -> None:
    """Make `torch.ops.quantized_decomposed` exist: programs saved with it can be loaded from then on."""
    from torch.ao.quantization.fx import _decomposed  # noqa: F401


def _onnx_functions() -> tuple[dict[str, Any], dict[str, Any]]:
    from onnxscript import opset18 as op

    def points(scale: Any, zero_point: Any, dtype: int) -> tuple[Any, Any]:
        return op.Cast(scale, to=1), op.Cast(zero_point, to=dtype)

    def narrowed(integers: Any, qmin: int, qmax: int, dtype: int) -> Any:
        """QuantizeLinear saturates to the whole type; a narrower grid is clipped to."""
        whole = {2: (0, 255), 3: (-128, 127), 4: (0, 65535), 5: (-32768, 32767)}
        if whole.get(dtype, (qmin, qmax)) == (qmin, qmax):
            return integers
        limits = [op.Cast(op.Constant(value_int=limit), to=dtype) for limit in (qmin, qmax)]
        return op.Clip(integers, *limits)

    def number(value: Any, kind: str) -> Any:
        if kind == "float" and isinstance(value, float):
            return op.Constant(value_float=value)
        if kind == "int" and isinstance(value, int):
            return op.Constant(value_int=value)
        return op.Squeeze(value)  # a tensor of one value

    def quantize_tensor(
        input: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: int
    ) -> Any:
        chosen = points(number(scale, "float"), number(zero_point, "int"), dtype)
        return narrowed(op.QuantizeLinear(input, *chosen), quant_min, quant_max, dtype)

    def dequantize_tensor(
        input: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: int,  # noqa: ARG001
        out_dtype: int = 1,
    ) -> Any:  # fmt: skip
        chosen = points(number(scale, "float"), number(zero_point, "int"), dtype)
        floats = op.DequantizeLinear(input, *chosen)
        return floats if out_dtype in (None, -1, 1) else op.Cast(floats, to=out_dtype)

    def quantize_channel(
        input: Any, scales: Any, zero_points: Any, axis: int, quant_min: int, quant_max: int, dtype: int
    ) -> Any:
        integers = op.QuantizeLinear(input, *points(scales, zero_points, dtype), axis=axis)
        return narrowed(integers, quant_min, quant_max, dtype)

    def dequantize_channel(
        input: Any, scales: Any, zero_points: Any, axis: int, quant_min: int, quant_max: int, dtype: int,  # noqa: ARG001
        out_dtype: int = 1,
    ) -> Any:  # fmt: skip
        if zero_points is None:
            floats = op.DequantizeLinear(input, op.Cast(scales, to=1), axis=axis)
        else:
            floats = op.DequantizeLinear(input, *points(scales, zero_points, dtype), axis=axis)
        return floats if out_dtype in (None, -1, 1) else op.Cast(floats, to=out_dtype)

    return (
        {"tensor": quantize_tensor, "channel": quantize_channel},
        {"tensor": dequantize_tensor, "channel": dequantize_channel},
    )
