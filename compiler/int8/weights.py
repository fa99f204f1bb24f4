"""Weights of ONNX Runtime's quantizer, all channels at once: it would go through them one by one in Python,
which takes longer than everything else for a Transformer. The numbers are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx

_LEVELS = 127
_TINY = np.finfo(np.float32).tiny


def channel_scales(weight: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return the symmetric int8 scale of each channel, `amax / 127`; 1 for a channel of zeros.

    Args:
        weight: Of any shape; float32.
        axis: The axis of the output channels.

    Returns:
        float32 [weight.shape[axis]].
    """
    others = tuple(index for index in range(weight.ndim) if index != axis)
    amax = np.abs(weight).max(axis=others, initial=0.0).astype(np.float64)
    scales = (2 * amax) / (2 * _LEVELS)
    return np.where(scales < _TINY, 1.0, scales).astype(weight.dtype)


def quantize_channels(weight: NDArray[Any], scales: NDArray[Any], axis: int) -> NDArray[np.int8]:
    """Return `round(weight / scale)` as int8, with a scale per channel; halves go to the even number."""
    shape = [1] * weight.ndim
    shape[axis] = -1
    steps = weight / scales.reshape(shape)
    np.round(steps, out=steps)
    np.clip(steps, -128, 127, out=steps)
    quantized: NDArray[np.int8] = steps.astype(np.int8)
    return quantized


@contextmanager
def all_channels_at_once() -> Iterator[type]:
    """Yield the QDQ quantizer class to use; inside the block, weights are quantized by this file.

    Where ONNX Runtime's quantizer is made otherwise than it was from 1.20 to 1.31, its own loops are used.
    """
    from onnxruntime.quantization import qdq_quantizer

    original = getattr(qdq_quantizer, "quantize_onnx_initializer", None)

    def quantize_initializer(
        weight: onnx.TensorProto,
        quant_type: int,
        zero_point: Any,
        scale: Any,
        axis: int | None = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        import onnx

        plain = not rest and not any(options.values()) and weight.data_type == onnx.TensorProto.FLOAT
        if axis is None or not plain or quant_type != onnx.TensorProto.INT8 or np.any(zero_point):
            return original(weight, quant_type, zero_point, scale, axis, *rest, **options)  # type: ignore[misc]
        values = onnx.numpy_helper.to_array(weight)
        quantized = quantize_channels(values, np.asarray(scale), axis)
        return onnx.numpy_helper.from_array(quantized, f"{weight.name}_quantized")

    if original is not None:
        qdq_quantizer.quantize_onnx_initializer = quantize_initializer
    try:
        yield _quantizer_class(qdq_quantizer)
    finally:
        if original is not None:
            qdq_quantizer.quantize_onnx_initializer = original


def _quantizer_class(module: Any) -> type:
    base: Any = module.QDQQuantizer
    parameters: Any = getattr(module, "QuantizationParams", None)
    if parameters is None or not hasattr(base, "_calc_initializer_quant_params"):
        return base  # type: ignore[no-any-return]

    class Quantizer(base):  # type: ignore[misc]
        """The scales of weights per channel are computed at once, all others as ever."""

        tensors_to_quantize: dict[str, Any]

        def _calc_initializer_quant_params(self) -> dict[str, Any]:
            from onnx import TensorProto, numpy_helper

            stored = {tensor.name: tensor for tensor in self.model.initializer()}
            every: dict[str, Any] = self.tensors_to_quantize
            weights = {
                name: info.axis % len(stored[name].dims)
                for name, info in every.items()
                if name in stored
                and info.axis is not None
                and info.tensor_type is module.QDQQuantTensorType.WEIGHT
                and stored[name].data_type == TensorProto.FLOAT
                and self.weight_qType == TensorProto.INT8
                and not getattr(self, "reduce_range", False)  # 7 bits are its own affair
            }
            self.tensors_to_quantize = {n: info for n, info in every.items() if n not in weights}
            try:
                found: dict[str, Any] = super()._calc_initializer_quant_params()
            finally:
                self.tensors_to_quantize = every
            for name, axis in weights.items():
                scales = channel_scales(numpy_helper.to_array(stored[name]), axis)
                found[name] = parameters(
                    zero_point=np.zeros(len(scales), np.int8),
                    scale=scales,
                    quant_type=self.weight_qType,
                    axis=axis,
                )
            return found

    return Quantizer
