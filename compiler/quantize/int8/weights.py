"""Weights of ONNX Runtime's quantizer, all channels at once: it would go through them one by one in Python,
which takes longer than everything else for a Transformer. The numbers are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ....calibration.qparams import INT8, QParams, choose_weight_qparams, quantize

if TYPE_CHECKING:
    import onnx


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
        zeros = np.zeros(np.shape(scale), np.int8)
        qparams = QParams(np.asarray(scale), zeros, INT8.qmin, INT8.qmax, axis)
        return onnx.numpy_helper.from_array(quantize(values, qparams), f"{weight.name}_quantized")

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
                parameters_of: dict[str, Any] = super()._calc_initializer_quant_params()
            finally:
                self.tensors_to_quantize = every
            for name, axis in weights.items():
                chosen = choose_weight_qparams(numpy_helper.to_array(stored[name]), axis)
                parameters_of[name] = parameters(
                    zero_point=chosen.zero_point,
                    scale=chosen.scale,
                    quant_type=self.weight_qType,
                    axis=axis,
                )
            return parameters_of

    return Quantizer
