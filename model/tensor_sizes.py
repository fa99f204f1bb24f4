"""Refuse graphs of a few bytes that make tensors of gigabytes, before a runtime allocates them.

    shape [1] = 2**34 ─ ConstantOfShape ─ y [2**34]        100 bytes of file, 64 GiB of memory

Shapes are inferred with the values of small tensors, so that `ConstantOfShape`, `Expand`, `Tile`, `Range`,
`Resize`, `Pad`, `OneHot` and the like are known where their shapes are constants. A symbolic extent counts as
1. Weights that the file holds do not count: large models have many. What only a run can tell, such as a Loop
that doubles a tensor, is for the limits of `untrusted/` to catch.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidOption, ModelError
from ..machine_memory import machine_bytes
from .graph import constant_names, every_graph, without_weights
from .onnx_file import tensor_bytes
from .weightless import read_weightless

if TYPE_CHECKING:
    import onnx

LIMIT = "QCOMPILE_TENSOR_LIMIT_GB"
"""Variable with the largest tensor that a graph may make, in 10**9 bytes."""
LEAST_GB = 2.0
"""The limit where half of the machine's memory is less."""
_AMPLIFIES = 16
"""A node whose output is so many times as large as its inputs makes values; others pass weights on."""


def tensor_limit_bytes() -> int:
    """Return the largest tensor that a graph may make: half of the memory, at least `LEAST_GB`, or `LIMIT`.

    Raises:
        InvalidOption: If the variable is no positive number.
    """
    text = os.environ.get(LIMIT, "")
    if not text:
        return max(int(LEAST_GB * 1e9), (machine_bytes() or 0) // 2)
    try:
        given = float(text)
    except ValueError:
        given = math.nan
    if not 0 < given < math.inf:
        raise InvalidOption(f"{LIMIT}={text!r}: a positive number is required")
    return int(given * 1e9)


def require_tensor_sizes(path: Path) -> None:
    """Refuse an ONNX file whose graph makes a tensor over the limit, or constants that are so together.

    A file that cannot be read is left to the runtime that refuses it. One that was looked at is known.

    Raises:
        ModelError: Naming the node, the tensor and the limit.
    """
    try:
        status = path.stat()
    except OSError:
        return
    reason = _too_large(path, status.st_mtime_ns, status.st_size, tensor_limit_bytes())
    if reason:
        message, hint, data = reason
        raise ModelError(f"{path}: {message}", hint=hint, file=path, **data)


_Reason = tuple[str, str, dict[str, object]]


@functools.lru_cache(maxsize=256)
def _too_large(path: Path, _changed: int, _size: int, limit: int) -> _Reason | None:
    try:
        model = read_weightless(path).model
        sizes = dict(_sizes(model))
    except Exception:  # whatever is wrong with the file, the runtime says so
        return None
    made = {name: node for graph in every_graph(model.graph) for node in graph.node for name in node.output}
    for name, size in sizes.items():
        if size > limit:
            return _told(name, made.get(name), f"{size:,} bytes", limit)
    constants = _made_constants(model, sizes)
    if sum(constants.values()) > limit:
        largest = max(constants, key=constants.__getitem__)
        share = f"{constants[largest]:,} bytes, and all constants that nodes make {sum(constants.values()):,}"
        return _told(largest, made.get(largest), share, limit)
    return None


def _told(name: str, node: onnx.NodeProto | None, size: str, limit: int) -> _Reason:
    label = f"{node.op_type} {node.name!r} makes tensor" if node is not None else "tensor"
    hint = (
        f"make the tensor smaller; where the machine has the memory, set {LIMIT} to a number above "
        f"{limit / 1e9:.1f}"
    )
    data: dict[str, object] = {"tensor": name, "limit_bytes": limit}
    if node is not None:
        data |= {"node": node.name, "operator": node.op_type}
    return f"{label} {name!r} of {size}; at most {limit:,} bytes are allowed", hint, data


def _sizes(model: onnx.ModelProto) -> Iterator[tuple[str, int]]:
    """(tensor, bytes) of what nodes make and inputs hold; 1 for each extent that is not known."""
    import onnx

    stored = {tensor.name for tensor in model.graph.initializer}
    for sparse in _sparse(model.graph):
        yield sparse.values.name or "sparse constant", _bytes(sparse.dims, sparse.values.data_type)
    light = onnx.shape_inference.infer_shapes(without_weights(model), data_prop=True)
    for graph in every_graph(light.graph):
        for value in (*graph.input, *graph.value_info, *graph.output):
            kind = value.type.tensor_type
            if value.name not in stored and kind.HasField("shape"):
                extents = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in kind.shape.dim]
                yield value.name, _bytes(extents, kind.elem_type)


def _bytes(extents: Iterable[int], elem_type: int) -> int:
    import onnx

    try:
        item = int(onnx.helper.tensor_dtype_to_np_dtype(elem_type).itemsize)
    except (KeyError, TypeError):  # a type without a fixed size
        item = 1
    return math.prod(extents) * item


def _sparse(graph: onnx.GraphProto) -> Iterator[onnx.SparseTensorProto]:
    for inner in every_graph(graph):
        yield from inner.sparse_initializer
        for node in inner.node:
            for attribute in node.attribute:
                if attribute.HasField("sparse_tensor"):
                    yield attribute.sparse_tensor


def _made_constants(model: onnx.ModelProto, sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes of the constants that nodes make of much smaller ones: a runtime may fold and keep them all."""
    constants = constant_names(model)
    known = {**sizes, **{tensor.name: tensor_bytes(tensor) for tensor in model.graph.initializer}}
    return {
        name: known[name]
        for node in model.graph.node
        if node.op_type != "Constant" and all(not source or source in known for source in node.input)
        for name in node.output
        if name in constants and known.get(name, 0) > _AMPLIFIES * sum(known.get(n, 0) for n in node.input)
    }
