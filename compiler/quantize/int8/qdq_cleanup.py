"""Two rewrites of the Q/DQ graph that ONNX Runtime's quantizer writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....model.graph import consumers, producers
from ....model.graph_edits import drop_unread

if TYPE_CHECKING:
    import onnx


def read_floats(graph: onnx.GraphProto, planned: set[str], *, kernels_write_float: bool = False) -> None:
    """Let nodes that stay in float read the float value where there is one.

    The quantizer gives every reader of a tensor the quantized one: the Add of a residual branch behind a
    LayerNormalization would lose precision, and pay a conversion, for nothing.

        norm ─ Q ─ DQ ─┬─ MatMul      becomes      norm ─┬─ Q ─ DQ ─ MatMul
                       └─ Add                            └─ Add

    Args:
        graph: With Q/DQ pairs.
        planned: Names of the quantized nodes.
        kernels_write_float: Whether an integer kernel can write floats at no cost, for readers of which
            none is planned.
    """
    made_by, readers = producers(graph), consumers(graph)
    outputs = {value.name for value in graph.output}
    inputs = {value.name for value in graph.input}
    for dequantize in [node for node in graph.node if node.op_type == "DequantizeLinear"]:
        quantize = made_by.get(dequantize.input[0])
        if quantize is None or quantize.op_type != "QuantizeLinear":
            continue
        source = made_by.get(quantize.input[0])
        if source is None and quantize.input[0] not in inputs:
            continue  # a stored weight
        behind = {node.name for node in readers.get(dequantize.output[0], ())}
        if (
            source is not None
            and source.name in planned
            and not (kernels_write_float and not behind & planned)
        ):
            continue  # its kernel writes the integers itself
        value = quantize.input[0]
        if dequantize.output[0] in outputs and source is not None:
            value = _return_float(dequantize, quantize, source, readers)
        for node in readers.get(dequantize.output[0], ()):
            if node.name not in planned and node.op_type != "QuantizeLinear":
                for index, name in enumerate(node.input):
                    if name == dequantize.output[0]:
                        node.input[index] = value
    drop_unread(graph, ("QuantizeLinear", "DequantizeLinear"))


def _return_float(
    dequantize: onnx.NodeProto,
    quantize: onnx.NodeProto,
    source: onnx.NodeProto,
    readers: dict[str, list[onnx.NodeProto]],
) -> str:
    """Give the name of a model's output back to the float value; return it."""
    value, name = str(quantize.input[0]), str(dequantize.output[0])
    source.output[list(source.output).index(value)] = name
    rest = f"{name}/dequantized"
    readers[rest] = readers.pop(name, [])
    for node in readers[rest]:
        node.input[:] = [rest if operand == name else operand for operand in node.input]
    for node in readers.get(value, ()):
        node.input[:] = [name if operand == value else operand for operand in node.input]
    dequantize.output[0] = rest
    return name


def keep_norms_apart(graph: onnx.GraphProto) -> None:
    """Write the Add in front of a LayerNormalization as Sum, which computes the same.

    ONNX Runtime would fuse both into SkipLayerNormalization, whose CPU kernel takes eight times as long as
    the two (1.31.1: 0.20 ms against 0.03 ms for 128 x 768 values).
    """
    made_by = producers(graph)
    for node in graph.node:
        if node.op_type == "LayerNormalization":
            before = made_by.get(node.input[0])
            if before is not None and before.op_type == "Add":
                before.op_type = "Sum"
