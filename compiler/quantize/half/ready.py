"""Prepare a graph for half precision without changing what it computes.

1. An opset in which ONNX allows the half type: QuantizeLinear and DequantizeLinear take float16 from 19 on,
   Conv and pools take bfloat16 from 22 on. It is raised no further than the graph's own operators need.
2. Weights behind QuantizeLinear are stored as the integers it makes: rounded to half first, some would
   become other integers.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ....calibration.qparams import QParams, quantize
from ....model.graph import ONNX_DOMAINS, attribute, consumers
from ....model.graph_edits import set_nodes, store
from ....model.onnx_file import opset
from ...opset.fit import upgrade_in_place
from .casts import HalfType, stored_tensor

if TYPE_CHECKING:
    import onnx

QDQ = ("QuantizeLinear", "DequantizeLinear")
OWN_TYPE = ("Cast", "ConstantOfShape")
"""Operators whose output's type is an attribute."""
_NEWEST_OPSET = 22  # what ONNX Runtime 1.21 and TensorRT 10 read; later ones add bfloat16 to rare operators

_FEWEST_QUANTA = 16  # of the half type's smallest subnormal number, in a scale that may be rounded up


def raise_for(model: onnx.ModelProto, half: HalfType, excluded: Container[str]) -> None:
    """Raise the model's opset to the lowest in which its operators may be of the half type.

    Args:
        model: It is changed; its large weights are not copied, so it may be over protobuf's 2 GB.
        half: The type.
        excluded: Names of nodes that stay in float32 anyway.

    Raises:
        UnsupportedOperator: Naming what ONNX's converter could not take.
    """
    operators = {
        node.op_type for node in model.graph.node if node.domain in ONNX_DOMAINS and node.name not in excluded
    }
    if half.name == "float16":
        operators &= set(QDQ)  # the others have had float16 from the beginning, or all but
    current = opset(model)
    lowest = max((_first_opset(operator, current, half) for operator in operators), default=current)
    if lowest <= current:
        return
    upgrade_in_place(model, lowest)


def store_quantized_weights(graph: onnx.GraphProto, half: HalfType, excluded: Container[str]) -> None:
    """Replace each QuantizeLinear of a stored tensor by the integers it makes.

        DequantizeLinear(QuantizeLinear(w, s, z), s, z)    becomes    DequantizeLinear(integers, s', z)

    The integers are those of the float32 graph, and s' is s, except in channels whose scale is subnormal in
    the half type: those get the next larger number of the half type as their scale, and integers for it.
    Rounding the scale alone would change the magnitude of the channel by up to 3 %. Scales so small that
    the next larger number is more than 1/16 larger are left; their pair stays in float32.
    """
    from onnx import numpy_helper

    stored = {tensor.name: tensor for tensor in graph.initializer}
    readers = consumers(graph)
    outputs = {value.name for value in graph.output}
    kept = []
    for node in graph.node:
        read = readers.get(node.output[0], []) if node.output else []
        ready = node.op_type == "QuantizeLinear" and node.domain in ONNX_DOMAINS and node.name not in excluded
        if not ready or node.output[0] in outputs or not _is_plain(node, read, stored):
            kept.append(node)
            continue
        weight, scale, zero_point = (numpy_helper.to_array(stored[name]) for name in node.input)
        fitted = _fitted(scale, half)
        limits = np.iinfo(zero_point.dtype)
        axis = attribute(node, "axis", 1)
        integers = quantize(weight, QParams(fitted, zero_point, limits.min, limits.max, axis))
        store(graph, node.output[0], integers)
        if not np.array_equal(fitted, scale):
            name = f"{node.input[1]}/{node.name}"
            graph.initializer.append(stored_tensor(fitted, name))
            for reader in read:
                reader.input[1] = name
    set_nodes(graph, kept)


def _is_plain(
    node: onnx.NodeProto, readers: list[onnx.NodeProto], stored: dict[str, onnx.TensorProto]
) -> bool:
    """Whether all is stored, in eight bits, with a scale per tensor or channel that its readers share."""
    import onnx

    if len(node.input) != 3 or any(name not in stored for name in node.input):
        return False
    kinds = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
    if stored[node.input[2]].data_type not in kinds or stored[node.input[0]].data_type != 1:
        return False
    if stored[node.input[1]].data_type != 1 or len(stored[node.input[1]].dims) > 1:
        return False
    return all(r.op_type == "DequantizeLinear" and r.input[1:] == node.input[1:] for r in readers)


def _fitted(scale: NDArray[Any], half: HalfType) -> NDArray[np.float32]:
    quanta = scale.astype(np.float64) / half.smallest_subnormal
    larger = np.ceil(quanta) * half.smallest_subnormal
    ours = (scale < half.smallest_normal) & (quanta >= _FEWEST_QUANTA)
    fitted: NDArray[np.float32] = np.where(ours, larger, scale).astype(np.float32)
    return fitted


def _first_opset(operator: str, current: int, half: HalfType) -> int:
    """The first opset from the current one on that allows the type; the current if none does."""
    import onnx

    half_type = f"tensor({half.name})"
    for version in range(current, _NEWEST_OPSET + 1):
        try:
            schema: Any = onnx.defs.get_schema(operator, version, "")
        except onnx.defs.SchemaError:
            continue  # no such operator in this opset, or none at all
        typed = schema.outputs if operator in OWN_TYPE else schema.inputs
        if any(half_type in set(parameter.types) for parameter in typed):
            return version
    return current
