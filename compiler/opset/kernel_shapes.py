"""Write the kernel_shape of convolutions whose weights are quantized, which ONNX lets a graph leave out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...model.graph import attribute

if TYPE_CHECKING:
    import onnx

_WEIGHTED = ("Conv", "ConvTranspose")
_KEEPS_SHAPE = ("QuantizeLinear", "DequantizeLinear", "Identity", "Cast")


def with_kernel_shapes(graph: Path, output: Path, target: str) -> Path:
    """Return a graph that says them, for TensorRT; the file itself where it does already.

    Args:
        graph: ONNX file.
        output: Where the changed graph goes.
        target: Other engines take the shape from the weights.
    """
    from ...model.onnx_file import load_onnx, save_onnx
    from ...model.weightless import read_weightless

    if not target.startswith("tensorrt") or not write_kernel_shapes(read_weightless(graph).model):
        return graph
    model = load_onnx(graph)
    write_kernel_shapes(model)
    save_onnx(model, output)
    return output


def write_kernel_shapes(model: onnx.ModelProto) -> bool:
    """Give each convolution without kernel_shape that of its weights, and return whether there was any.

        w ─ Q/DQ ─ Conv <pads=...>      becomes      w ─ Q/DQ ─ Conv <pads=..., kernel_shape=[3, 3]>

    TensorRT's parser takes the shape from weights that are initializers. For weights behind Q/DQ it takes it
    from the attribute alone, compares an array that was never set, and refuses: "The input tensor shape
    misaligns with the input kernel shape" (onnx-tensorrt 8.5-GA to 10.1-GA, `convMultiInput`; issue 655).

    Args:
        model: Changed in place.
    """
    from onnx import helper

    dims = {item.name: list(item.dims) for item in model.graph.initializer}
    made_by = {output: node for node in model.graph.node for output in node.output}
    changed = False
    for node in model.graph.node:
        if node.op_type not in _WEIGHTED or attribute(node, "kernel_shape") is not None:
            continue
        shape = dims.get(_behind(node.input[1], made_by))
        if shape is not None and node.input[1] not in dims:
            node.attribute.append(helper.make_attribute("kernel_shape", shape[2:]))
            changed = True
    return changed


def _behind(name: str, made_by: Mapping[str, onnx.NodeProto]) -> str:
    """The tensor that a tensor is quantized or cast from."""
    while name in made_by and made_by[name].op_type in _KEEPS_SHAPE:
        name = made_by[name].input[0]
    return name
