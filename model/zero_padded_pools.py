"""Find a MaxPool of zeros that ONNX Runtime's optimizer makes a MaxPool of nothing.

    x ─ Pad(value 0) ─ MaxPool        becomes        x ─ MaxPool(pads)

Its transformer Pad_Fusion (microsoft/onnxruntime 18136, in 1.17) moves the padding into the pool, where it is
no value: at the border, the largest of negative values and 0 becomes the largest of the negative values. Seen
with 1.31.1, on networks with TensorFlow's padding (BiT). onnxsim did the same (onnxsim/onnxsim 290).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import QCompileError
from .graph import ONNX_DOMAINS, attribute, constant_tensor, every_graph, tensor_values
from .weightless import read_weightless

if TYPE_CHECKING:
    import onnx

OPTIMIZER = "Pad_Fusion"
"""Its name among the optimizers that a session can leave out."""


def zero_padded_pools(model: onnx.ModelProto) -> list[str]:
    """Return the names of the MaxPools behind a Pad of 0, or of a value that is not known."""
    return [name for graph in every_graph(model.graph) for name in _of(graph)]


def optimizers_that_lose_zeros(path: Path) -> tuple[str, ...]:
    """Return the optimizers that a session of the file must leave out; none of one that cannot be read."""
    try:
        status = path.stat()
        return _optimizers(path, status.st_mtime_ns, status.st_size)
    except (OSError, QCompileError):  # the runtime that is given it says what is wrong
        return ()


@functools.lru_cache(maxsize=256)
def _optimizers(path: Path, _changed: int, _size: int) -> tuple[str, ...]:
    return (OPTIMIZER,) if zero_padded_pools(read_weightless(path).model) else ()


def _of(graph: onnx.GraphProto) -> list[str]:
    padded = {node.output[0]: node for node in graph.node if _pads_with_a_value(node)}
    stored = {tensor.name: tensor for tensor in graph.initializer}
    stored |= {node.output[0]: tensor for node in graph.node if (tensor := constant_tensor(node)) is not None}
    return [
        node.name or node.output[0]
        for node in graph.node
        if node.op_type == "MaxPool" and node.input[0] in padded and _is_zero(padded[node.input[0]], stored)
    ]


def _pads_with_a_value(node: onnx.NodeProto) -> bool:
    return (
        node.op_type == "Pad"
        and node.domain in ONNX_DOMAINS
        and attribute(node, "mode", "constant") == "constant"
    )


def _is_zero(pad: onnx.NodeProto, stored: dict[str, onnx.TensorProto]) -> bool:
    """Whether it pads with 0, which is also what it does where nothing is said."""
    if len(pad.input) < 3 or not pad.input[2]:
        return float(attribute(pad, "value", 0.0)) == 0.0  # up to opset 10
    tensor = stored.get(pad.input[2])
    return tensor is None or not np.any(tensor_values(tensor).astype(np.float64))
