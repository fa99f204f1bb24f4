"""Change the types of a model's inputs and outputs with Cast nodes; their names do not change."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper

from ..errors import InvalidOption
from ..model.graph.graph import dtype_name, model_io, opset
from ..model.graph.graph_names import Names, rename_inputs
from ..model.graph.onnx_file import copy_model
from ..spec.opsets import BFLOAT16_CAST

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def set_io_types(model: onnx.ModelProto, types: Mapping[str, str]) -> onnx.ModelProto:
    """Return a copy with other types of inputs and outputs; tensors inside the graph do not change.

        x: float32 ─ model ─ y: float32      becomes      x: float16 ─ Cast ─ model ─ Cast ─ y: float16

    With a narrower type, values beyond a float's range become infinite and those beyond an integer's wrap.

    Args:
        model: Any model.
        types: Name of an input or output to its type, e.g. "float16" or "int32". A float remains a float, and
            an integer an integer.
    """
    copy = copy_model(model)
    graph = copy.graph
    io = model_io(copy)
    inputs, outputs = ({tensor.name: tensor.dtype for tensor in ends} for ends in (io.inputs, io.outputs))
    for name, requested in types.items():
        if name not in inputs | outputs:
            available = f"inputs are {', '.join(inputs)}; outputs are {', '.join(outputs)}"
            raise InvalidOption(f"no input or output is named {name!r}: {available}")
        current = (inputs | outputs)[name]
        kind = FLOATS if current in FLOATS else INTEGERS if current in INTEGERS else ()
        if requested not in (*kind, current):
            possible = f"{', '.join(kind)} are possible" if kind else "no other type is possible"
            raise InvalidOption(f"{name!r} of {current}: {requested!r} was requested; {possible}")
        if name in inputs and name in outputs:
            raise InvalidOption(
                f"{name!r} is both an input and an output of the model: its type cannot change"
            )
        if "bfloat16" in (requested, current) and opset(copy) < BFLOAT16_CAST:
            raise InvalidOption(
                f"{name!r}: a Cast of bfloat16 needs opset {BFLOAT16_CAST}; the model is of {opset(copy)}",
                hint="export the model with a newer opset",
            )
        if requested != current:
            _cast(graph, name, current, requested, is_input=name in inputs)
    return copy


def _cast(graph: onnx.GraphProto, name: str, current: str, requested: str, *, is_input: bool) -> None:
    """Cast an input or output to another type; the tensor inside the graph gets another name."""
    names = Names(graph)
    inside = names.fresh(f"{name}/{current}")
    rename_inputs(graph, {name: inside})
    for node in graph.node:
        node.output[:] = [inside if result == name else result for result in node.output]
    for tensor in graph.initializer:
        tensor.name = inside if tensor.name == name else tensor.name
    element_types = {dtype_name(number): number for number in TensorProto.DataType.values()}
    cast_type = element_types[requested if not is_input else current]
    cast_io = (name, inside) if is_input else (inside, name)
    cast = helper.make_node("Cast", [cast_io[0]], [cast_io[1]], names.fresh(f"{name}/cast"), to=cast_type)
    graph.node.insert(0 if is_input else len(graph.node), cast)
    for value in graph.input if is_input else graph.output:
        if value.name == name:
            value.type.tensor_type.elem_type = element_types[requested]
