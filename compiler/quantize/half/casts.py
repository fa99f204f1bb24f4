"""Insert casts into a graph that becomes half precision; each tensor is cast once per type.

A stored weight is stored a second time in the other type. The output of a DequantizeLinear gets a second
DequantizeLinear, not a Cast: TensorRT recognizes an INT8 layer by the DequantizeLinear directly in front of
it. All other tensors go through a Cast.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ....calibration.qparams import quantize
from ....model.graph.graph import (
    ONNX_DOMAINS,
    consumers,
    infer_types,
    opset,
    pinned_names,
    subgraphs,
    tensor_values,
)
from ....model.graph.graph_edits import drop_unread, drop_unused_initializers, set_nodes, store
from ....model.graph.graph_names import Names, rename_inputs
from ....model.graph.onnx_file import copy_model
from ....spec.opsets import BFLOAT16_LAYERS
from ...opset.fit import upgrade_in_place
from ...qdq import stored_qparams

Half = Literal["float16", "bfloat16"]


@dataclass(frozen=True)
class HalfType:
    """A 16-bit floating point type."""

    name: Half
    elem_type: int  # in ONNX's enumeration
    dtype: np.dtype[Any]
    largest: float  # 65504, or 3.39e38
    smallest_normal: float  # smaller numbers lose precision bit by bit: 6.1e-5, or 1.18e-38
    smallest_subnormal: float  # half of it and less rounds to zero: 6e-8, or 9.2e-41

    def rounded(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values in this type: ties round to even, values beyond the range become infinite."""
        with np.errstate(over="ignore"):
            return values.astype(self.dtype)


def half_type(name: Half) -> HalfType:
    """Return the properties of a half type."""
    dtype = np.dtype(np.float16 if name == "float16" else ml_dtypes.bfloat16)
    limits = ml_dtypes.finfo(dtype)
    numbers = (limits.max, limits.smallest_normal, limits.smallest_subnormal)
    elem_type = TensorProto.DataType.Value(name.upper())
    return HalfType(name, elem_type, dtype, *map(float, numbers))


class Casts:
    """Float tensors that are half so far, and the nodes of the new graph in order."""

    def __init__(self, graph: onnx.GraphProto, half_type: HalfType) -> None:
        self.graph, self.type = graph, half_type
        self.nodes: list[onnx.NodeProto] = []
        self.weights = {t.name: t for t in graph.initializer if t.data_type == 1}
        self.half: set[str] = set()  # half tensors, including copies and casts
        self.overflowing: set[str] = set()  # float32 tensors that may exceed the half type's range
        self._dequantizers: dict[str, onnx.NodeProto] = {}  # tensor to the float32 form of its node
        self._forms: dict[tuple[str, bool], str] = {}
        self._names = Names(graph)
        self._limits: list[str] = []  # names of the stored least and largest number of the half type

    def form(self, name: str, *, half: bool) -> str:
        """Return the name of a tensor's half or float32 form; insert that form on first use."""
        if (name in self.half) == half:
            return name
        key = (name, half)
        if key not in self._forms:
            form_name = self._names.fresh(f"{name}/{self.type.name if half else 'float32'}")
            self._forms[key] = form_name
            self.half.update([form_name] if half else [])
            if name in self.weights:
                store(self.graph, form_name, self.type.rounded(self.values(name)))
            elif name in self._dequantizers:
                node = onnx.NodeProto()
                node.CopyFrom(self._dequantizers[name])
                node.name, node.output[0] = self._names.fresh(f"{node.name}/float32"), form_name
                self.nodes.append(node)
            else:
                source = self._saturated(name) if half and name in self.overflowing else name
                self._cast(source, form_name, self.type.elem_type if half else TensorProto.FLOAT)
        return self._forms[key]

    def values(self, weight: str) -> NDArray[Any]:
        """Return the values of a stored float32 tensor."""
        return tensor_values(self.weights[weight])

    def remember(self, node: onnx.NodeProto) -> None:
        """Save the float32 form of a DequantizeLinear that is about to become half."""
        float32_node = onnx.NodeProto()
        float32_node.CopyFrom(node)
        self._dequantizers[node.output[0]] = float32_node

    def finish(self) -> None:
        """Write the nodes into the graph; outputs that became half are renamed, and cast back to float32."""
        for name in [output.name for output in self.graph.output if output.name in self.half]:
            inner = self._names.fresh(f"{name}/inner")
            for node in self.nodes:
                node.output[:] = [inner if n == name else n for n in node.output]
                node.input[:] = [inner if n == name else n for n in node.input]
                for graph in subgraphs(node):
                    rename_inputs(graph, {name: inner})
            self._cast(inner, name, TensorProto.FLOAT)
        set_nodes(self.graph, self.nodes)
        drop_unread(self.graph, ("DequantizeLinear",))
        drop_unused_initializers(self.graph)
        del self.graph.value_info[:]  # stale types; consumers infer them again

    def _cast(self, source: str, result: str, to: int) -> None:
        node = self._names.fresh(f"cast/{result}")
        self.nodes.append(helper.make_node("Cast", [source], [result], name=node, to=to))

    def _saturated(self, name: str) -> str:
        """Clip to the half type's range: a mask of -3.4e38 becomes its lowest number, not -inf (then NaN)."""
        for end, value in (("low", -self.type.largest), ("high", self.type.largest)):
            if len(self._limits) < 2:
                limit = self._names.fresh(f"{self.type.name}/{end}")
                self._limits.append(store(self.graph, limit, np.asarray(value, np.float32)))
        clipped, node = self._names.fresh(f"{name}/clipped"), self._names.fresh(f"clip/{name}")
        self.nodes.append(helper.make_node("Clip", [name, *self._limits], [clipped], name=node))
        return clipped


