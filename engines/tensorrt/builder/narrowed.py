"""Find layers that are kept in float32, and whose weights an engine stores in half all the same.

A layer of float32 between two of half is `half -> Cast -> layer -> Cast -> half` in a strongly typed network.
TensorRT-RTX 1.7 makes one kernel of half of it: the weight is in the engine in float16 (a value beyond 65504
is infinite there), and in float32 nowhere. It is kept where the layer behind it is in float32, too. Seen with
MatMul and Conv, in engines for sm86; `tests/engines/tensorrt/test_engine_contents.py` shows both.

Only what is found proves anything: TensorRT may store a weight in a layout that is not looked for.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....model.graph import tensor_values
from ....model.onnx_file import load_onnx

_WINDOW_BYTES = 64
_DISTINCT = 12
"""Values that differ in the bytes looked for: fewer can be there by chance."""
_HALVES = ("fp16", "bf16")


def narrowed_layers(graph: Path, names: Sequence[str], engine: Path, half: str) -> list[str]:
    """Return the layers whose float32 weight an engine stores in half, and nowhere in float32.

    Args:
        graph: The ONNX file that the engine was built from.
        names: Nodes that the network has in float32.
        engine: The plan.
        half: "fp16" or "bf16", which the others are in; none is looked for in another one.
    """
    if half not in _HALVES or not names or not engine.stat().st_size:
        return []
    model = load_onnx(graph)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    found = []
    with engine.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
        for node in model.graph.node:
            weight = constants.get(node.input[1]) if node.name in names and len(node.input) > 1 else None
            if weight is None or weight.data_type != weight.FLOAT:
                continue
            values = tensor_values(weight)
            if _holds(plan, _halved(values, half)) and not _holds(plan, values):
                found.append(node.name)
    return found


def _holds(plan: mmap.mmap, values: NDArray[Any]) -> bool:
    return any(plan.find(window) >= 0 for window in _windows(values))


def _windows(values: NDArray[Any]) -> Iterator[bytes]:
    """The first bytes of an array as ONNX stores it, transposed, and with channels last."""
    layouts = [values]
    if values.ndim == 2:
        layouts.append(values.T)
    if values.ndim > 2:
        layouts.append(np.moveaxis(values, 1, -1))
    for layout in layouts:
        first = np.ascontiguousarray(layout).ravel()[: _WINDOW_BYTES // layout.itemsize]
        if first.nbytes == _WINDOW_BYTES and np.unique(first).size >= _DISTINCT:
            yield first.tobytes()


def _halved(values: NDArray[Any], half: str) -> NDArray[Any]:
    if half == "fp16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    bits = values.astype(np.float32).view(np.uint32)  # to the nearest, ties to even
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
