"""Write TensorRT's own Q/DQ operators, as ModelOpt exports them, as those of ONNX.

    trt::TRT_FP8QuantizeLinear(x, scale)          QuantizeLinear(x, scale, zero of float8e4m3fn)      opset 19
    trt::TRT_FP8DequantizeLinear(q, scale)        DequantizeLinear(q, scale)
    trt::TRT_INT4QuantizeLinear, ...              the same with int4 and block_size                   opset 21
    trt::QuantizeLinear, trt::DequantizeLinear    the same of ONNX's own domain

ModelOpt's own exporters write them so in the end (modelopt/onnx/export/fp8_exporter.py, post_process); files
from before that, and graphs that are exported by hand, have TensorRT's. TRT_FP4DynamicQuantize and
TRT_MXFP8..., whose scales are computed at run time, have no equal in ONNX: they stay, and nothing but
TensorRT computes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...errors import QCompileError
from ...model.graph import ONNX_DOMAINS, attribute, every_graph
from ...model.graph_edits import drop_attributes, store
from ...model.onnx_file import copy_model, opset
from .fit import upgrade_in_place

if TYPE_CHECKING:
    import onnx

DOMAIN = "trt"
_FORMS = {
    "TRT_FP8QuantizeLinear": ("QuantizeLinear", "FLOAT8E4M3FN"),
    "TRT_FP8DequantizeLinear": ("DequantizeLinear", "FLOAT8E4M3FN"),
    "TRT_INT4QuantizeLinear": ("QuantizeLinear", "INT4"),
    "TRT_INT4DequantizeLinear": ("DequantizeLinear", "INT4"),
    "QuantizeLinear": ("QuantizeLinear", ""),
    "DequantizeLinear": ("DequantizeLinear", ""),
}
_OPSETS = {"FLOAT8E4M3FN": 19, "INT4": 21, "": 21}


def find_trt_operators(model: onnx.ModelProto) -> list[str]:
    """Return the operators of TensorRT's that a model has, those without an equal in ONNX included."""
    nodes = [node for graph in every_graph(model.graph) for node in graph.node]
    return sorted(
        {node.op_type for node in nodes if node.domain == DOMAIN or node.op_type.startswith("TRT_")}
    )


def in_standard_forms(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with ONNX's operators in place of TensorRT's; itself where there are none to replace.

    Where its opset cannot be raised to one that has the type, the model stays as it is, too: TensorRT's
    parser reads its own operators in every opset.
    """
    kinds = [_FORMS[node.op_type][1] for node in model.graph.node if _is_replaced(node)]
    if not kinds:
        return model
    copy = copy_model(model)
    lowest = max(_OPSETS[kind] for kind in kinds)
    if opset(copy) < lowest:
        try:
            upgrade_in_place(copy, lowest)
        except QCompileError:
            return model
    _replace(copy.graph)
    left = {node.domain for graph in every_graph(copy.graph) for node in graph.node}
    for index in reversed(range(len(copy.opset_import))):
        if copy.opset_import[index].domain == DOMAIN and DOMAIN not in left:
            del copy.opset_import[index]
    return copy


def _is_replaced(node: onnx.NodeProto) -> bool:
    own = node.domain == DOMAIN or (node.domain in ONNX_DOMAINS and node.op_type.startswith("TRT_"))
    return own and node.op_type in _FORMS


def _replace(graph: onnx.GraphProto) -> None:
    from onnx import TensorProto, helper

    stored = {tensor.name: tensor for tensor in graph.initializer}
    retyped: set[str] = set()
    for node in graph.node:
        if not _is_replaced(node):
            continue
        node.op_type, kind = _FORMS[node.op_type]
        node.domain = ""
        if not kind:
            continue
        number = TensorProto.DataType.Value(kind)
        if node.op_type == "QuantizeLinear":
            retyped.update(node.output)
            if len(node.input) < 3:
                scale = stored.get(node.input[1])
                dtype = helper.tensor_dtype_to_np_dtype(number)
                zeros = np.zeros(list(scale.dims) if scale is not None else [], dtype)
                node.input.append(store(graph, f"{node.output[0]}/zero_point", zeros))
        elif node.input[0] in stored:
            _retype(stored[node.input[0]], number)
        if attribute(node, "block_size", 0) == 0:
            drop_attributes(node, "block_size")
    # What was declared of a quantized tensor is the byte that a custom operator was said to make.
    for index in reversed(range(len(graph.value_info))):
        if graph.value_info[index].name in retyped:
            del graph.value_info[index]


def _retype(tensor: onnx.TensorProto, number: int) -> None:
    """Give stored weights the type that their bytes are of: a float8, or an int4 in a byte of its own."""
    from onnx import TensorProto, helper, numpy_helper

    if tensor.data_type not in (TensorProto.INT8, TensorProto.UINT8):
        return
    values = numpy_helper.to_array(tensor)
    dtype = helper.tensor_dtype_to_np_dtype(number)
    made = values.view(dtype) if number == TensorProto.FLOAT8E4M3FN else values.view(np.int8).astype(dtype)
    tensor.CopyFrom(numpy_helper.from_array(made, tensor.name))
