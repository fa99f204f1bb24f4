"""Rewrite pools whose window covers the whole image as global pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.graph import attribute, infer_shapes

if TYPE_CHECKING:
    import onnx

_GLOBAL = {"AveragePool": "GlobalAveragePool", "MaxPool": "GlobalMaxPool"}


def pool_globally(model: onnx.ModelProto) -> int:
    """Replace pools whose one window covers all of the image, in place; return how many.

    Some networks (EfficientNet of transformers) pool with a window of 1280 x 1280 over 7 x 7, which
    TensorRT refuses; what counts is the image, as nothing is padded.
    """
    shapes = infer_shapes(model)
    done = 0
    for node in model.graph.node:
        if node.op_type not in _GLOBAL or len(node.output) != 1:
            continue
        window = attribute(node, "kernel_shape")
        image = shapes.get(node.input[0], ())[2:]
        result = shapes.get(node.output[0], ())[2:]
        padded = any(attribute(node, "pads", []))
        fixed = len(image) == len(window) and all(isinstance(extent, int) for extent in image)
        if padded or not fixed or any(extent != 1 for extent in result) or not result:
            continue
        if all(int(size) >= int(extent) for size, extent in zip(window, image, strict=True)):
            node.op_type = _GLOBAL[node.op_type]
            del node.attribute[:]
            done += 1
    return done
