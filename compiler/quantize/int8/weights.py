"""Weights of ONNX Runtime's quantizer, all channels at once: it would go through them one by one in Python,
which takes longer than everything else for a Transformer. The numbers are the same, but for weights of which
no two products may overflow in 16 bits (`pair_limits`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ....calibration.qparams import INT8, QParams, choose_weight_qparams, quantize
from ....errors import EngineUnavailable
from .pair_limits import PairLimits

if TYPE_CHECKING:
    import onnx


@contextmanager
def all_channels_at_once(limits: Mapping[str, PairLimits]) -> Iterator[type]:
    """Yield the QDQ quantizer class to use; inside the block, weights are quantized by this file.

    Where ONNX Runtime's quantizer is made otherwise than it was from 1.20 to 1.31, its own loops are used.

    Args:
        limits: Weight to its limits, where two of its products are added in 16 bits.

    Raises:
        EngineUnavailable: If there are limits, and the quantizer is made otherwise.
    """
    import onnxruntime
    from onnxruntime.quantization import qdq_quantizer

    original = getattr(qdq_quantizer, "quantize_onnx_initializer", None)
    fitted: dict[str, NDArray[np.int8]] = {}
    quantizer = _quantizer_class(qdq_quantizer, limits, fitted)
    if limits and (original is None or quantizer is qdq_quantizer.QDQQuantizer):
        raise EngineUnavailable(
            f"ONNX Runtime {onnxruntime.__version__} quantizes weights in another way than 1.20 to 1.31: "
            "they cannot be fitted to a processor without VNNI",
            hint="pip install 'onnxruntime<1.32'",
            engine="onnxruntime",
        )

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

        if weight.name in fitted:
            return onnx.numpy_helper.from_array(fitted[weight.name], f"{weight.name}_quantized")
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
        yield quantizer
    finally:
        if original is not None:
            qdq_quantizer.quantize_onnx_initializer = original


def _quantizer_class(
    module: Any, limits: Mapping[str, PairLimits], fitted: dict[str, NDArray[np.int8]]
) -> type:
    """The class; it writes the integers of weights that have limits to `fitted`."""
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
            }
            self.tensors_to_quantize = {n: info for n, info in every.items() if n not in weights}
            try:
                parameters_of: dict[str, Any] = super()._calc_initializer_quant_params()
            finally:
                self.tensors_to_quantize = every
            for name, axis in weights.items():
                values = numpy_helper.to_array(stored[name])
                if name in limits:
                    scales, fitted[name] = limits[name].fitted(values)
                    zeros = np.zeros(scales.shape, np.int8)
                else:
                    chosen = choose_weight_qparams(values, axis)
                    scales, zeros = chosen.scale, chosen.zero_point
                parameters_of[name] = parameters(
                    zero_point=zeros,
                    scale=scales,
                    quant_type=self.weight_qType,
                    axis=axis,
                )
            return parameters_of

    return Quantizer