def set_output_type(node: onnx.NodeProto, half: HalfType) -> None:
    """Change the type attribute of a Cast or ConstantOfShape from float32 to the half type."""
    for item in node.attribute:
        if item.name == "to" and item.i == TensorProto.FLOAT:
            item.i = half.elem_type
        elif item.name == "value" and item.t.data_type == TensorProto.FLOAT:
            values = half.rounded(numpy_helper.to_array(item.t))
            item.t.CopyFrom(numpy_helper.from_array(values, item.t.name))
    if node.op_type == "ConstantOfShape" and not node.attribute:
        zero = numpy_helper.from_array(np.zeros(1, half.dtype), "")
        node.attribute.append(helper.make_attribute("value", zero))


QDQ = ("QuantizeLinear", "DequantizeLinear")
TYPE_BY_ATTRIBUTE = ("Cast", "ConstantOfShape")
"""Operators with the output type in an attribute."""
_FEWEST_QUANTA = 16  # minimum of a scale to be rounded up, in units of the smallest subnormal half


def raise_opset(model: onnx.ModelProto, half: HalfType, excluded: Container[str]) -> None:
    """Raise the model's opset in place to the lowest that allows the half type for its operators.

    QuantizeLinear and DequantizeLinear take float16 from 19 on, Conv and pools take bfloat16 from 22 on.
    Large weights are not copied, so the model may exceed protobuf's 2 GB.
    """
    operators = {
        node.op_type for node in model.graph.node if node.domain in ONNX_DOMAINS and node.name not in excluded
    }
    if half.name == "float16":
        operators &= set(QDQ)  # nearly all other operators allow float16 in every opset
    current = opset(model)
    lowest = max((_first_opset(operator, current, half) for operator in operators), default=current)
    if lowest > current:
        upgrade_in_place(model, lowest)


