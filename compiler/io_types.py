"""Change the types of a model's inputs and outputs with Cast nodes; names stay."""

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
    """Return a copy whose inputs and outputs have the types asked for; inside, everything stays.

        x: float32 ─ model ─ y: float32      becomes      x: float16 ─ Cast ─ model ─ Cast ─ y: float16

    A narrower input holds less than the model could take, and a narrower output less than it computes:
    values beyond a float's range become infinite, and those beyond an integer's wrap around.

    Args:
        model: Any model.
        types: Name of an input or output to the name of its type, as "float16" or "int32". A float stays
            a float, and an integer an integer.
    """
    copy = copy_model(model)
    graph = copy.graph
    io = model_io(copy)
    inputs, outputs = ({tensor.name: tensor.dtype for tensor in ends} for ends in (io.inputs, io.outputs))
    for name, asked in types.items():
        if name not in inputs | outputs:
            known = f"inputs are {', '.join(inputs)}; outputs are {', '.join(outputs)}"
            raise InvalidOption(f"no input or output is named {name!r}: {known}")
        current = (inputs | outputs)[name]
        kind = FLOATS if current in FLOATS else INTEGERS if current in INTEGERS else ()
        if asked not in (*kind, current):
            possible = f"{', '.join(kind)} are possible" if kind else "no other type is possible"
            raise InvalidOption(f"{name!r} of {current}: {asked!r} was asked for; {possible}")
        if name in inputs and name in outputs:
            raise InvalidOption(
                f"{name!r} is both an input and an output of the model: its type cannot change"
            )
        if "bfloat16" in (asked, current) and opset(copy) < BFLOAT16_CAST:
            raise InvalidOption(
                f"{name!r}: a Cast of bfloat16 needs opset {BFLOAT16_CAST}; the model is of {opset(copy)}",
                hint="export the model with a newer opset",
            )
        if asked != current:
            _cast(graph, name, current, asked, is_input=name in inputs)
    return copy


def _cast(graph: onnx.GraphProto, name: str, current: str, asked: str, *, is_input: bool) -> None:
    """Give an input or output another type; the tensor inside gets another name."""
    names = Names(graph)
    inside = names.fresh(f"{name}/{current}")
    rename_inputs(graph, {name: inside})
    for node in graph.node:
        node.output[:] = [inside if result == name else result for result in node.output]
    for tensor in graph.initializer:
        tensor.name = inside if tensor.name == name else tensor.name
    numbers = {dtype_name(number): number for number in TensorProto.DataType.values()}
    to = numbers[asked if not is_input else current]
    ends = (name, inside) if is_input else (inside, name)
    cast = helper.make_node("Cast", [ends[0]], [ends[1]], names.fresh(f"{name}/cast"), to=to)
    graph.node.insert(0 if is_input else len(graph.node), cast)
    for value in graph.input if is_input else graph.output:
        if value.name == name:
            value.type.tensor_type.elem_type = numbers[asked]
