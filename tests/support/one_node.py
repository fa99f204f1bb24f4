"""A model of one node."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper


def one_node(
    operator: str,
    inputs: dict[str, int],
    outputs: dict[str, int],
    *,
    opset: int = 21,
    domain: str = "",
    stored: tuple[onnx.TensorProto, ...] = (),
    **how: Any,
) -> onnx.ModelProto:
    """Return a model of one node; tensors are named with their ONNX types, and have any shape."""
    names = [*inputs, *(tensor.name for tensor in stored)]
    node = helper.make_node(operator, names, [*outputs], domain=domain, **how)
    read, made = (
        [helper.make_tensor_value_info(name, kind, None) for name, kind in some.items()]
        for some in (inputs, outputs)
    )
    graph = helper.make_graph([node], "one", read, made, stored)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)