def store_quantized_weights(graph: onnx.GraphProto, half: HalfType, excluded: Container[str]) -> None:
    """Replace each QuantizeLinear of a stored tensor by its integer result.

        DequantizeLinear(QuantizeLinear(w, s, z), s, z)    becomes    DequantizeLinear(integers, s', z)

    Weights rounded to half first could give other integers; these are the integers of the float32 graph.
    s' is s, except for channels with a scale that is subnormal in the half type: those use the next larger
    half number as scale, and integers for it. Rounding the scale alone would change the channel's magnitude
    by up to 3 %. Scales so small that the next larger number may exceed them by more than 1/16 do not change;
    their pair remains in float32.
    """
    stored = {tensor.name: tensor for tensor in graph.initializer}
    readers, names = consumers(graph), Names(graph)
    pinned = pinned_names(graph)
    nodes = []
    for node in graph.node:
        read_by = readers.get(node.output[0], []) if node.output else []
        ready = node.op_type == "QuantizeLinear" and node.domain in ONNX_DOMAINS and node.name not in excluded
        if not ready or node.output[0] in pinned or not _is_plain(node, read_by, stored):
            nodes.append(node)
            continue
        arrays = {name: numpy_helper.to_array(stored[name]) for name in node.input}
        qparams = stored_qparams(node, arrays)
        scale = qparams.scale
        quanta = scale.astype(np.float64) / half.smallest_subnormal
        larger = np.ceil(quanta) * half.smallest_subnormal
        rounds_up = (scale < half.smallest_normal) & (quanta >= _FEWEST_QUANTA)
        fitted = np.where(rounds_up, larger, scale).astype(np.float32)
        integers = quantize(arrays[node.input[0]], replace(qparams, scale=fitted))
        store(graph, node.output[0], integers)
        if not np.array_equal(fitted, scale):
            name = store(graph, names.fresh(f"{node.input[1]}/{node.name}"), fitted)
            for reader in read_by:
                reader.input[1] = name
    set_nodes(graph, nodes)


def _is_plain(
    node: onnx.NodeProto, readers: list[onnx.NodeProto], stored: dict[str, onnx.TensorProto]
) -> bool:
    """Return whether all inputs are stored, 8-bit, and all readers dequantize with the same parameters."""
    if len(node.input) != 3 or any(name not in stored for name in node.input):
        return False
    kinds = (TensorProto.INT8, TensorProto.UINT8)
    if stored[node.input[2]].data_type not in kinds or stored[node.input[0]].data_type != 1:
        return False
    if stored[node.input[1]].data_type != 1 or len(stored[node.input[1]].dims) > 1:
        return False
    return all(r.op_type == "DequantizeLinear" and r.input[1:] == node.input[1:] for r in readers)


def _first_opset(operator: str, current: int, half: HalfType) -> int:
    """Return the first opset from `current` on that allows the half type, or `current` if none does."""
    half_type = f"tensor({half.name})"
    for version in range(current, BFLOAT16_LAYERS + 1):  # later opsets add only rare operators
        try:
            schema: Any = onnx.defs.get_schema(operator, version, "")
        except onnx.defs.SchemaError:
            continue  # the operator does not exist in this opset, or at all
        typed = schema.outputs if operator in TYPE_BY_ATTRIBUTE else schema.inputs
        if any(half_type in set(parameter.types) for parameter in typed):
            return version
    return current


def in_float32(model: onnx.ModelProto, dtype: Half = "bfloat16") -> onnx.ModelProto:
    """Return a float32 model that emulates a half model up to summation order, by rounding after each node.

    Half tensors become float32 with half values: hardware also multiplies halves exactly and sums in float32.
    """
    copy = copy_model(model)
    graph, kind = copy.graph, TensorProto.DataType.Value(dtype.upper())
    rounded = {name for name, dtype_name in infer_types(model).items() if dtype_name == dtype}
    for tensor in graph.initializer:
        if tensor.data_type == kind:
            values = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    names = Names(graph)
    wide = {
        v.name: names.fresh(f"{v.name}/wide") for v in graph.input if v.type.tensor_type.elem_type == kind
    }
    rename_inputs(graph, wide)
    nodes = [
        helper.make_node("Cast", [name], [wide_name], to=TensorProto.FLOAT)
        for name, wide_name in wide.items()
    ]
    for value in graph.output:
        if value.type.tensor_type.elem_type == kind:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for node in graph.node:
        nodes.append(node)
        for item in node.attribute:
            if item.name in ("to", "dtype", "output_dtype") and item.i == kind:
                item.i = TensorProto.FLOAT
        for index, name in enumerate(node.output):
            if name in rounded:
                node.output[index], narrow = (names.fresh(f"{name}/{end}") for end in ("wide", "narrow"))
                nodes.append(helper.make_node("Cast", [node.output[index]], [narrow], to=kind))
                nodes.append(helper.make_node("Cast", [narrow], [name], to=TensorProto.FLOAT))
    del graph.value_info[:]
    set_nodes(graph, nodes)
    return copy
