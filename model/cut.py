"""Cut a graph at tensors: what lies before them, with them as its outputs.

x ─▶ Conv ─▶ Relu ─▶ Conv ─▶ Add ─▶ y        cut at the Relu's tensor        x ─▶ Conv ─▶ Relu ─▶ r
               └───────────────▲
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .graph import captured_names, infer_shapes, infer_types, producers
from .graph_edits import drop_unused_initializers, set_nodes

if TYPE_CHECKING:
    import onnx

_AS_OUTPUT = {"float32": "FLOAT", "float16": "FLOAT16"}
"""Types that an engine returns and numpy has; other floats are cast to float32, exactly."""


def cut(model: onnx.ModelProto, names: Sequence[str]) -> dict[str, str]:
    """Leave of a model what tensors need, with these as its outputs; return tensor to output.

    Args:
        model: It is changed. Inputs, nodes and weights that nothing needs any more go.
        names: Tensors of its outermost graph.
    """
    import onnx

    types, shapes = infer_types(model), infer_shapes(model)
    graph = model.graph
    made_by = producers(graph)
    needed: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        needed.add(name)
        if name in made_by:
            waiting += [one for one in (*made_by[name].input, *captured_names(made_by[name])) if one]
    set_nodes(graph, [node for node in graph.node if needed & set(node.output)])
    outputs: dict[str, str] = {}
    del graph.output[:]
    for name in names:
        kind, output = types.get(name, "float32"), name
        if kind not in _AS_OUTPUT:
            kind, output = "float32", f"{name}/read"
            to = onnx.TensorProto.FLOAT
            graph.node.append(onnx.helper.make_node("Cast", [name], [output], name=output, to=to))
        elem_type = onnx.TensorProto.DataType.Value(_AS_OUTPUT[kind])
        graph.output.append(onnx.helper.make_tensor_value_info(output, elem_type, shapes.get(name)))
        outputs[name] = output
    _keep(graph, needed)
    drop_unused_initializers(graph)
    return outputs


def _keep(graph: onnx.GraphProto, needed: set[str]) -> None:
    """Drop the inputs and the noted types of tensors that are gone."""
    for values in (graph.input, graph.value_info):
        kept = [value for value in values if value.name in needed]
        del values[:]
        values.extend(kept)
    shown = {value.name for value in graph.output}
    types = [value for value in graph.value_info if value.name not in shown]
    del graph.value_info[:]
    graph.value_info.extend(types)
