"""Find the nodes that half precision would break, where a runtime chooses the types and must be told.

Where the graph has the types, `to_half` leaves these nodes in float32. A runtime that chooses by itself gets
the same analysis as constraints, and with it the normalizations that are written in primitives, whose sums of
squares overflow float16:

    x ─ ReduceMean ─ Sub ─ Pow or Mul ─ ReduceMean ─ Add epsilon ─ Sqrt ─ Div
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....calibration import Ranges
from ....model.graph import producers
from ....model.graph_edits import name_nodes
from ....model.onnx_file import copy_model
from .casts import Half, half_type
from .precision import unfit_nodes

if TYPE_CHECKING:
    import onnx

_SQUARES = ("Mul", "Pow")
_MEANS = ("ReduceMean", "GlobalAveragePool", "ReduceSum")
_REASON = "its statistics would overflow or round away"


def nodes_to_protect(model: onnx.ModelProto, dtype: Half, *, ranges: Ranges | None = None) -> dict[str, str]:
    """Return name of a node to why it must stay in float32.

    Args:
        model: The float32 model, with or without Q/DQ; nodes without a name get one.
        dtype: The half type that the runtime may choose.
        ranges: Observed values, for the overflow check of activations.
    """
    name_nodes(model.graph)
    unfit = unfit_nodes(copy_model(model), half_type(dtype), ranges)
    return {**dict.fromkeys(normalizations(model.graph), _REASON), **unfit}


def normalizations(graph: onnx.GraphProto) -> list[str]:
    """Return the nodes of each normalization that is written in primitives, from the mean to the division."""
    made_by = producers(graph)
    found: list[str] = []
    for node in graph.node:
        if node.op_type == "Sqrt" and (inside := _statistics(node, made_by)):
            found += [one.name for one in inside]
            root = set(node.output)
            found += [
                one.name
                for one in graph.node
                if one.op_type in ("Div", "Reciprocal") and root & set(one.input)
            ]
    return list(dict.fromkeys(found))


def _statistics(root: onnx.NodeProto, made_by: dict[str, onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes from the mean to the root; empty where it is the root of something else."""
    above = made_by.get(root.input[0])
    chain = [root]
    if above is not None and above.op_type == "Add":
        chain.append(above)
        above = next((made_by[name] for name in above.input if name in made_by), None)
    if above is None or above.op_type not in _MEANS:
        return []
    square = made_by.get(above.input[0])
    if square is None or square.op_type not in _SQUARES:
        return []
    if square.op_type == "Mul" and square.input[0] != square.input[1]:
        return []
    chain += [above, square]
    centered = made_by.get(square.input[0])
    if centered is not None and centered.op_type == "Sub":
        chain.append(centered)
        mean = made_by.get(centered.input[1])
        chain += [mean] if mean is not None and mean.op_type in _MEANS else []
    return chain
