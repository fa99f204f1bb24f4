"""Write matrix products with NVFP4 or MXFP8 operands, as TensorRT's ONNX parser reads them.

    NVFP4   x ─ TRT_FP4DynamicQuantize ─┬─ values ────────────────── DQ ─ Cast ─┐
                        s ──────────────┴─ E4M3 scales ─ DQ(s) ─ float32 ─┘     ├─ MatMul
            w, E2M1 [N, K] ─────────────────────────── DQ ─ Cast ─ Transpose ───┘
                        E4M3 scales ─ DQ(s) ─ float32 ─┘

    MXFP8   x ─ TRT_MXFP8DynamicQuantize ─┬─ values ─── TRT_MXFP8DequantizeLinear ─┐
                                          └─ E8M0 scales ─┘                        ├─ MatMul
            w, E4M3 [N, K] ─ TRT_MXFP8DequantizeLinear ─ Transpose ────────────────┘
                E8M0 scales ─┘

The form is Model-Optimizer's (modelopt/torch/quantization/export_onnx.py: `export_fp4`, `export_mxfp8`;
modelopt/onnx/export/nvfp4_exporter.py, mxfp8_exporter.py). The scales of an activation's blocks are computed
at run time; the scale of NVFP4's scales is calibrated. E8M0 is stored as uint8: TensorRT-RTX 1.7 refuses
ONNX's FLOAT8E8M0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ....model.graph import attribute, tensor_values
from ....model.graph_edits import drop_attributes, drop_unused_initializers, set_nodes, store
from ....spec.words import BlockFormat
from .formats import BLOCK_SIZE, BlockWeight, quantize_weight, tensor_scale

if TYPE_CHECKING:
    import onnx

DOMAIN = "trt"
LOWEST_OPSET = {"nvfp4": 23, "mxfp8": 19}
"""The first opset whose types hold the values: FLOAT4E2M1, FLOAT8E4M3FN."""
_IR_VERSION = {"nvfp4": 11, "mxfp8": 9}


def to_blocks(model: onnx.ModelProto, kind: BlockFormat, amax: Mapping[str, float]) -> None:
    """Quantize the operands of products, in place.

    Args:
        model: Float graph, or one converted to float16 or bfloat16, of opset `LOWEST_OPSET` or newer.
        kind: The format.
        amax: Name of a planned node to its activation's largest magnitude.
    """
    from onnx import helper

    _Writer(model, kind, amax).run()
    del model.graph.value_info[:]
    drop_unused_initializers(model.graph)
    if DOMAIN not in {entry.domain for entry in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    model.ir_version = max(model.ir_version, _IR_VERSION[kind])


class _Writer:
    """One walk over the graph; operands that several products share are quantized once."""

    def __init__(self, model: onnx.ModelProto, kind: BlockFormat, amax: Mapping[str, float]) -> None:
        self.graph, self.kind, self.amax = model.graph, kind, amax
        self.block = {"axis": -1, "block_size": BLOCK_SIZE[kind]}
        self.stored = {tensor.name: tensor for tensor in model.graph.initializer}
        self.nodes: list[onnx.NodeProto] = []
        self.made: dict[tuple[object, ...], str] = {}

    def run(self) -> None:
        for node in self.graph.node:
            if node.name in self.amax:
                weight = self.stored[node.input[1]]
                activation = self._activation(node.input[0], weight.data_type, self.amax[node.name])
                node.input[1] = self._weight(node, weight)
                node.input[0] = activation
            self.nodes.append(node)
        set_nodes(self.graph, self.nodes)

    def _activation(self, name: str, dtype: int, amax: float) -> str:
        key = (name, dtype, amax)
        if key not in self.made:
            write = self._nvfp4_activation if self.kind == "nvfp4" else self._mxfp8_activation
            self.made[key] = write(name, self._unused(f"{name}/{self.kind}"), dtype, amax)
        return self.made[key]

    def _nvfp4_activation(self, name: str, prefix: str, dtype: int, amax: float) -> str:
        from onnx import TensorProto

        scale = store(self.graph, f"{prefix}/scale", np.asarray(tensor_scale(amax)))
        values, scales = f"{prefix}/values", f"{prefix}/scales"
        e4m3 = int(TensorProto.FLOAT8E4M3FN)
        self._node(
            "TRT_FP4DynamicQuantize", [name, scale], [values, scales], domain=DOMAIN, scale_type=e4m3,
            **self.block,
        )  # fmt: skip
        return self._nvfp4_value(values, scales, scale, prefix, dtype)

    def _nvfp4_value(self, values: str, scales: str, scale: str, prefix: str, dtype: int) -> str:
        from onnx import TensorProto

        self._node("DequantizeLinear", [scales, scale], [f"{prefix}/block_scales"])
        self._node("DequantizeLinear", [values, f"{prefix}/block_scales"], [f"{prefix}/float"], **self.block)
        if dtype == TensorProto.FLOAT:
            return f"{prefix}/float"
        self._node("Cast", [f"{prefix}/float"], [f"{prefix}/half"], to=dtype)
        return f"{prefix}/half"

    def _mxfp8_activation(self, name: str, prefix: str, dtype: int, amax: float) -> str:
        from onnx import TensorProto

        values, scales = f"{prefix}/values", f"{prefix}/scales"
        e4m3 = int(TensorProto.FLOAT8E4M3FN)
        self._node(
            "TRT_MXFP8DynamicQuantize", [name], [values, scales], domain=DOMAIN, output_dtype=e4m3,
            **self.block,
        )  # fmt: skip
        return self._mxfp8_value(values, scales, prefix, dtype)

    def _mxfp8_value(self, values: str, scales: str, prefix: str, dtype: int) -> str:
        self._node(
            "TRT_MXFP8DequantizeLinear", [values, scales], [f"{prefix}/float"], domain=DOMAIN,
            output_dtype=dtype, **self.block,
        )  # fmt: skip
        return f"{prefix}/float"

    def _weight(self, node: onnx.NodeProto, tensor: onnx.TensorProto) -> str:
        """Return the weight that the product reads, and let a Gemm read it as [N, K]."""
        from onnx import helper

        rows_first = bool(attribute(node, "transB", 0))
        key = (tensor.name, rows_first)
        if key not in self.made:
            prefix = self._unused(f"{tensor.name}/{self.kind}")
            weight = tensor_values(tensor).astype(np.float32)
            rounded = quantize_weight(weight if rows_first else weight.T, self.kind)
            self.made[key] = self._dequantized(rounded, prefix, tensor.data_type)
        if node.op_type == "Gemm":
            drop_attributes(node, "transB")
            node.attribute.append(helper.make_attribute("transB", 1))
            return self.made[key]
        turned = (*key, "turned")
        if turned not in self.made:
            self.made[turned] = f"{self.made[key]}/turned"
            self._node("Transpose", [self.made[key]], [self.made[turned]], perm=[1, 0])
        return self.made[turned]

    def _dequantized(self, weight: BlockWeight, prefix: str, dtype: int) -> str:
        values = store(self.graph, f"{prefix}/values", weight.values)
        scales = store(self.graph, f"{prefix}/scales", weight.block_scales)
        if self.kind == "mxfp8":
            return self._mxfp8_value(values, scales, prefix, dtype)
        scale = store(self.graph, f"{prefix}/scale", np.asarray(weight.scale))
        return self._nvfp4_value(values, scales, scale, prefix, dtype)

    def _unused(self, name: str) -> str:
        """A prefix for new names: a tensor that two kinds of readers quantize differently needs two."""
        taken = {key.rpartition("/")[0] for key in self.made.values()}
        return name if name not in taken else f"{name}/{len(self.made)}"

    def _node(self, operator: str, inputs: list[str], outputs: list[str], **options: Any) -> None:
        from onnx import helper

        self.nodes.append(helper.make_node(operator, inputs, outputs, outputs[0], **options))
