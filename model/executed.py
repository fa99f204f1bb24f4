"""Nodes of a file that ONNX Runtime's optimizer brought to their planned precision."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .graph import weighted_nodes

if TYPE_CHECKING:
    import onnx

_RENAMED = re.compile(r"(.+?)(_token_\d+|_nchwc|/\w+Fusion\w*|_(?:quant|QuantizeLinear)\w*)$")
"""How the optimizer names what it made of a node: `conv1_token_4`, `conv1_nchwc`, `mm/MatMulAddFusion`."""


def missed_nodes(
    planned: Sequence[onnx.NodeProto], optimized: onnx.ModelProto, precision: str
) -> tuple[dict[str, str], list[str]]:
    """Return the planned nodes that run in another precision, each with that, and those of which is unknown.

    A planned node that is nowhere in the optimized graph became part of another node. It is unknown only
    where a node of another precision is there that no planned node's name explains.

    Args:
        planned: Nodes of the file that are to compute in the precision.
        optimized: The graph as the optimizer left it.
        precision: "int8", "fp16", ...
    """
    names = {node.name: node.name for node in planned}
    names |= {output: node.name for node in planned for output in node.output if output}
    missed: dict[str, str] = {}
    located: set[str] = set()
    strangers = False
    for kind, nodes in weighted_nodes(optimized, as_executed=True).items():
        for node in nodes:
            origin = _origin(node, names)
            if origin is not None:
                located.add(origin)
                if kind != precision:
                    missed[origin] = kind
            elif kind != precision:
                strangers |= _is_made(node)
    left = [node.name for node in planned if node.name not in located]
    return missed, left if strangers else []


def _origin(node: onnx.NodeProto, names: dict[str, str]) -> str | None:
    """The planned node that a node was made of; None where no name tells."""
    for name in (node.name.removeprefix("fused "), *node.output):
        while True:
            if name in names:
                return names[name]
            match = _RENAMED.match(name)
            if match is None:
                break
            name = match.group(1)
    return None


def _is_made(node: onnx.NodeProto) -> bool:
    """Whether the optimizer made a node: it gives it no name of the file."""
    return not node.name or node.op_type.startswith("Fused") or _RENAMED.match(node.name) is not None
