"""Run a Q/DQ graph on a runtime with its integers as outputs, and judge them by the interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from .interpreter import Deviation, Interpreter

Array = NDArray[Any]


def watched(model: onnx.ModelProto, *, dequantized: bool = False) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a copy that returns its integers too, and output name to the tensor that it tells.

    Args:
        model: With QuantizeLinear nodes of activations.
        dequantized: Return what DequantizeLinear makes of them, as runtimes without integer outputs can.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    made = {
        n.output[0]: n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] not in stored
    }
    present = {value.name for value in copy.graph.output}
    names: dict[str, str] = {name: name for name in present}
    for node in model.graph.node:
        reads = node.input[0] if node.input else ""
        if (
            dequantized
            and node.op_type == "DequantizeLinear"
            and reads in made
            and reads not in names.values()
        ):
            if node.output[0] not in present:
                copy.graph.output.append(onnx.helper.make_tensor_value_info(node.output[0], 1, None))
            names[node.output[0]] = reads
        elif not dequantized and node.op_type == "QuantizeLinear" and node.output[0] in made:
            kind = stored[node.input[2]].data_type if len(node.input) > 2 else onnx.TensorProto.UINT8
            copy.graph.output.append(onnx.helper.make_tensor_value_info(node.output[0], kind, None))
            names[node.output[0]] = node.output[0]
        elif not dequantized and node.op_type == "DynamicQuantizeLinear":
            for name, kind in zip(node.output, (2, 1, 2), strict=True):
                copy.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, None))
                names[name] = name
    return copy, names


def integers_of(
    model: onnx.ModelProto, found: Mapping[str, Array], names: Mapping[str, str]
) -> dict[str, Array]:
    """Return tensor name to what a runtime made of it; dequantized values become integers again, exactly."""
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    readers = {node.output[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"}
    given: dict[str, Array] = {}
    for name, tensor in names.items():
        if name == tensor:
            given[name] = found[name]
            continue
        node = readers[name]
        steps = found[name].astype(np.float64) / stored[node.input[1]].astype(np.float64)
        zero = float(stored[node.input[2]]) if len(node.input) > 2 else 0.0
        given[tensor] = np.rint(steps) + zero
    return given


def judged(
    model: onnx.ModelProto, feeds: Mapping[str, Array], given: Mapping[str, Array], *, slack: float = 0.0
) -> tuple[list[Deviation], int]:
    """Return what of a runtime's tensors is wrong, and how many elements were judged."""
    interpreter = Interpreter(model, given, slack=slack)
    interpreter.run(feeds)
    return interpreter.deviations, interpreter.judged
