"""Nodes that a user names: by name, by glob, or by operator type."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...errors import InvalidOption

if TYPE_CHECKING:
    import onnx


def match_nodes(
    graph: onnx.GraphProto, exclude: Iterable[str], *, only: Iterable[str] = ()
) -> dict[str, str]:
    """Return name to reason for the nodes that are left out.

    Args:
        graph: Its nodes have unique names.
        exclude: Names, globs (`/head/*`) or operator types of nodes to leave out.
        only: The same, for the nodes to keep; empty for all.

    Raises:
        InvalidOption: If a pattern matches nothing.
    """
    left = {
        name: f"excluded by {pattern!r}"
        for pattern in exclude
        for name in _named(graph, pattern, "`exclude`")
    }
    included = {name for pattern in only for name in _named(graph, pattern, "`only`")}
    if included:
        reason = f"not among {', '.join(map(repr, only))}"
        left |= {node.name: reason for node in graph.node if node.name not in included | set(left)}
    return left


def exactly(name: str) -> str:
    """Return a glob that only this name matches, whatever it holds: `[`, `*`, or the name of an operator."""
    first = f"[{name[0]}]" if name[:1].isalnum() else glob.escape(name[:1])
    return first + glob.escape(name[1:])


def _named(graph: onnx.GraphProto, pattern: str, option: str) -> list[str]:
    hits = [
        node.name
        for node in graph.node
        if pattern in (node.op_type, node.name) or fnmatch.fnmatchcase(node.name, pattern)
    ]
    if not hits:
        raise InvalidOption(
            f"{option} {pattern!r}: no node of that name, glob or operator type",
            hint="`qcompile inspect` with `nodes` lists them",
            option=option,
        )
    return hits
